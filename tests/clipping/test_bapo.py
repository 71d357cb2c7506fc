"""BAPO's bounds: cases worked out by hand, and a search by plain steps."""

import itertools
import math

import pytest
import torch
from clip_batches import Batch, batches, by_hand
from hypothesis import given, settings

from bapo_lightning.clipping import BAPOClip
from bapo_lightning.errors import InputError

ROW_X = by_hand([1.0, 2.0, 0.5, 0.7, 1.0], [1.0, 1.0, -1.0, -1.0, -1.0])


def bounds_of(batch: Batch, **options):
    return BAPOClip(**{"weighting": "none", **options}).bounds(*batch.inputs())


def test_defaults_are_the_papers():
    """B080: rho0 .4, lower .6-.9 by .02, upper 1.2-3.0 by .05; value, rollout_prob, high_first, share."""
    assert repr(BAPOClip()) == (
        "BAPOClip(target=0.4, low_start=0.6, low_max=0.9, low_step=0.02, high_start=1.2, high_max=3.0, "
        "high_step=0.05, contribution='value', weighting='rollout_prob', order='high_first', "
        "measure='share', dual_clip=None, clamp_last_step=False, pos_neg_epsilon=0.0)"
    )


@pytest.mark.parametrize(
    ("target", "low", "high", "steps", "share"),
    [(0.49, 0.60, 1.25, 1, 0.4945), (0.55, 0.60, 1.85, 13, 0.5534)],
)
def test_upper_bound_moves_first(target, low, high, steps, share):
    """B071: row X, target .49 and .55."""
    bounds = bounds_of(ROW_X, target=target)
    assert (bounds.low, bounds.high, bounds.steps) == (low, high, steps)
    assert bounds.measure == bounds.value_share == pytest.approx(share, abs=5e-5)
    assert bounds.value_share_before == pytest.approx(2.2 / 4.5)
    assert not bounds.saturated
    assert bounds.reachable


def test_share_and_quotient_are_different_measures():
    """B072: P = 1, N = 2, target .4: the share .3333 adapts, the quotient .5 stays."""
    batch = by_hand([1.0, 1.0, 1.0], [1.0, -1.0, -1.0])
    share, quotient = bounds_of(batch, measure="share"), bounds_of(batch, measure="pos_neg")
    assert share.measure == pytest.approx(1 / 3)
    assert share.steps == 51
    assert quotient.measure == 0.5
    assert (quotient.low, quotient.high, quotient.steps) == (0.6, 1.2, 0)


def test_by_value_raising_the_lower_bound_makes_it_worse():
    """B075: value share .566 at (.6, 3.0), .517 at (.9, 3.0); target .6 ends at (.9, 3.0), saturated."""
    assert bounds_of(ROW_X, low_max=0.6, target=0.6).value_share == pytest.approx(0.566, abs=5e-4)
    bounds = bounds_of(ROW_X, target=0.6)
    assert (bounds.low, bounds.high, bounds.steps) == (0.9, 3.0, 51)
    assert bounds.value_share == pytest.approx(0.517, abs=5e-4)
    assert bounds.saturated
    assert not bounds.reachable


def test_by_gradient_raising_the_lower_bound_removes_negative_tokens():
    """B075: gradient share .370 at (.6, 1.2), .500 at (.9, 1.2), .750 at (.9, 3.0)."""
    gradient = {"contribution": "gradient", "order": "low_first"}
    assert bounds_of(ROW_X, target=0.3, **gradient).measure == pytest.approx(0.370, abs=5e-4)
    half = bounds_of(ROW_X, target=0.5, **gradient)
    assert half.high == 1.2
    assert half.gradient_share == half.measure == pytest.approx(0.5)
    assert half.gradient_share_before == pytest.approx(0.370, abs=5e-4)
    end = bounds_of(ROW_X, target=0.8, **gradient)
    assert (end.low, end.high, end.saturated) == (0.9, 3.0, True)
    assert end.gradient_share == pytest.approx(0.750)


