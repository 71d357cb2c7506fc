"""avg@k, pass@k and maj@k against hand-worked numbers (cases B141-B143)."""

import math
import time
from fractions import Fraction
from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bapo_lightning.errors import InputError
from bapo_lightning.evaluation import AverageAtK, MajorityAtK, PassAtK, PassHatK, pass_at_k, pass_hat_k

ALL = [AverageAtK, PassAtK, MajorityAtK]


def value(metric, *args, **kwargs):
    metric.update(*args, **kwargs)
    return metric.compute().item()


@pytest.mark.parametrize(
    ("n", "c", "k", "expected"),
    [(4, 1, 1, 0.25), (4, 1, 2, 0.5), (4, 1, 4, 1.0), (32, 8, 1, 0.25), (5, 0, 3, 0.0), (5, 5, 5, 1.0)],
)
def test_pass_at_k_numbers(n, c, k, expected):
    """B143: closed form."""
    assert pass_at_k(n, c, k) == expected


def test_pass_at_k_of_32_samples():
    """B143: n = 32, c = 8, k = 4 is 1 - (24·23·22·21)/(32·31·30·29)."""
    assert pass_at_k(32, 8, 4) == pytest.approx(1 - 255024 / 863040, abs=1e-15)
    assert round(pass_at_k(32, 8, 4), 4) == 0.7045


def test_pass_at_k_is_the_mean_over_all_subsets():
    for n in range(1, 7):
        for c in range(n + 1):
            samples = [True] * c + [False] * (n - c)
            for k in range(1, n + 1):
                subsets = list(combinations(samples, k))
                assert pass_at_k(n, c, k) == float(Fraction(sum(map(any, subsets)), len(subsets)))


def test_pass_at_k_is_stable_and_quick_for_many_samples():
    start = time.perf_counter()
    # One correct sample among n is drawn with probability k/n, however large the binomials are.
    for k in (1, 16, 5000, 9999, 10_000):
        assert pass_at_k(10_000, 1, k) == pytest.approx(k / 10_000, rel=1e-15)
    assert pass_at_k(10_000, 5_000, 16) == pytest.approx(1 - math.prod((5000 - i) / (10_000 - i) for i in range(16)))
    assert pass_at_k(10_000, 9_999, 2) == 1.0
    assert time.perf_counter() - start < 1


@given(st.integers(1, 300).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_grows_with_k_and_starts_at_the_mean(counts):
    n, c, k = counts
    assert pass_at_k(n, c, 1) == pytest.approx(c / n, rel=1e-15)
    assert 0 <= pass_at_k(n, c, 1) <= pass_at_k(n, c, k) <= pass_at_k(n, c, n) <= 1


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ((4, 1, 5), "k must lie in 1"),
        ((4, 1, 0), "k must"),
        ((0, 0, 1), "n must"),
        ((4, 5, 1), "c, the number"),
    ],
)
def test_pass_at_k_refuses_impossible_counts(counts, message):
    with pytest.raises(InputError, match=message):
        pass_at_k(*counts)


def test_every_sample_counts():
    """B142: correct [[0, 1], [1, 1]] gives avg@2 .75 and pass@2 1."""
    ids, correct = ["a", "a", "b", "b"], [0, 1, 1, 1]
    assert value(AverageAtK(2), ids, correct) == 0.75
    assert value(PassAtK(2), ids, correct) == 1.0
    assert value(PassAtK(1), ids, correct) == 0.75


@pytest.mark.parametrize("correct", [[[0, 1], [1, 1]], torch.tensor([[0, 1], [1, 1]])])
def test_a_row_of_verdicts_per_problem(correct):
    """B142, given as a table."""
    assert value(AverageAtK(2), [10, 20], correct) == 0.75
    assert value(PassAtK(2), torch.tensor([10, 20]), correct) == 1.0


def test_problems_weigh_the_same():
    metric = AverageAtK(1)
    assert value(metric, ["a", "a", "a", "b"], [1, 1, 1, 0]) == 0.5


