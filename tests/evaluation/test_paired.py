"""Paired comparisons with known answers."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bapo_lightning.errors import InputError
from bapo_lightning.evaluation import compare_paired


@pytest.mark.parametrize(
    ("first", "second", "p_value"),
    [
        # All five better: of 2^5 flips two are as large.
        ([0.0] * 5, [1.0] * 5, 2 / 32),
        ([0.0] * 6, [1.0] * 6, 2 / 64),
        # +1 and -1: every flip is at least as large as 0.
        ([0.0, 1.0], [1.0, 0.0], 1.0),
        # 3 up, 1 down: sums 4, 2, 0, -2, -4 with weights 1, 4, 6, 4, 1; |sum| >= 2 in 10 of 16.
        ([0, 0, 0, 1], [1, 1, 1, 0], 10 / 16),
        # Problems that do not differ change nothing.
        ([0, 0, 0, 1, 0.5, 1], [1, 1, 1, 0, 0.5, 1], 10 / 16),
        ([0.3, 0.4], [0.3, 0.4], 1.0),
        # Sizes 0.5 and 0.25: flips ±0.75, ±0.25; all of 4 reach 0.25, two reach 0.75.
        ([0.0, 0.0], [0.5, 0.25], 2 / 4),
        ([0.0, 0.25], [0.5, 0.0], 1.0),
    ],
)
def test_p_values_by_counting(first, second, p_value):
    assert compare_paired(first, second).p_value == p_value


def test_random_flips_agree_with_the_exact_count():
    """18 problems differ, 14 of them upwards: P(|2 X - 18| >= 10) for X ~ B(18, 1/2)."""
    first, second = [0.0] * 14 + [1.0] * 4, [1.0] * 14 + [0.0] * 4
    exact = 2 * (3060 + 816 + 153 + 18 + 1) / 2**18  # C(18, 4) + C(18, 3) + … + 1 on each side
    assert compare_paired(first, second).p_value == pytest.approx(exact, abs=3 * (exact / 100_000) ** 0.5)
    # No flip is larger than all 40 in one direction; p is never 0.
    assert compare_paired([0.0] * 40, [1.0] * 40).p_value == pytest.approx(1 / 100_001)


def test_thirty_problems_and_one_more_solved_cannot_be_told_apart():
    first = [1.0, 1.0] + [0.0] * 28
    second = [1.0, 1.0, 1.0] + [0.0] * 27
    found = compare_paired(first, second)
    assert (found.first, found.second) == (pytest.approx(2 / 30), pytest.approx(3 / 30))
    assert found.p_value == 1.0
    assert not found.is_told_apart
    assert found.interval.low == 0.0
    # Spread of one 1 among 30: variance (29/30)/29 = 1/30; 1.96 · sqrt(1/900) = 0.0653.
    assert found.detectable == pytest.approx(1.959964 / 30)


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=8))
def test_the_other_way_round_is_the_mirror(pairs):
    first, second = zip(*pairs, strict=True)
    there, back = compare_paired(first, second), compare_paired(second, first)
    assert there.p_value == back.p_value
    assert there.difference == pytest.approx(-back.difference)
    assert there.interval.low == pytest.approx(-back.interval.high, abs=0.05)
    assert 0 < there.p_value <= 1


@given(st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.25, 1.0]), min_size=1, max_size=7))
def test_exact_p_values_are_the_enumeration(differences):
    seen = abs(sum(differences))
    flips = [
        abs(sum(s * d for s, d in zip(signs, differences, strict=True)))
        for signs in itertools.product((1, -1), repeat=len(differences))
    ]
    expected = sum(total >= seen for total in flips) / len(flips)
    assert compare_paired([0.0] * len(differences), differences).p_value == pytest.approx(expected)


def test_what_cannot_be_paired_is_refused():
    with pytest.raises(InputError, match="1 scores and 2 scores"):
        compare_paired([1.0], [1.0, 0.0])
    with pytest.raises(InputError, match="no problem"):
        compare_paired([], [])
