"""Terms of a combined reward, each by hand."""

import math
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reward_trajectories import respond

from bapo_lightning.errors import InputError
from bapo_lightning.rewards import (
    AnswerFormat,
    CosineLength,
    LanguageConsistency,
    LengthPenalty,
    PythonFunction,
    Repetition,
    SoftOverlong,
)


@pytest.mark.parametrize(
    ("num_tokens", "value"),
    # DAPO Eq. 13 at L_max = 20480, L_cache = 4096: free until 16384.
    [(0, 0.0), (16384, 0.0), (16385, -1 / 4096), (18432, -0.5), (20480, -1.0), (20481, -1.0), (30000, -1.0)],
)
def test_soft_overlong_is_eq_13_of_dapo(num_tokens, value):
    assert SoftOverlong(20480, 4096).values([respond(num_tokens=num_tokens)]) == [value]


@given(st.integers(1, 60), st.integers(1, 60), st.lists(st.integers(0, 90), min_size=2, max_size=6).map(sorted))
def test_soft_overlong_never_rises_with_length(max_tokens, cache_tokens, lengths):
    if cache_tokens > max_tokens:
        with pytest.raises(InputError, match="cache_tokens"):
            SoftOverlong(max_tokens, cache_tokens)
        return
    values = SoftOverlong(max_tokens, cache_tokens).values([respond(num_tokens=n) for n in lengths])
    assert values == sorted(values, reverse=True)
    assert all(-1.0 <= v <= 0.0 for v in values)


def test_length_penalty_asks_brevity_of_correct_responses():
    right, wrong = respond(num_tokens=25), respond(num_tokens=25, status="wrong")
    assert LengthPenalty(100).values([right, wrong]) == [-0.25, 0.0]
    assert LengthPenalty(100, correct_only=False).values([right, wrong]) == [-0.25, -0.25]


def test_cosine_length_runs_from_end_to_end():
    term = CosineLength(100)
    right = [term.values([respond(num_tokens=n)])[0] for n in (0, 50, 100)]
    wrong = [term.values([respond(num_tokens=n, status="wrong")])[0] for n in (0, 50, 100)]
    assert right == pytest.approx([2.0, 1.5, 1.0])
    assert wrong == pytest.approx([-10.0, -5.0, 0.0])
    # A quarter of the way: 1 + 0.5 · (1 + cos 45°) = 1.853553…
    assert term.values([respond(num_tokens=25)]) == pytest.approx([1.5 + 0.25 * math.sqrt(2)])
    assert term.values([respond(num_tokens=101), respond(num_tokens=5, finish_reason="length")]) == [-10.0, -10.0]
    assert math.isnan(term.values([respond(num_tokens=5, status="bad_gold")])[0])


@pytest.mark.parametrize(
    ("ngram", "ids", "value"),
    [
        (1, [1, 1, 1, 1], -0.75),
        (2, [1, 2, 1, 2, 1], -0.5),  # 12 21 12 21: two of four came before
        (3, [1, 2, 3, 4], 0.0),
        (3, [1, 2], 0.0),
        (5, [7] * 9, -0.8),  # five windows, one kind
        (2, [], 0.0),
    ],
)
def test_repetition_by_hand(ngram, ids, value):
    assert Repetition(ngram).values([respond(ids=ids)]) == pytest.approx([value])


@given(st.integers(1, 9), st.lists(st.integers(0, 2), max_size=40))
def test_repetition_counts_distinct_windows(ngram, ids):
    windows = [tuple(ids[i : i + ngram]) for i in range(len(ids) - ngram + 1)]
    expected = -(1 - len(set(windows)) / len(windows)) if windows else 0.0
    assert Repetition(ngram).values([respond(ids=ids)]) == pytest.approx([expected])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r"So \boxed{4}", 1.0),
        (r"So \boxed{4", 0.0),
        (r"So \boxed{}", 0.0),
        (r"\boxed{3} then \boxed{4", 0.0),
        ("So 4", 0.0),
    ],
)
def test_a_boxed_answer_is_asked_for(text, value):
    assert AnswerFormat().values([respond(text)]) == [value]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r"<think>hm</think> \boxed{4}", 1.0),
        (r"hm</think> \boxed{4}", 1.0),  # the template opened the thought
        (r"<think>hm \boxed{4}", 0.0),
        (r"<think>\boxed{4}</think> done", 0.0),
        (r"<think>a</think><think>b</think> \boxed{4}", 0.0),
        (r"First. <think>a</think> \boxed{4}", 0.0),
        (r"\boxed{4}", 0.0),
    ],
)
def test_one_thought_then_the_answer(text, value):
    assert AnswerFormat(("<think>", "</think>")).values([respond(text)]) == [value]


