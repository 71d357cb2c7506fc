"""Candidates, path, measures and stopping, by hand."""

import math

import pytest

from bapo_lightning.clipping.bapo_search import best_positions, candidate_bounds, measure_balance, search, search_path


def test_paper_grid_keeps_its_last_steps_and_reads_as_decimals():
    low = candidate_bounds(0.6, 0.9, 0.02, clamp_last_step=False)
    high = candidate_bounds(1.2, 3.0, 0.05, clamp_last_step=False)
    assert (len(low), low[0], low[1], low[-1]) == (16, 0.6, 0.62, 0.9)
    assert (len(high), high[0], high[1], high[-1]) == (37, 1.2, 1.25, 3.0)
    assert low == [round(0.6 + 0.02 * step, 2) for step in range(16)]
    assert high == [round(1.2 + 0.05 * step, 2) for step in range(37)]


@pytest.mark.parametrize(
    ("clamp", "expected"), [(False, [0.6, 0.7, 0.8]), (True, [0.6, 0.7, 0.8, 0.85])], ids=["whole", "clamped"]
)
def test_range_that_is_not_a_whole_number_of_steps(clamp, expected):
    assert candidate_bounds(0.6, 0.85, 0.1, clamp_last_step=clamp) == expected


def test_step_longer_than_the_range():
    assert candidate_bounds(0.6, 0.7, 0.5, clamp_last_step=False) == [0.6]
    assert candidate_bounds(0.6, 0.7, 0.5, clamp_last_step=True) == [0.6, 0.7]


@pytest.mark.parametrize("count", [3, 7, 9, 11])
def test_step_that_was_computed_keeps_its_last_step(count):
    bounds = candidate_bounds(1.2, 1.5, 0.3 / count, clamp_last_step=False)
    assert len(bounds) == count + 1
    assert bounds[-1] == 1.5


def test_range_without_length_has_one_candidate():
    assert candidate_bounds(0.8, 0.8, 0.0, clamp_last_step=True) == [0.8]


def test_path_moves_one_bound_to_its_end_and_then_the_other():
    assert search_path(2, 3, "high_first") == [(0, 0), (0, 1), (0, 2), (1, 2)]
    assert search_path(2, 3, "low_first") == [(0, 0), (1, 0), (1, 1), (1, 2)]


@pytest.mark.parametrize(
    ("positive", "negative", "share", "pos_neg", "signed"),
    [
        (1.0, 2.0, 1 / 3, 0.5, 1.0),
        (3.0, 1.0, 0.75, 3.0, 1.5),
        (2.0, 2.0, 0.5, 1.0, math.inf),
        (1.0, 0.0, 1.0, math.inf, 1.0),
        (0.0, 2.0, 0.0, 0.0, 0.0),
    ],
)
def test_measures(positive, negative, share, pos_neg, signed):
    expected = {"share": share, "pos_neg": pos_neg, "signed": signed}
    for measure, value in expected.items():
        assert measure_balance(positive, negative, measure, share_of_nothing=0.0) == pytest.approx(value)


@pytest.mark.parametrize("measure", ["share", "pos_neg", "signed"])
def test_nothing_over_nothing_is_never_nan(measure):
    assert measure_balance(0.0, 0.0, measure, share_of_nothing=0.0) == 0.0
    assert measure_balance(0.0, 0.0, measure, share_of_nothing=1.0) >= 1.0


def test_epsilon_of_pos_neg():
    assert measure_balance(1.0, 1.0, "pos_neg", share_of_nothing=0.0, epsilon=1.0) == 0.5
    assert measure_balance(1.0, 0.0, "pos_neg", share_of_nothing=0.0, epsilon=1.0) == math.inf


def test_search_stops_at_the_first_hit_even_if_a_later_one_is_lower():
    measures = {(0, 0): 0.1, (0, 1): 0.5, (1, 1): 0.2}
    found = search(search_path(2, 2, "high_first"), measures.__getitem__, 0.5, list(measures))
    assert (found.position, found.steps, found.measure) == ((0, 1), 1, 0.5)
    assert not found.saturated
    assert found.reachable


def test_search_tells_a_target_missed_by_its_order_from_one_out_of_reach():
    measures = {(0, 0): 0.1, (0, 1): 0.5, (1, 0): 0.05, (1, 1): 0.2}
    missed = search(search_path(2, 2, "low_first"), measures.__getitem__, 0.5, list(measures))
    assert (missed.position, missed.steps, missed.saturated, missed.reachable) == ((1, 1), 2, True, True)
    out_of_reach = search(search_path(2, 2, "low_first"), measures.__getitem__, 0.6, list(measures))
    assert (out_of_reach.saturated, out_of_reach.reachable) == (True, False)


def test_tie_does_not_depend_on_the_order_of_a_sum():
    """Forward, 0.1 + 0.2 + 0.3 is a last digit above 0.6."""
    negative = 0.1 + 0.2 + 0.3
    assert 0.6 / (0.6 + negative) < 0.5
    found = search([(0, 0), (0, 1)], lambda _: 0.6 / (0.6 + negative), 0.5, [(0, 1)])
    assert found.steps == 0


@pytest.mark.parametrize("measure", ["share", "pos_neg", "signed"])
def test_the_largest_measure_is_at_a_best_position(measure):
    """Against all pairs; nothing is assumed about their order."""
    positive, negative = [0.2, 0.9, 0.5], [0.7, 0.4, 0.6]
    at = {
        (j, k): measure_balance(positive[k], negative[j], measure, share_of_nothing=0.0)
        for j in range(3)
        for k in range(3)
    }
    assert max(at[position] for position in best_positions(positive, negative, measure)) == max(at.values())
