"""Intervals of benchmark scores, against distributions that are known."""

from math import comb

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bapo_lightning.errors import InputError
from bapo_lightning.evaluation.intervals import problem_interval, sampling_interval


def binomial_quantiles(n, c):
    """The mean of n problems drawn with replacement from n of which c are solved: Binomial(n, c/n) / n."""
    p, total, found = c / n, 0.0, []
    for k in range(n + 1):
        total += comb(n, k) * p**k * (1 - p) ** (n - k)
        while len(found) < 2 and total >= (0.025, 0.975)[len(found)]:
            found.append(k / n)
    return found


@pytest.mark.parametrize(("n", "c"), [(30, 2), (30, 15), (40, 33), (500, 400)])
def test_solved_or_not_is_binomial(n, c):
    """The quantiles of a bootstrap of zeros and ones are those of a binomial distribution, up to one problem."""
    low, high = problem_interval([1.0] * c + [0.0] * (n - c))
    expected = binomial_quantiles(n, c)
    assert low == pytest.approx(expected[0], abs=1.01 / n)
    assert high == pytest.approx(expected[1], abs=1.01 / n)


def test_thirty_problems_cannot_tell_much():
    """AIME: 2 of 30 solved is .067, and anything up to .17 is as likely to be seen."""
    low, high = problem_interval([1.0] * 2 + [0.0] * 28)
    assert low == 0.0
    assert 0.13 <= high <= 0.20


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40), st.integers(0, 5))
@settings(max_examples=15, deadline=None)
def test_it_holds_the_score_and_repeats(scores, seed):
    low, high = problem_interval(scores, seed)
    assert min(scores) - 1e-9 <= low <= high <= max(scores) + 1e-9
    assert (low, high) == problem_interval(scores, seed)


def test_few_or_no_problems():
    assert problem_interval([]) is None
    assert problem_interval([0.25]) == (0.25, 0.25)


def test_the_spread_of_the_samples_by_hand():
    """30 problems, half of 16 samples right each: variance .5 × .5 / 15 a problem, / 30 for the mean."""
    low, high = sampling_interval([8] * 30, [16] * 30)
    half = 1.959964 * (0.25 / 15 / 30) ** 0.5
    assert (low, high) == pytest.approx((0.5 - half, 0.5 + half))
    # Without spread within problems another set of samples would give the same, whatever the problems.
    assert sampling_interval([16, 0], [16, 16]) == (0.5, 0.5)


def test_one_sample_a_problem_says_nothing_about_the_spread():
    assert sampling_interval([1, 0], [1, 1]) is None
    assert sampling_interval([], []) is None
    assert sampling_interval([0, 2], [0, 4]) == pytest.approx(sampling_interval([2], [4]))
    with pytest.raises(InputError, match="2 counts"):
        sampling_interval([1, 2], [4])