def test_average_over_all_samples_is_pass_at_1():
    """B143: avg@n = pass@1."""
    correct = [True] * 8 + [False] * 24
    assert value(AverageAtK(32), ["p"] * 32, correct) == value(PassAtK(1), ["p"] * 32, correct) == 0.25
    assert value(PassAtK(4), ["p"] * 32, correct) == pytest.approx(0.7045, abs=5e-5)


@pytest.mark.parametrize("metric_class", ALL)
def test_padding_repeats_change_nothing(metric_class):
    """B141: 30 problems, only 0 and 1 solved, dealt to 4 ranks with two padded repeats: 2/30."""
    order = [*range(30), 0, 1]
    metrics = [metric_class(1) for _ in range(4)]
    for rank, metric in enumerate(metrics):
        mine = order[rank::4]
        metric.update(mine, [i < 2 for i in mine], [0] * len(mine), [str(i) for i in mine])
    for other in metrics[1:]:
        metrics[0].merge_state(other)
    assert metrics[0].compute().item() == pytest.approx(2 / 30)
    assert metrics[0].coverage() == {"problems": 30, "samples": 30, "missing": 0}


def test_repeats_inside_one_rank_change_nothing():
    """B141 with k = 2: a repeated (problem, sample) pair is one sample."""
    ids, correct, index = ["a", "a", "b", "b"], [1, 0, 0, 0], [0, 1, 0, 1]
    for metric_class in (AverageAtK, PassAtK):
        plain, padded = metric_class(2), metric_class(2)
        plain.update(ids, correct, index)
        padded.update(ids + ids[:1] * 3, correct + correct[:1] * 3, index + [0] * 3)
        assert plain.compute() == padded.compute()
        assert padded.coverage()["samples"] == 4


def test_samples_without_index_are_numbered_over_updates():
    metric = AverageAtK(2)
    metric.update(["a", "b"], [1, 0])
    metric.update(["b", "a"], [1, 1])
    assert metric.compute().item() == 0.75
    assert metric.coverage() == {"problems": 2, "samples": 4, "missing": 0}


def test_further_samples_are_not_looked_at_by_average():
    assert value(AverageAtK(2), ["a"] * 4, [1, 1, 0, 0], [2, 3, 0, 1]) == 0.0


def test_missing_verdicts_are_left_out_and_counted():
    ids = ["a", "a", "a", "a", "b", "b", "b", "b", "c", "c", "c", "c"]
    nan = float("nan")
    correct = [1, 0, None, nan, 0, 1, 0, 0, None, None, nan, None]
    metric = AverageAtK(4)
    # a: 1 of 2; b: 1 of 4; c says nothing.
    assert value(metric, ids, correct) == pytest.approx((1 / 2 + 1 / 4) / 2)
    assert metric.coverage() == {"problems": 3, "samples": 12, "missing": 6}
    # a: 2 of 2 drawn, solved; b: 3 of 4 drawn with one correct.
    assert value(PassAtK(3), ids, correct) == pytest.approx((1 + 3 / 4) / 2)


def test_a_verdict_replaces_a_missing_one_in_any_order():
    for correct in ([None, 1], [1, None]):
        metric = AverageAtK(1)
        assert value(metric, ["a", "a"], correct, [0, 0]) == 1.0
        assert metric.coverage() == {"problems": 1, "samples": 1, "missing": 0}


@pytest.mark.parametrize(
    ("answers", "correct", "expected"),
    [
        (["5", "5", "7"], [1, 1, 0], 1.0),
        (["5", "7", "7"], [1, 0, 0], 0.0),
        (["5", "7", None], [1, 0, 0], 0.5),  # a tie
        ([None, None, "7"], [0, 0, 1], 1.0),  # no answer, no vote
        ([None, None, None], [0, 0, 0], 0.0),
        (["5", "7", "7"], [1, None, None], 1.0),  # missing verdicts have no vote
    ],
)
def test_majority(answers, correct, expected):
    assert value(MajorityAtK(3), ["p"] * 3, correct, [0, 1, 2], answers) == expected


