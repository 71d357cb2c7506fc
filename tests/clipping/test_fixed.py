"""Windows that never move, and the records."""

import subprocess
import sys
from dataclasses import dataclass

import pytest
import torch
from clip_batches import by_hand, random_batch
from torch import Tensor

from bapo_lightning.clipping import BAPOClip, ClipBounds, ClipHigher, FixedClip
from bapo_lightning.errors import InputError


def test_defaults():
    assert repr(FixedClip()) == "FixedClip(low=0.8, high=1.2)"
    assert repr(ClipHigher()) == "ClipHigher(low=0.8, high=1.28)"
    assert isinstance(ClipHigher(), FixedClip)


def test_only_a_moving_window_needs_statistics():
    assert not FixedClip().needs_statistics
    assert not ClipHigher().needs_statistics
    assert BAPOClip().needs_statistics


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"high": 0.2}, "high must be a ratio bound >= 1, got 0.2; for an epsilon e give 1 + e"),
        ({"low": -0.2}, r"low must be a ratio bound in \[0, 1\], got -0.2; for an epsilon e give 1 - e"),
        ({"low": 1.2}, r"low must be a ratio bound in \[0, 1\], got 1.2"),
        ({"low": float("nan")}, "low must be"),
        ({"high": float("nan")}, "high must be"),
    ],
)
def test_bounds_on_the_wrong_side_of_one_are_refused(arguments, message):
    with pytest.raises(InputError, match=message.replace("+", r"\+")):
        FixedClip(**arguments)


def test_shares_of_a_fixed_window_by_hand():
    """P = 1 + 1.2 and N = .8 + .8 + 1 by value; clipped tokens left out, P = 1 and N = 1."""
    batch = by_hand([1.0, 2.0, 0.5, 0.7, 1.0], [1.0, 1.0, -1.0, -1.0, -1.0])
    bounds = FixedClip().bounds(batch.log_ratio, batch.advantages, batch.mask)
    assert (bounds.low, bounds.high, bounds.steps) == (0.8, 1.2, 0)
    assert bounds.value_share == bounds.measure == pytest.approx(2.2 / 4.8)
    assert bounds.gradient_share == pytest.approx(1.0 / 2.0)
    assert bounds.value_share_before == bounds.value_share
    assert not bounds.saturated
    assert bounds.reachable


def test_shares_of_a_fixed_window_are_weighted_when_probabilities_are_given():
    """Weights .5 and .25: P = .5, N = .25; without them P = N = 1."""
    batch = by_hand([1.0, 1.0], [1.0, -1.0], probs=[0.5, 0.25])
    assert FixedClip().bounds(*batch.inputs()).value_share == pytest.approx(2 / 3)
    assert FixedClip().bounds(*batch.inputs()[:3]).value_share == pytest.approx(1 / 2)


def test_a_ratio_on_a_bound_counts_in_the_gradient_share():
    """As in the objective: only beyond its bound is a token clipped."""
    bounds = FixedClip(1.0, 1.0).bounds(*by_hand([1.0, 1.0, 1.5], [3.0, -1.0, 1.0]).inputs())
    assert bounds.gradient_share == pytest.approx(3 / 4)


def test_bounds_of_floats_are_not_copied_for_a_micro_batch():
    bounds = FixedClip().bounds(*random_batch(seed=0).inputs())
    assert bounds.rows(2, 4) is bounds


def test_bounds_of_tensors_are_cut_for_a_micro_batch():
    @dataclass(frozen=True)
    class SequenceBounds(ClipBounds):
        mask: Tensor | None = None

    bounds = SequenceBounds(low=torch.arange(12.0).reshape(4, 3), high=torch.ones(4, 1), mask=torch.ones(4, 3), steps=7)
    part = bounds.rows(1, 3, width=2)
    assert part.low.tolist() == [[3.0, 4.0], [6.0, 7.0]]
    assert part.high.shape == (2, 1)
    assert part.mask.shape == (2, 2)
    assert part.steps == 7


def test_import_is_light():
    heavy = "{'lightning', 'transformers', 'torchmetrics', 'jsonargparse'}"
    code = f"import sys, bapo_lightning.clipping; print(sorted({heavy} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
