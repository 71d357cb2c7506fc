r"""MathReward as a whole: the cases from practice, statuses, settings, and answers in bulk."""

import copy
import json
import math
import threading
import time

import pytest
from jsonargparse import ArgumentParser

from bapo_lightning.errors import InputError
from bapo_lightning.rewards import MathReward, Reward, Score

THINK = ("<think>", "</think>")


@pytest.fixture(scope="module")
def reward():
    shared = MathReward(num_workers=1, timeout_seconds=30.0)
    yield shared
    shared.close()


def _check(reward, gold, response, status, extracted=None):
    (score,) = reward.score([response], [gold])
    assert score.status == status
    assert score.value == (1.0 if status == "correct" else 0.0)
    if extracted is not None:
        assert score.extracted == extracted


@pytest.mark.parametrize(("gold", "answer"), [("16", "016"), ("033", "33"), ("0", "000")])
def test_leading_zeros_do_not_count(reward, gold, answer):
    """B001."""
    _check(reward, gold, f"\\boxed{{{answer}}}", "correct")


def test_an_answer_boxed_twice_is_one_answer(reward):
    """B002."""
    text = "hence \\boxed{512}., restating it. **Final Answer** \\boxed{512}"
    _check(reward, "512", text, "correct", "512")
    _check(reward, "7", "\\boxed{007} … \\boxed{007}", "correct", "7")


def test_a_withdrawn_answer_does_not_count(reward):
    """B003."""
    text = "I get \\boxed{17}. Hold on, a sign slipped; it is \\boxed{19}."
    _check(reward, "19", text, "correct", "19")
    _check(reward, "17", text, "wrong", "19")


def test_a_thought_that_was_cut_off_is_no_answer():
    """B005."""
    (score,) = MathReward(think_tags=THINK).score(["<think>I think \\boxed{14} but let me"], ["14"], ["length"])
    assert score == Score(0.0, "no_answer", None)


def test_the_opening_tag_may_be_in_the_prompt():
    """B007."""
    text = "two and two.\n</think>\nThe answer is \\boxed{4}"
    closed, opened = MathReward(think_tags=THINK).score([text, text.replace("</think>", "")], ["4", "4"])
    assert closed.status == "correct"
    assert opened == Score(0.0, "no_answer", None)


def test_braces_nest_and_may_be_surplus(reward):
    """B008."""
    answer = "\\sqrt{\\frac{2}{\\pi}}"
    _check(reward, answer, f"\\boxed{{{answer}}}", "correct", answer)
    _check(reward, "70", "\\boxed{70}}", "correct", "70")


@pytest.mark.parametrize("text", ["Mark your solution with \\boxed .", "\\boxed{}", "", None])
def test_a_box_without_content_is_no_answer(reward, text):
    """B010."""
    _check(reward, "7", text, "no_answer")


def test_currency_and_thousands_in_plain_text(reward):
    """B012."""
    text = "The answer is $1,234.00"
    _check(reward, "1234", text, "correct", "1234")
    _check(MathReward(plain_text=False), "1234", text, "no_answer")
    _check(reward, "234", text, "wrong")


@pytest.mark.parametrize("gold", [["70"], "['70']", '["70"]'])
def test_a_gold_in_a_list(reward, gold):
    """B013."""
    _check(reward, gold, "<answer>\\(\\boxed{70}\\).</answer>", "correct")


@pytest.mark.parametrize(
    ("answer", "value"), [("\\text{88}", 88), ("7\\text{ apples}", 7), ("7\\,\\mathrm{cm}^2", 7), ("40^\\circ", 40)]
)
def test_text_and_units_in_the_box(reward, answer, value):
    """B019."""
    _check(reward, str(value), f"\\boxed{{{answer}}}", "correct", str(value))


@pytest.mark.parametrize(("gold", "answer"), [("33", "033"), ("\\frac{1}{2}", "0.5")])
def test_scoring_in_a_thread(reward, gold, answer):
    """B021; the second pair goes to math-verify."""
    scores = []
    thread = threading.Thread(target=lambda: scores.extend(reward.score([f"\\boxed{{{answer}}}"], [gold])))
    thread.start()
    thread.join()
    assert [score.status for score in scores] == ["correct"]


