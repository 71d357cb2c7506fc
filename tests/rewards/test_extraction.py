r"""Finding answers: the last box, the thought, the final phrase; for any text, in linear time."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bapo_lightning.rewards import extraction
from bapo_lightning.rewards.characters import braces_match, normalise_characters, unwrap
from bapo_lightning.rewards.extraction import final_phrase, find_answer, last_box, visible_text

PIECES = [
    "\\boxed",
    "\\boxed{",
    "\\fbox {",
    "{",
    "}",
    "\\",
    "\\{",
    "\\}",
    "$",
    "answer is ",
    "42",
    "\n",
    ".",
    "<think>",
]
ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=200)
ANY_PIECES = st.lists(st.sampled_from(PIECES) | st.characters(exclude_categories=()), max_size=60).map("".join)

PLAIN = st.text("abc 123+-=,^_$", max_size=8) | st.sampled_from(["\\{", "\\}", "\\frac", "\\\\", "\\,"])
BALANCED = st.recursive(
    PLAIN, lambda inner: st.lists(inner | inner.map(lambda text: f"{{{text}}}"), max_size=4).map("".join), max_leaves=20
)


@settings(deadline=None)
@given(BALANCED, PLAIN, PLAIN)
def test_a_balanced_box_is_read_back_whole(content, before, after):
    assert last_box(f"{before} \\boxed{{{content}}} {after}").content == content


@settings(deadline=None)
@given(st.lists(BALANCED, min_size=1, max_size=5), st.sampled_from(["\\boxed", "\\fbox", "\\boxed \n", "\\\\boxed"]))
def test_the_last_of_several_boxes_wins(contents, command):
    text = " and ".join(f"{command}{{{content}}}" for content in contents)
    assert last_box(text).content == contents[-1]


@settings(deadline=None)
@given(BALANCED, BALANCED)
def test_an_open_last_box_is_no_answer_whatever_came_before(closed, opened):
    box = last_box(f"\\boxed{{{closed}}} or \\boxed{{{opened}")
    assert box.content is None
    assert box.has_command


@settings(deadline=None)
@given(BALANCED)
def test_a_box_around_a_box_keeps_all_of_it(content):
    assert last_box(f"\\boxed{{x = \\boxed{{{content}}}, y}}").content == f"x = \\boxed{{{content}}}, y"


@settings(deadline=None)
@given(ANY_TEXT | ANY_PIECES, st.booleans(), st.booleans())
def test_no_text_raises(text, plain_text, cut_off):
    finding = find_answer(text, None, plain_text, cut_off)
    assert (finding.answer is None) == (finding.status != "found")
    assert finding.answer is None or finding.answer.strip() == finding.answer != ""
    find_answer(text, ("<think>", "</think>"), plain_text, cut_off)
    normalise_characters(text)


@pytest.mark.parametrize(
    "piece",
    [
        "{",
        "}",
        "{}",
        "\\boxed{",
        "\\boxed",
        "\\",
        "\\boxed{1}",
        "answer is ",
        "answer: 1. ",
        "$",
        "**",
        "<think>",
        " ",
        "\\text{",
    ],
)
def test_time_is_linear_in_the_length(piece):
    text = (piece * 100_000)[:100_000]
    started = time.perf_counter()
    for cut_off in (False, True):
        find_answer(text, None, True, cut_off)
        find_answer("\\boxed{" + text + "}", None, True, cut_off)
        find_answer(text, ("<think>", "</think>"), True, cut_off)
    assert time.perf_counter() - started < 2.0  # 600 kB; a quadratic scan takes minutes


@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 8),
    st.sampled_from([("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"), ("$$", "$$"), ("{", "}"), ("**", "**")]),
)
def test_wrappers_come_off(depth, pair):
    assert unwrap(f"{pair[0]} 70 {pair[1]}") == "70"
    assert unwrap("{" * depth + "70" + "}" * depth) == "70"
    assert unwrap("\\boxed{" * depth + "7" + "}" * depth) == "7"


@pytest.mark.parametrize(
    "text", ["$5$ and $6$", "{1}{2}", "\\{1,2\\}", "\\$5", "\\boxed{1} \\boxed{2}", "\\(1\\) \\(2\\)"]
)
def test_two_pieces_are_not_one_wrapper(text):
    assert unwrap(text) == text


@pytest.mark.parametrize(("text", "matches"), [("", True), ("{\\}}", True), ("}{", False), ("{", False), ("\\{", True)])
def test_escaped_braces_are_not_counted(text, matches):
    assert braces_match(text) is matches


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("７１", "71"),
        ("7²", "7^{2}"),
        ("52₈", "52_{8}"),
        ("7½", "7\\frac{1}{2}"),
        ("−5–3", "-5-3"),
        ("√13", "\\sqrt{13}"),
    ],
)
def test_characters_are_evened_out_without_changing_values(text, plain):
    assert normalise_characters(text) == plain


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("<think>a</think>b", "b"),
        ("a</think>b", "b"),
        ("<think>a</think>b<think>c</think>d", "d"),
        ("<think>a", None),
        ("no tags", None),
        ("<think>a</think>b<think>c", None),
        ("a</think>", ""),
    ],
)
def test_only_what_follows_the_thought_is_visible(text, after):
    assert visible_text(text, ("<think>", "</think>")) == after


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("The answer is 42.", "42"),
        ("the answer equals $x^2+1$", "x^2+1"),
        ("**Answer:** **42**", "42"),
        ("Final Answer\nAnswer: 42\nThank you.", "42"),
        ("Answer:\n\\[\n\\frac{1}{2}\n\\]\n", "\\frac{1}{2}"),
        ("The answer is 4.5.", "4.5"),
        ("The answer is 5. Later: the answer is 7.", "7"),
        ("The answer is 5. Surely the answer is right.", None),
        ("The answer is 5 times 3.", None),
        ("The answer is not 5.", None),
        ("The answer is", None),
        ("My answers are 5.", None),
        ("The answer is ???", None),
        ("The answer is " + "1+" * 150 + "1", None),
    ],
)
def test_a_final_phrase_is_read_whole_or_not_at_all(text, answer):
    assert final_phrase(text) == answer


def test_an_answer_at_the_very_end_of_a_cut_response_is_not_read():
    assert final_phrase("The answer is 12", cut_off=True) is None
    assert final_phrase("The answer is 12.", cut_off=True) == "12"


@given(
    st.lists(
        st.sampled_from(["\\boxed", "\\fbox", "boxed", "{", "}", "\\{", "\\", "\\\\", "a", " ", "\\boxed{", "fboxed"]),
        max_size=14,
    ).map("".join)
)
@settings(max_examples=500, deadline=None)
def test_reading_from_the_first_box_on_is_reading_all_of_it(text):
    """Braces before it do not matter, open or closed; they are skipped for speed."""
    found = last_box(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(extraction, "_first_box", lambda text: 0)
        assert last_box(text) == found