OPTIONS = [
    dict(zip(("contribution", "order", "measure"), values, strict=True))
    for values in itertools.product(("value", "gradient"), ("high_first", "low_first"), ("share", "pos_neg", "signed"))
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options.values()))
class TestDegenerateBatches:
    """B076: one-sided and empty batches."""

    def test_only_negative_tokens_go_to_both_limits(self, options):
        bounds = bounds_of(by_hand([0.5, 0.7, 1.0], [-1.0, -2.0, -1.0]), **options)
        assert (bounds.low, bounds.high, bounds.steps, bounds.saturated) == (0.9, 3.0, 51, True)
        assert bounds.value_share == bounds.gradient_share == bounds.measure == 0.0
        assert not bounds.empty

    def test_only_positive_tokens_keep_the_start(self, options):
        for ratios in ([1.0, 2.0], [5.0, 6.0]):
            bounds = bounds_of(by_hand(ratios, [1.0, 1.0]), **options)
            assert (bounds.low, bounds.high, bounds.steps, bounds.saturated) == (0.6, 1.2, 0, False)
            assert bounds.value_share == bounds.gradient_share == 1.0
            assert bounds.measure >= 1.0

    @pytest.mark.parametrize("kind", ["zero_advantages", "empty_mask", "no_response", "no_token"])
    def test_nothing_to_measure_keeps_the_start(self, options, kind):
        batch = {
            "zero_advantages": by_hand([1.0, 2.0], [0.0, 0.0]),
            "empty_mask": Batch(*(torch.zeros(2, 3).log(),) * 2, torch.zeros(2, 3).bool(), torch.zeros(2, 3)),
            "no_response": Batch(*(torch.zeros(0, 3),) * 2, torch.zeros(0, 3).bool(), torch.zeros(0, 3)),
            "no_token": Batch(*(torch.zeros(2, 0),) * 2, torch.zeros(2, 0).bool(), torch.zeros(2, 0)),
        }[kind]
        bounds = bounds_of(batch, **{**options, "target": 0.9})
        assert (bounds.low, bounds.high, bounds.steps, bounds.saturated) == (0.6, 1.2, 0, False)
        assert bounds.empty
        assert not math.isnan(bounds.measure + bounds.value_share + bounds.gradient_share)

    def test_on_policy_below_target_is_not_reachable(self, options):
        """r = 1 everywhere: bounds cannot change anything, so the search goes to the limits and says so."""
        bounds = bounds_of(by_hand([1.0] * 10, [1.0] + [-1.0] * 9), **options)
        assert (bounds.low, bounds.high, bounds.saturated) == (0.9, 3.0, True)
        assert not bounds.reachable
        assert bounds.value_share == bounds.value_share_before == pytest.approx(0.1)


def test_by_gradient_positive_tokens_that_are_all_clipped_are_let_in():
    """At the start both tokens are clipped, 0/0; the upper bound moves until r = 2 counts."""
    bounds = bounds_of(by_hand([2.02, 0.1], [1.0, -1.0]), contribution="gradient", target=0.5)
    assert bounds.gradient_share_before == 0.0
    assert (bounds.low, bounds.high, bounds.measure) == (0.6, 2.05, 1.0)


def test_a_fixed_lower_bound_does_not_freeze_the_upper():
    bounds = bounds_of(ROW_X, low_start=0.6, low_max=0.6, low_step=0.0, target=0.55)
    assert (bounds.low, bounds.high) == (0.6, 1.85)


def test_a_fixed_window_never_moves():
    bounds = bounds_of(
        ROW_X,
        low_start=0.8,
        low_max=0.8,
        low_step=0.0,
        high_start=1.2,
        high_max=1.2,
        high_step=0.0,
        target=0.9,
    )
    assert (bounds.low, bounds.high, bounds.steps, bounds.saturated) == (0.8, 1.2, 0, True)


def test_search_starts_afresh_at_every_update():
    strategy = BAPOClip(weighting="none", target=0.55)
    first = strategy.bounds(*ROW_X.inputs())
    strategy.bounds(*by_hand([1.0], [-1.0]).inputs())
    assert strategy.bounds(*ROW_X.inputs()) == first


def test_tokens_weigh_by_their_behaviour_probability():
    """π_rollout .8 and .2: P = .8, N = .2·3, share .5714; unweighted .25."""
    batch = by_hand([1.0, 1.0], [1.0, -3.0], probs=[0.8, 0.2])
    assert BAPOClip().bounds(*batch.inputs()).value_share == pytest.approx(0.8 / 1.4)
    assert bounds_of(batch).value_share_before == pytest.approx(0.25)


