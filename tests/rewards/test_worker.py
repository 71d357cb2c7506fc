r"""What math-verify is asked, and how: run in this process, with harmless expressions only."""

import ast
import io
import sys
from pathlib import Path

import pytest

from bapo_lightning.rewards import worker
from bapo_lightning.rewards.worker import judge, read_message, write_message


@pytest.mark.parametrize(
    ("gold", "answer", "verdict"),
    [
        # Percent: dropped without one in the gold, hundredths with one.
        ("12.5", "12.5\\%", "correct"),
        ("0.125", "12.5\\%", "wrong"),
        ("12.5\\%", "12.5\\%", "correct"),
        ("12.5\\%", "\\frac{1}{8}", "correct"),
        ("12.5\\%", "12.5", "wrong"),
        # Rounding: sqrt 2 = 1.41421356…, 20000/pi = 6366.19772…, 2/3 = 0.66666666…
        ("\\sqrt{2}", "1.41421", "correct"),
        ("\\sqrt{2}", "1.4142136", "correct"),
        ("\\sqrt{2}", "1.4142", "wrong"),
        ("\\sqrt{2}", "-1.41421", "wrong"),
        ("-\\sqrt{2}", "-1.41421", "correct"),
        ("\\frac{20000}{\\pi}", "6,366.20", "correct"),
        ("\\frac{20000}{\\pi}", "6366.19", "wrong"),
        ("\\frac{2}{3}", "x = 0.666667", "correct"),
        ("\\frac{2}{3}", "0.666666", "wrong"),
        ("\\frac{2}{3}", "0.000001", "wrong"),
        (".0000672", "0.000067", "wrong"),
        (".0000672", "6.72 \\times 10^{-5}", "correct"),
        ("3.21", "3.2100001", "wrong"),
        ("3.21", "3.210", "correct"),
        ("0.333333", "\\frac13", "correct"),
        ("0.33", "\\frac13", "wrong"),
        ("\\frac{7}{12}", "0.58\\overline{3}", "correct"),
        ("(0.5, 2)", "(\\frac12, 2.0)", "correct"),
        ("(\\frac13, 2)", "(0.33, 2)", "wrong"),
        ("(1,0.5)", "(1,\\frac12)", "correct"),
        # Several parts.
        ("3, 5, 7", "7, 5, 3", "correct"),
        ("3, 5, 7", "3, 5", "wrong"),
        ("\\{1\\pm\\sqrt{5},-2\\}", "-2, 1+\\sqrt5, 1-\\sqrt5", "correct"),
        ("(6,31,-1)", "(6,-1,31)", "wrong"),
        ("x=1, y=2", "1, 2", "correct"),
        ("x=1, y=2", "x=2, y=1", "wrong"),
        ("x \\in [-2,7]", "[-2,7]", "correct"),
        ("(0,9) \\cup (9,36)", "(0,36)", "wrong"),
        # Form does not matter, value does.
        ("(a+5)(b+2)", "ab+2a+5b+10", "correct"),
        ("p - q", "q - p", "wrong"),
        ("6 - 5i", "-5i + 6", "correct"),
        ("137 \\frac{1}{2}", "137.5", "correct"),
        ("\\$18.90", "18.9", "correct"),
        ("5.4 \\text{ cents}", "5.40", "correct"),
        ("3\\sqrt{13}", "\\\\sqrt{117}", "correct"),
        ("\\begin{pmatrix} 1/5 \\\\ -18/5 \\end{pmatrix}", "\\begin{bmatrix} 0.2 \\\\ -3.6 \\end{bmatrix}", "correct"),
        ("5x - 7y = -4", "10x - 14y + 8 = 0", "correct"),
        ("\\frac12", "}{", "wrong"),
        ("\\frac12", "", "wrong"),
        # Golds that nothing can be compared with.
        ("\\frac{1}{", "\\frac{1}{", "bad_gold"),
        ("--", "--", "bad_gold"),
        ("\\frac{1}{0}", "5", "bad_gold"),
    ],
)  # fmt: skip
def test_verdicts(gold, answer, verdict):
    assert judge(gold, answer) == verdict


def test_what_a_comparison_raises_is_not_swallowed():
    with pytest.raises(ValueError, match="longer"):
        judge("1 < x < 3", "1 < x < 3 < y")


def test_messages_survive_any_text():
    stream = io.BytesIO()
    message = {"gold": "½ \ud800 \x00", "answer": "\n" * 1000}
    write_message(stream, message)
    stream.seek(0)
    assert read_message(stream) == message
    assert read_message(stream) is None


def test_the_file_imports_only_the_standard_library_until_it_serves():
    tree = ast.parse(Path(worker.__file__).read_text(encoding="utf-8"))
    names = {alias.name.split(".")[0] for node in tree.body if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module).split(".")[0] for node in tree.body if isinstance(node, ast.ImportFrom)}
    assert names <= sys.stdlib_module_names
