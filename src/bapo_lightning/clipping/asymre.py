"""REINFORCE on off-policy data, with a lower baseline."""

import torch
from torch import Tensor

from bapo_lightning.clipping.inputs import require_number
from bapo_lightning.clipping.open_window import OpenWindowStrategy
from bapo_lightning.clipping.records import ClipBounds, Surrogate
from bapo_lightning.clipping.surrogate import at_least_float32, weighted_objective


class AsymRE(OpenWindowStrategy):
    """Asymmetric REINFORCE: no ratio at all; a baseline below the mean makes successes count more than failures.

    Formula: (A − baseline_shift)·log π, which is (reward − (mean + δV))·log π for A = reward − mean.
    Source: AsymRE, arXiv 2506.20520, with its δV = −0.1. Its A is not divided by a deviation: set
    ``data.advantage: {class_path: GroupAdvantage, init_args: {scale: none}}``, or read the shift in deviations.
    Helps: data so stale that ratios say nothing; from δV ≥ 0 on the source sees collapse.
    Refuses: a shift that is not finite. Nothing is clipped. Tokens with A = 0 get the gradient −δV, so groups that
    were solved throughout are imitated too.

    Args:
        baseline_shift: δV, added to the baseline; negative to stress successes.

    Raises:
        InputError: The shift is not finite.
    """

    def __init__(self, baseline_shift: float = -0.1) -> None:
        self.baseline_shift = require_number("baseline_shift", baseline_shift)

    def surrogate(self, log_ratio: Tensor, advantages: Tensor, bounds: ClipBounds) -> Surrogate:
        """A − δV, with that as its gradient."""
        log_ratio = at_least_float32(log_ratio)
        shifted = advantages.to(log_ratio.dtype) - self.baseline_shift
        none = torch.zeros_like(shifted, dtype=torch.bool)
        return Surrogate(weighted_objective(log_ratio, shifted), none, none)