def test_weighting_without_behaviour_log_probs_is_refused():
    with pytest.raises(InputError, match="weighting='rollout_prob' needs rollout_log_probs"):
        BAPOClip().bounds(*ROW_X.inputs()[:3])


def test_dual_clipped_tokens_have_no_gradient_share_but_keep_their_value():
    batch = by_hand([1.0, 4.0], [1.0, -1.0])
    bounds = bounds_of(batch, dual_clip=3.0, low_max=0.6, high_max=1.2)
    assert bounds.gradient_share == 1.0
    assert bounds.value_share == pytest.approx(1 / 5)


def test_equal_lengths_on_policy_start_at_one_half():
    """Group-normalised advantages sum to zero: at r = 1 the share is L+/(L+ + L-), here .5 and then 1/3."""
    advantages = torch.tensor([[1.5], [-0.5], [-0.5], [-0.5]])
    mask = torch.ones(4, 6, dtype=torch.bool)
    flat = Batch(torch.zeros(4, 6), advantages.expand(4, 6), mask, torch.zeros(4, 6))
    assert bounds_of(flat).value_share == pytest.approx(0.5)
    mask = mask.clone()
    mask[0, 3:] = False
    assert bounds_of(Batch(flat.log_ratio, flat.advantages, mask, flat.rollout_log_probs)).value_share == (
        pytest.approx(1 / 3)
    )


@settings(max_examples=60, deadline=None)
@given(batch=batches())
def test_value_share_rises_with_the_upper_bound_and_falls_with_the_lower(batch):
    def share(low: float, high: float) -> float:
        fixed = {"low_start": low, "low_max": low, "high_start": high, "high_max": high}
        return bounds_of(batch, **fixed).value_share

    assert share(0.6, 3.0) >= share(0.6, 1.2) - 1e-12
    assert share(0.9, 1.2) <= share(0.6, 1.2) + 1e-12


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"target": 1.5},
            "target must lie in .0, 1. for measure='share', got 1.5; .* needs measure='pos_neg'",
        ),
        ({"target": -0.1, "measure": "pos_neg"}, "target must be a finite number >= 0"),
        ({"target": math.nan}, "target must"),
        ({"target": 1.0}, r"target must lie in \(0, 1\)"),
        ({"target": 0.0}, r"target must lie in \(0, 1\)"),
        ({"target": math.inf, "measure": "signed"}, "target must be a finite number"),
        ({"low_start": 0.9, "low_max": 0.6}, "low_start must not lie beyond low_max, got 0.9 > 0.6"),
        ({"high_start": 2.0, "high_max": 1.5}, "high_start must not lie beyond high_max, got 2.0 > 1.5"),
        ({"low_max": 1.3}, r"low_max must be a finite ratio bound \(not an epsilon\) in \[0, 1\], got 1.3"),
        ({"low_start": -0.2}, "low_start must be a finite ratio bound"),
        ({"high_start": 0.2}, r"high_start must be a finite ratio bound .* in \[1, inf\], got 0.2"),
        ({"high_max": math.inf}, "high_max must be a finite ratio bound"),
        ({"low_step": 0.0}, "low_step must be a finite number > 0, got 0.0"),
        ({"high_step": -0.05}, "high_step must be a finite number > 0, got -0.05"),
        ({"high_step": math.nan}, "high_step must be"),
        ({"contribution": "loss"}, "contribution must be one of value, gradient, got 'loss'"),
        ({"weighting": "uniform"}, "weighting must be one of rollout_prob, none, got 'uniform'"),
        ({"order": "both"}, "order must be one of high_first, low_first, got 'both'"),
        ({"measure": "ratio"}, "measure must be one of share, pos_neg, signed, got 'ratio'"),
        ({"dual_clip": 1.0}, "dual_clip must be a ratio above 1"),
        ({"pos_neg_epsilon": -1.0}, "pos_neg_epsilon must be a finite number >= 0"),
    ],
)
def test_arguments_that_make_no_sense_are_refused_by_name(arguments, message):
    with pytest.raises(InputError, match=message):
        BAPOClip(**arguments)
