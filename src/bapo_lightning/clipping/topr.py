"""Plain REINFORCE for successes, truncated importance sampling for failures."""

import torch
from torch import Tensor

from bapo_lightning.clipping.inputs import require_number
from bapo_lightning.clipping.open_window import OpenWindowStrategy
from bapo_lightning.clipping.records import ClipBounds, Surrogate
from bapo_lightning.clipping.surrogate import at_least_float32, capped_ratio, weighted_objective


class TOPR(OpenWindowStrategy):
    """Tapered off-policy REINFORCE: successes are imitated, failures are only unlearned while they are still likely.

    Formula: A·log π for A > 0; sg(min(r, max_negative_weight))·A·log π for A < 0.
    Source: TOPR, arXiv 2503.14286, with its canonical truncation to [0, 1]. The source works with rewards ±1 and
    weighs responses; here tokens carry the group's advantages, as in peer implementations.
    Helps: very stale data; nothing depends on positive tokens still being probable.
    Refuses: a weight that is not positive. No token is ever clipped; truncated ones are ``capped``.

    Args:
        max_negative_weight: Largest weight of a token with A < 0, > 0.

    Raises:
        InputError: The weight is not positive.
    """

    def __init__(self, max_negative_weight: float = 1.0) -> None:
        self.max_negative_weight = require_number("max_negative_weight", max_negative_weight, above=0.0)

    def surrogate(self, log_ratio: Tensor, advantages: Tensor, bounds: ClipBounds) -> Surrogate:
        """Weight times A, with that as its gradient."""
        log_ratio = at_least_float32(log_ratio)
        advantages = advantages.to(log_ratio.dtype)
        ratio = capped_ratio(log_ratio.detach())
        weight = torch.where(advantages < 0, ratio.clamp(max=self.max_negative_weight), 1.0)
        none = torch.zeros_like(advantages, dtype=torch.bool)
        capped = (advantages < 0) & (ratio > self.max_negative_weight)
        return Surrogate(weighted_objective(log_ratio, weight * advantages), none, none, capped=capped)
