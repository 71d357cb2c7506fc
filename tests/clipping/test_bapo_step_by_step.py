"""The search at one go equals Algorithm 1 step by step, for every combination of options."""

import itertools

import pytest
from clip_batches import search_by_steps, strange_batch

from bapo_lightning.clipping import BAPOClip

RANGES = {
    "paper": ((0.6, 0.9, 0.02), (1.2, 3.0, 0.05)),
    "octothinker": ((0.8, 0.9, 0.02), (1.2, 2.0, 0.05)),
    "from_one": ((0.0, 1.0, 0.25), (1.0, 1.75, 0.25)),
    "lower_fixed": ((0.75, 0.75, 0.02), (1.25, 4.0, 0.25)),
    "upper_fixed": ((0.25, 0.75, 0.125), (1.5, 1.5, 0.05)),
    "unfinished_steps": ((0.6, 0.85, 0.1), (1.2, 1.97, 0.05)),
    "fine": ((0.5, 1.0, 0.005), (1.0, 1.4, 0.002)),
}
OPTIONS = {
    "contribution": ("value", "gradient"),
    "weighting": ("rollout_prob", "none"),
    "order": ("high_first", "low_first"),
    "measure": ("share", "pos_neg", "signed"),
    "dual_clip": (None, 1.6),
    "clamp_last_step": (False, True),
}
COMBINATIONS = [dict(zip(OPTIONS, values, strict=True)) for values in itertools.product(*OPTIONS.values())]
TARGETS = (0.01, 0.3, 0.4, 0.5, 0.55, 0.6, 0.8, 0.99)
BATCHES_PER_COMBINATION = 7


@pytest.mark.parametrize("ranges", RANGES)
def test_equals_algorithm_1(ranges):
    """96 combinations × 7 kinds of batches × 7 ranges: 4704 searches."""
    low, high = RANGES[ranges]
    tried = moved = 0
    for number, options in enumerate(COMBINATIONS):
        for kind in range(BATCHES_PER_COMBINATION):
            seed = number * BATCHES_PER_COMBINATION + kind
            batch, target = strange_batch(seed), TARGETS[seed % len(TARGETS)]
            bounds = BAPOClip(target, *low, *high, **options).bounds(*batch.inputs())
            c_low, c_high, steps, value = search_by_steps(batch, target=target, low=low, high=high, **options)
            case = f"seed {seed}, target {target}, {options}"
            assert bounds.steps == steps, case
            assert (bounds.low, bounds.high) == pytest.approx((c_low, c_high), abs=1e-12), case
            # Near P = N the signed measure divides by a difference of rounding size: compare its inverse there.
            assert min(bounds.measure, 1e6) == pytest.approx(min(value, 1e6), rel=1e-6), case
            tried, moved = tried + 1, moved + (steps > 0)
    assert tried == 96 * 7
    assert moved > tried / 10
