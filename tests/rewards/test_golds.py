r"""Reading golds, and the judgements that need no algebra."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bapo_lightning.rewards.golds import gold_alternatives, judge_locally, read_choice, read_gold


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("33", "integer"),
        ("\\$32,\\!348", "integer"),
        ("$\\boxed{033}$", "integer"),
        ("50\\%", "expression"),
        ("1,-2", "expression"),
        ("1,234.5", "expression"),
        ("\\frac{1}{2}", "expression"),
        ("∞", "expression"),
        ("x", "expression"),
        ("e", "expression"),
        ("2.5 square feet", "expression"),
        ("\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}", "expression"),
        ("C", "choice"),
        ("\\text{(E)}", "choice"),
        ("\\text{east}", "words"),
        ("Monday", "words"),
        ("no solution", "words"),
        ("xy", "expression"),
        ("4210_{5}", "numeral"),
        ("a_1", "expression"),
        ("", "bad"),
        ("  ", "bad"),
        ("$$", "bad"),
        ("???", "bad"),
        ("None", "bad"),
        ("N/A", "bad"),
        ("\\text{}", "bad"),
        ("\\boxed{", "bad"),
        ("see the solution of problem 3", "bad"),
        ("the proof is left to the reader", "bad"),
        ("a long sentence that says 3 things about numbers", "bad"),
        ("1" * 2001, "bad"),
    ],
)
def test_the_kind_of_a_gold(text, kind):
    assert read_gold(text).kind == kind


@pytest.mark.parametrize(
    ("answer", "alternatives"),
    [
        ("70", ["70"]),
        (["70"], ["70"]),
        ("['70']", ["70"]),
        ('["70", "\\\\frac{1}{2}"]', ["70", "\\frac{1}{2}"]),
        ("['\\\\pi']", ["\\pi"]),
        ("[1,2]", ["[1,2]"]),
        ("['broken]", ["['broken]"]),
        ([], [""]),
        (None, [""]),
        (70, ["70"]),
        (True, [""]),
        (["a", None], ["a", ""]),
    ],
)
def test_lists_and_printed_lists_are_alternatives(answer, alternatives):
    assert gold_alternatives(answer) == alternatives


@pytest.mark.parametrize(
    ("text", "with_value", "letter"),
    [
        ("C", False, "C"),
        ("(c)", False, "C"),
        ("C.", False, "C"),
        ("\\textbf{(C)}", False, "C"),
        ("\\textbf{(C) } 12", True, "C"),
        ("\\textbf{(C)}\\ 12", False, None),
        ("C) 12 apples", True, "C"),
        ("C 12", True, None),
        ("(C) or (D)", True, None),
        ("(C), D", True, None),
        ("F", False, None),
        ("Cat", True, None),
        ("", True, None),
    ],
)
def test_choices(text, with_value, letter):
    assert read_choice(text, with_value) == letter


@pytest.mark.parametrize(
    ("gold", "answer", "is_right"),
    [
        ("\\text{Evelyn}", "\\textbf{ EVELYN. }", True),
        ("\\text{Evelyn}", "Evelyne", False),
        ("no solution", "\\text{no}\\ \\text{solution}", True),
        ("no solution", "", False),
        ("\\text{even}", "even or odd", False),
        ("1A3_{16}", "1a3_{16}", True),
        ("52_8", "(52)_{\\text{8}}", True),
        ("52_8", "052_8", False),
        ("52_8", "52_{10}", False),
        ("204", "2", False),
        ("204", "1204", False),
        ("B", "AB", False),
    ],
)
def test_local_judgement(gold, answer, is_right):
    assert judge_locally(read_gold(gold), answer) is is_right


@settings(deadline=None)
@given(st.text(st.characters(exclude_categories=()), max_size=60))
def test_no_text_raises(text):
    for alternative in gold_alternatives(text):
        gold = read_gold(alternative)
        assert gold.kind != "integer" or judge_locally(gold, alternative)
    for gold in map(read_gold, ("7", "C", "yes", "52_8")):
        judge_locally(gold, text)