EXPLODING = ["10^{10^{10}}", "9^{9^{9^{9}}}", "(10^{9})!"]


def test_exploding_answers_to_an_integer_are_wrong_at_once(reward):
    """B022: 32 in a batch, from a thread."""
    responses = [f"\\boxed{{{EXPLODING[i % 3]}}}" for i in range(32)]
    scores = []
    thread = threading.Thread(target=lambda: scores.extend(reward.score(responses, ["5"] * 32)))
    started = time.perf_counter()
    thread.start()
    thread.join()
    assert time.perf_counter() - started < 1.0
    assert {(score.status, score.value) for score in scores} == {("wrong", 0.0)}


def test_exploding_answers_to_an_expression_cost_only_themselves():
    """B022, by way of math-verify: 32 responses, three of them different, and a good one at either end."""
    limited = MathReward(num_workers=2, timeout_seconds=1.5)
    responses = ["\\boxed{0.5}", *(f"\\boxed{{{EXPLODING[i % 3]}}}" for i in range(32)), "\\boxed{\\frac{2}{4}}"]
    scores = []
    thread = threading.Thread(target=lambda: scores.extend(limited.score(responses, ["\\frac{1}{2}"] * 34)))
    started = time.perf_counter()
    thread.start()
    thread.join()
    limited.close()
    seconds = time.perf_counter() - started
    assert [score.status for score in scores] == ["correct", *["timeout"] * 32, "correct"]
    assert all(score.is_missing for score in scores[1:-1])
    assert seconds < 5 * (1.5 + 5.0) / 2  # five different comparisons, up to 5 s for a start


def test_a_comparison_that_raises_is_missing_and_the_others_are_scored(reward):
    """B023."""
    golds = ["7", "1 < x < 3", "\\frac{1}{2}", "7"]
    answers = ["7", "1 < x < 3 < y", "0.5", "8"]
    scores = reward.score([f"\\boxed{{{answer}}}" for answer in answers], golds)
    assert [score.status for score in scores] == ["correct", "error", "correct", "wrong"]
    assert [score.is_missing for score in scores] == [False, True, False, False]


@pytest.mark.parametrize("gold", ["", "???", "no answer", "see the solution", "\\frac{1}{", "[]", []])
def test_a_gold_that_is_no_answer_rewards_nothing(reward, gold):
    """B024, second half."""
    for text in ("\\boxed{999}", f"\\boxed{{{gold}}}"):
        (score,) = reward.score([text], [gold])
        assert score.value != 1.0
    (score,) = reward.score(["\\boxed{999}"], [gold])
    assert (score.status, score.is_missing) == ("bad_gold", True)


def test_a_bare_gold_is_read(reward):
    """B024, first half."""
    _check(reward, "6", "\\boxed{999}", "wrong")
    _check(reward, "6", "\\boxed{6}", "correct")


@pytest.mark.parametrize(
    "text", ["", "nothing", "<answer></answer>", "2", "\\boxed{2}", "\\boxed{04}", "\\boxed{2045}"]
)
def test_parts_of_the_gold_are_not_the_gold(reward, text):
    """B026."""
    (score,) = reward.score([text], ["204"])
    assert score.value == 0.0


def test_the_token_limit(reward):
    texts = ["no answer yet", "The answer is 12", "The answer is 12.", "\\boxed{12}", "\\boxed{12", None]
    scores = reward.score(texts, ["12"] * 6, ["length"] * 6)
    assert [score.status for score in scores] == [
        "truncated", "truncated", "correct", "correct", "no_answer", "truncated"
    ]  # fmt: skip
    assert [score.value for score in scores] == [0.0, 0.0, 1.0, 1.0, 0.0, 0.0]
    assert reward.score(texts[:1], ["12"], ["stop"])[0].status == "no_answer"


