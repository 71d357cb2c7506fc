"""A clipped weight instead of a clipped token."""

import torch
from torch import Tensor

from bapo_lightning.clipping.fixed import FixedClip
from bapo_lightning.clipping.records import ClipBounds, Surrogate
from bapo_lightning.clipping.surrogate import at_least_float32, capped_ratio, weighted_objective


class CISPO(FixedClip):
    """Clips the importance weight and keeps every token's gradient.

    Formula: sg(clip(r, low, high))·A·log π.
    Source: MiniMax-M1, arXiv 2506.13585, which leaves the lower bound out; the cap of 5 is that of ScaleRL, arXiv
    2510.13786. Both are ratios: other code takes an epsilon (1 ± 0.2) or an absolute cap under the same name.
    Helps: rare tokens that a window would silence (such as "wait") go on learning.
    Refuses: a bound on the wrong side of 1. No token is ever clipped; those whose weight was cut are ``capped``.

    Args:
        low: Smallest weight, in [0, 1].
        high: Largest weight, >= 1.

    Raises:
        InputError: A bound is on the wrong side of 1.
    """

    def __init__(self, low: float = 0.0, high: float = 5.0) -> None:
        super().__init__(low=low, high=high)

    def surrogate(self, log_ratio: Tensor, advantages: Tensor, bounds: ClipBounds) -> Surrogate:
        """Weight times A, with that as its gradient."""
        log_ratio = at_least_float32(log_ratio)
        advantages = advantages.to(log_ratio.dtype)
        ratio = capped_ratio(log_ratio.detach())
        weight = ratio.clamp(self.low, self.high)
        none = torch.zeros_like(advantages, dtype=torch.bool)
        capped = ((ratio < self.low) | (ratio > self.high)) & (advantages != 0)
        return Surrogate(weighted_objective(log_ratio, weight * advantages), none, none, capped=capped)
