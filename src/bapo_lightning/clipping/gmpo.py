"""The geometric mean of clipped ratios."""

import math

import torch
from torch import Tensor

from bapo_lightning.clipping.records import ClipBounds, Surrogate
from bapo_lightning.clipping.sequence import SequenceBounds, SequenceStrategy, geometric_mean
from bapo_lightning.clipping.surrogate import at_least_float32


class GMPO(SequenceStrategy):
    """Geometric-mean policy optimization: tokens are clipped one by one, then their ratios are averaged in log space.

    Formula: A·exp(mean of log clip(r)), where a token is clipped above ``high`` if A > 0 and below ``low`` if A < 0.
    Source: GMPO, arXiv 2507.20673. Defaults are its window e^±0.4, given as ratios; other code names the 0.4
    epsilon. Its loss is a mean over responses: set ``model.aggregation: sequence_mean``.
    Helps: a few far ratios move a geometric mean little, so the window can be wider than PPO's.
    Refuses: a bound on the wrong side of 1.

    Args:
        low: Lower ratio bound (not an epsilon, not a logarithm), in [0, 1].
        high: Upper ratio bound, >= 1.

    Raises:
        InputError: A bound is on the wrong side of 1.
    """

    def __init__(self, low: float = 0.67032, high: float = 1.49182) -> None:
        super().__init__(low, high)

    def surrogate(self, log_ratio: Tensor, advantages: Tensor, bounds: ClipBounds) -> Surrogate:
        """A times the geometric mean of the response, at every token."""
        assert isinstance(bounds, SequenceBounds)
        log_ratio = at_least_float32(log_ratio)
        advantages = torch.where(bounds.mask, advantages.to(log_ratio.dtype), 0.0)
        log_low, log_high = (math.log(b) if b > 0 else -math.inf for b in (self.low, self.high))
        clipped_high = (advantages > 0) & (log_ratio > log_high)
        clipped_low = (advantages < 0) & (log_ratio < log_low)
        # Not `clamp`: on a bound it would let half of the gradient through.
        clipped = torch.where(clipped_high, log_high, log_ratio)
        clipped = torch.where(clipped_low, log_low, clipped)
        objective = geometric_mean(clipped, bounds.mask) * advantages
        return Surrogate(objective, clipped_low=clipped_low, clipped_high=clipped_high)