def test_tags_mean_nothing_without_a_thinking_format(reward):
    _check(reward, "14", "<think>I think \\boxed{14} but let me", "correct")


def test_alternatives_and_what_an_unreadable_one_means(reward):
    responses = ["\\boxed{3}", "\\boxed{0.5}", "\\boxed{4}"]
    scores = reward.score(responses, [["3", "\\frac{1}{2}"]] * 3)
    assert [score.status for score in scores] == ["correct", "correct", "wrong"]
    scores = reward.score(responses, [["3", "???"]] * 3)
    assert [score.status for score in scores] == ["correct", "bad_gold", "bad_gold"]


def test_an_endless_answer_is_wrong(reward):
    _check(reward, "\\frac{1}{2}", "\\boxed{" + "1+" * 5000 + "1}", "wrong")


def test_values_are_settings():
    values = [
        score.value for score in MathReward(correct=2.0, wrong=-1.0).score(["\\boxed{7}", "\\boxed{8}", ""], ["7"] * 3)
    ]
    assert values == [2.0, -1.0, -1.0]


def test_integers_start_no_process():
    fresh = MathReward()
    fresh.score(["\\boxed{7}", "\\boxed{x}", "", "\\boxed{C}"], ["7", "7", "\\frac{1}{2}", "C"])
    assert fresh._pool._workers == []


def test_copies_and_subclasses(reward):
    assert isinstance(reward, Reward)
    clone = copy.deepcopy(reward)
    _check(clone, "\\frac{1}{2}", "\\boxed{0.5}", "correct")
    clone.close()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"think_tags": "<think>"}, "think_tags"),
        ({"think_tags": ("a",)}, "think_tags"),
        ({"think_tags": ("a", "a")}, "think_tags"),
        ({"think_tags": ("a", "")}, "think_tags"),
        ({"correct": 0.0}, "correct"),
        ({"wrong": math.nan}, "wrong"),
        ({"timeout_seconds": 0.0}, "timeout_seconds"),
        ({"num_workers": 0}, "num_workers"),
        ({"memory_gib": 0.1}, "memory_gib"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        MathReward(**settings)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((["a"], ["1", "2"]), "answers has 2 entries for 1"),
        ((["a"], "1"), "answers must be a list"),
        (("a", ["1"]), "responses must be a list"),
        ((["a"], ["1"], []), "finish_reasons has 0"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(reward, arguments, message):
    with pytest.raises(InputError, match=message):
        reward.score(*arguments)


def test_an_empty_batch(reward):
    assert reward.score([], []) == []


def test_it_is_built_from_plain_yaml_values():
    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(Reward, "reward")
    given = {
        "class_path": "bapo_lightning.rewards.MathReward",
        "init_args": {"think_tags": ["<a>", "</a>"], "wrong": -1},
    }
    built = parser.instantiate(parser.parse_object({"reward": given})).reward
    assert (built.think_tags, built.wrong, built.correct) == (("<a>", "</a>"), -1.0, 1.0)


@pytest.mark.parametrize(("name", "rows"), [("aime24", 30), ("aime25", 30), ("amc2023", 40), ("math500", 500)])
def test_benchmark_golds_match_themselves_and_not_their_neighbours(reward, shared_dir, name, rows):
    lines = (shared_dir / "data" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    golds = [json.loads(line)["answer"] for line in lines]
    assert len(golds) == rows
    scores = reward.score([f"So it is $\\boxed{{{gold}}}$." for gold in golds], golds)
    assert [(gold, score) for gold, score in zip(golds, scores, strict=True) if score.status != "correct"] == []
    neighbours = golds[1:] + golds[:1]
    scores = reward.score([f"So it is $\\boxed{{{gold}}}$." for gold in neighbours], golds)
    assert {score.status for score in scores} <= {"correct", "wrong"}
    # Equal neighbours (5 and x=5 among them) are the only ones that may be right.
    equal = [gold.removeprefix("x=") == other.removeprefix("x=") for gold, other in zip(golds, neighbours, strict=True)]
    assert [score.status == "correct" for score in scores] == equal