def test_majority_averages_over_problems_and_ignores_samples_past_k():
    metric = MajorityAtK(3)
    answers = ["1", "1", "2", "2", "2", "3", "3", "4"]
    correct = [1, 1, 0, 0, 0, 0, 0, 1]
    # First three of p: 1, 1, 2; of q: 3, 3, 4.
    assert value(metric, ["p"] * 5 + ["q"] * 3, correct, [0, 1, 2, 3, 4, 0, 1, 2], answers) == 0.5


def test_majority_without_answers_is_refused():
    with pytest.raises(InputError, match="pass answers"):
        value(MajorityAtK(1), ["p"], [1])


@pytest.mark.parametrize("metric_class", ALL)
def test_nothing_to_average_is_nan_and_empty_updates_are_welcome(metric_class):
    metric = metric_class(2)
    metric.update([], [], [], [])
    assert math.isnan(metric.compute())
    metric.update(["a", "a"], [None, None])
    assert math.isnan(metric.compute())


@pytest.mark.parametrize("metric_class", ALL)
def test_mistakes_are_refused(metric_class):
    with pytest.raises(InputError, match="k must be at least 1"):
        metric_class(0)
    with pytest.raises(InputError, match="correct has 1 entries but problem_ids has 2"):
        metric_class(1).update([1, 2], [True])
    with pytest.raises(InputError, match=r"got 0\.5"):
        metric_class(1).update([1], [0.5])
    with pytest.raises(InputError, match="only 1 samples"):
        value(metric_class(2), ["a"], [0])
    with pytest.raises(InputError, match="two verdicts"):
        value(metric_class(1), ["a", "a"], [0, 1], [0, 0], ["x", "x"])


def test_number_and_text_ids_are_different_problems():
    assert value(AverageAtK(1), [1, "1", -1, 2**70], [1, 0, 0, 0]) == 0.25


def test_reset_and_forward():
    metric = AverageAtK(2)
    metric.update(["a", "a"], [1, 1])
    assert metric(["b", "b"], [0, 0]).item() == 0.0  # forward: this batch only
    assert metric.compute().item() == 0.5
    metric.reset()
    assert value(metric, ["a", "a"], [0, 1]) == 0.5


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from([0, 1, None]), min_size=3, max_size=3), min_size=1, max_size=6),
    st.integers(1, 4),
    st.randoms(use_true_random=False),
)
def test_any_deal_to_ranks_gives_the_same_score(table, world_size, random):
    """B141: order, number of ranks and repeats never change a score."""
    rows = [
        (f"p{p}", s, verdict, f"{p + s * (verdict or 2)}")
        for p, samples in enumerate(table)
        for s, verdict in enumerate(samples)
    ]
    dealt = rows + random.choices(rows, k=5)
    random.shuffle(dealt)
    for metric_class in ALL:
        whole, parts = metric_class(3), [metric_class(3) for _ in range(world_size)]
        for metric, mine in [(whole, rows), *((part, dealt[i::world_size]) for i, part in enumerate(parts))]:
            ids, index, correct, answers = zip(*mine, strict=True) if mine else ((), (), (), ())
            metric.update(ids, correct, index, answers)
        for other in parts[1:]:
            parts[0].merge_state(other)
        # Sums run in another order: equal up to rounding.
        torch.testing.assert_close(parts[0].compute(), whole.compute(), equal_nan=True)


def test_pass_hat_k_is_the_share_of_subsets_that_are_all_correct():
    """Every (n, c, k) up to n = 7, against the enumeration of all subsets."""
    for n in range(1, 8):
        for c in range(n + 1):
            for k in range(1, n + 1):
                subsets = list(combinations([i < c for i in range(n)], k))
                assert pass_hat_k(n, c, k) == float(Fraction(sum(map(all, subsets)), len(subsets)))


def test_pass_hat_k_over_problems():
    metric = PassHatK(2)
    metric.update([0, 1, 2], [[1, 1, 1], [1, 1, 0], [1, None, 0]])
    # 1, 1/3, and of two verdicts one is wrong: 0.
    assert float(metric.compute()) == pytest.approx((1 + 1 / 3 + 0) / 3)
    with pytest.raises(InputError, match="pass\\^k: k must lie in 1 … n = 2, got 3"):
        pass_hat_k(2, 1, 3)
