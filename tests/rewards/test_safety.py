"""Model output is untrusted: what of it reaches Python's `eval`, and what a worker process can do."""

import itertools
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bapo_lightning.rewards import MathReward, worker

WORKER = Path(worker.__file__)

PAYLOADS = [
    "__import__('os').system('touch owned')",
    "open('owned','w')",
    "exec('1')",
    "().__class__.__bases__[0].__subclasses__()",
    "lambda: 0",
    "os.system",
    "'; import os; '",
    "Integer(1)",
    "S(1)",
    "preview(x)",
    'f"{1}"',
    "[i for i in range(9)]",
]
WRAPPERS = [
    "{}",
    r"\text{{{}}}",
    r"\operatorname{{{}}}",
    r"x_{{{}}}",
    r"\frac{{{}}}{{2}}",
    r"\sqrt{{{}}}",
    "{}^2",
    r"\{{1, {}\}}",
    r"f({}) = 3",
    r"\begin{{pmatrix}} {} \\ 2 \end{{pmatrix}}",
]
PLAIN = [
    r"\frac{1}{2}",
    "x + 1",
    "1{,}000",
    r"1.5 \times 10^3",
    r"3\text{ cm}",
    "50\\%",
    "5!",
    r"\pi",
    r"[1, 2)",
    "John's",
    "Y",
]


def run(code, *, input_text=""):
    """Run code in a fresh interpreter with the worker's file as module ``worker``."""
    start = f"import sys; sys.path.insert(0, {str(WORKER.parent)!r}); import worker\n"
    done = subprocess.run([sys.executable, "-c", start + code], input=input_text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_only_numbers_and_symbols_of_an_answer_reach_eval(tmp_path):
    """Every source that sympy would evaluate is written down, and none holds more than one atom."""
    answers = [*PLAIN, *(w.format(p) for w, p in itertools.product(WRAPPERS, PAYLOADS))]
    code = """
import json
seen, guarded = [], worker._eval_atoms
def note(source, *spaces):
    seen.append(source)
    return guarded(source, *spaces)
worker._eval_atoms = note
worker.guard_eval()
answers, golds = json.load(sys.stdin)
for gold in golds:
    for answer in answers:
        try:
            worker.judge(gold, answer)
        except Exception:
            pass
print(json.dumps(seen))
"""
    golds = [r"\frac{1}{2}", "x+1", r"\{1,2\}"]
    seen = json.loads(run(code, input_text=json.dumps([answers, golds])))
    assert len(seen) > 100  # numbers do get there
    atom = re.compile(r"(?:Integer|Float|Rational) \(\s*'?[0-9.]+'?\s*\)|Symbol \('\w+' \)|[A-Za-z]+")
    assert [source for source in seen if not atom.fullmatch(source.strip())] == []


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').getcwd()",
        "Integer(1).__class__",
        "open('owned')",
        "(1).real",
        "x if y else z",
        "preview(x)",
        "Symbol('a', commutative=print(1))",
    ],
)
def test_other_text_that_reaches_sympys_parser_is_refused(text):
    code = f"""
worker.guard_eval()
from sympy.parsing.sympy_parser import parse_expr
assert parse_expr("12") == 12
try:
    print("evaluated", parse_expr({text!r}))
except (ValueError, SyntaxError, TypeError) as error:
    print("refused")
"""
    assert run(code).strip() == "refused"


@pytest.mark.parametrize(
    "action",
    [
        "import os; os.system('true')",
        "import subprocess; subprocess.Popen(['true'])",
        "import os; os.fork()",
        "import os; os.execv('/bin/true', ['true'])",
        "import socket; socket.create_connection(('127.0.0.1', 9))",
        "import urllib.request; urllib.request.urlopen('http://127.0.0.1:9')",
        "open('owned', 'w')",
        "open('owned', 'ab')",
        "import os; os.open('owned', os.O_CREAT | os.O_WRONLY)",
        "from pathlib import Path; Path('owned').touch()",
        "import os; os.remove('there')",
        "import os; os.rename('there', 'gone')",
        "import shutil; shutil.rmtree('.')",
        "import os, signal; os.kill(os.getppid(), signal.SIGTERM)",
        "import ctypes; ctypes.CDLL(None)",
    ],
)
def test_a_worker_can_only_compute(action, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").write_text("kept")
    code = f"""
worker.judge("1", "1")
worker.lock_down()
try:
    exec({action!r})
except PermissionError as error:
    print(error)
assert open("there").read() == "kept"
assert worker.judge(r"\\frac{{1}}{{2}}", "0.5") == "correct"
"""
    assert "the reward's worker refused" in run(code)
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_hostile_text_is_judged_like_any_other(tmp_path, monkeypatch):
    """One batch with all of it: nothing stops, every response has a verdict, and nothing was executed."""
    monkeypatch.chdir(tmp_path)
    hostile = [
        *(f"\\boxed{{{w.format(p)}}}" for w, p in itertools.product(WRAPPERS, PAYLOADS)),
        "\\boxed{" * 2000,
        "{" * 10_000 + "\\boxed{1}",
        "\\boxed{" + "{" * 5000 + "1" + "}" * 5000 + "}",
        "\\boxed{" + "\\frac{" * 300 + "1" + "}{2}" * 300 + "}",
        "\\boxed{\x00\x07\x1b[2J1}",
        "\\boxed{\ud83d 1}",
        "\\boxed{9^{9^{9^{9}}}}",
        "\\boxed{(10^{10})!}",
        None,
        "",
    ]
    golds = [r"\frac{1}{2}", r"\sqrt{2}"]
    reward = MathReward(timeout_seconds=2.0)
    try:
        scores = reward.score(
            [*hostile, r"\boxed{0.5}"] * 2, [golds[0]] * (len(hostile) + 1) + [golds[1]] * (len(hostile) + 1)
        )
        assert len(scores) == 2 * (len(hostile) + 1)
        assert [s.status for s in scores].count("correct") == 1
        assert scores[len(hostile)].status == "correct"
        # And the pool still works.
        assert reward.score([r"\boxed{\frac{2}{4}}"], [golds[0]])[0].status == "correct"
    finally:
        reward.close()
    assert list(tmp_path.iterdir()) == []