def test_a_response_that_was_cut_off_has_not_kept_the_form():
    assert AnswerFormat().values([respond(r"\boxed{4}", finish_reason="length")]) == [0.0]


def test_thought_alone():
    term = AnswerFormat(("<think>", "</think>"), box=False)
    assert term.values([respond("<think>a</think> 4"), respond("<think>a</think> ")]) == [1.0, 0.0]


@pytest.mark.parametrize(
    ("script", "text", "value"),
    [
        ("latin", "We add, so it is fünf.", 1.0),
        ("latin", "ab 你好", 0.5),
        ("latin", r"angle $\alpha + β$ is 4", 1.0),  # formulas do not count
        ("latin", "12 + 3", 1.0),  # no letters, nothing to mix
        ("han", "所以答案是 x", 5 / 6),
        ("japanese", "答えは", 1.0),
        ("cyrillic", "ответ ok", 5 / 7),
    ],
)
def test_share_of_letters_in_the_script(script, text, value):
    assert LanguageConsistency(script).values([respond(text)]) == pytest.approx([value])


def test_an_unknown_script_is_refused():
    with pytest.raises(InputError, match="klingon"):
        LanguageConsistency("klingon")


# --- the user's own function ---------------------------------------------------------------------------------------


@pytest.fixture
def functions(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "def brief(response, num_tokens):\n    return num_tokens - len(response)\n"
        "def everything(**about):\n    return len(about)\n"
        "def batch(response, answer):\n    return [float(a in r) for r, a in zip(response, answer)]\n"
        "def short(response):\n    return [1.0]\n"
        "def cannot(response):\n    return None if response == 'a' else 1 / len(response)\n"
        "def odd(respnse):\n    return 0\n"
        "def words(response):\n    return 'good'\n"
        "async def later(response):\n    return 0\n"
        "NUMBER = 3\n"
    )
    return lambda name, **options: PythonFunction(f"{path}:{name}", **options)


def test_a_function_gets_what_it_names(functions):
    term = functions("brief")
    assert term.values([respond("four", num_tokens=9)]) == [5.0]
    assert functions("everything").values([respond()]) == [7.0]
    assert pickle.loads(pickle.dumps(term)).values([respond("four", num_tokens=9)]) == [5.0]


def test_a_batch_function_gets_lists(functions):
    assert functions("batch", batch=True).values([respond("it is 4"), respond("5")]) == [1.0, 0.0]
    assert functions("batch", batch=True).values([]) == []


def test_what_a_function_cannot_tell_is_missing(functions, caplog):
    values = functions("cannot").values([respond("a"), respond("bb"), respond("")])
    assert math.isnan(values[0])
    assert values[1] == 0.5
    assert math.isnan(values[2])
    assert "ZeroDivisionError" in caplog.text
    assert "1 of 3 responses" in caplog.text


def test_a_batch_function_that_raises_costs_its_batch(functions, caplog):
    # `brief` subtracts lists.
    assert all(map(math.isnan, functions("brief", batch=True).values([respond("a"), respond("b")])))
    assert "TypeError" in caplog.text


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("odd", {}, "asks for 'respnse'; it can have response, answer"),
        ("later", {}, "not a plain function"),
        ("NUMBER", {}, "not a plain function"),
        ("nothing", {}, "nothing"),
        ("words", {}, "must return a number, got good"),
        ("short", {"batch": True}, "one number for each of 2 responses"),
    ],
)
def test_mistakes_in_functions_are_named(functions, name, options, message):
    with pytest.raises(InputError, match=message):
        functions(name, **options).values([respond("a"), respond("b")])


@pytest.mark.parametrize("function", ["nothing_like_this:f", "mine.py", "no/such/file.py:f", ":f", "os:"])
def test_functions_that_are_nowhere(function):
    with pytest.raises(InputError, match=r"data\.reward"):
        PythonFunction(function)
