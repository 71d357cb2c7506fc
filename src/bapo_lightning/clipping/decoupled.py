"""PPO around the weights of the phase's start."""

import torch
from torch import Tensor

from bapo_lightning.clipping.base import ClippingStrategy
from bapo_lightning.clipping.proximal import ProximalStrategy
from bapo_lightning.clipping.reweighted import TokenWeights
from bapo_lightning.errors import InputError


class DecoupledPPO(ProximalStrategy):
    """Clips around recent weights and corrects for the policy that sampled.

    Formula: sg(π_proximal/π_rollout) · inner objective of π_θ/π_proximal; tokens whose weight exceeds ``max_weight``
    are left out.
    Source: decoupled PPO, arXiv 2110.00641, as used by AReaL, arXiv 2505.24298, whose code leaves out weights above 5.
    Helps: stale data, where a window around the old policy would clip before the first step.
    Refuses: a limit not above 1; a trainer that gives no log-probs of the proximal policy. They cost a forward pass
    over the phase's data at its start.

    Args:
        inner: What clips π_θ/π_proximal; null is `FixedClip`.
        max_weight: Largest π_proximal/π_rollout, > 1; null for none.

    Raises:
        InputError: The limit is not above 1.
    """

    def __init__(self, inner: ClippingStrategy | None = None, max_weight: float | None = 5.0) -> None:
        super().__init__(inner)
        if max_weight is not None and not max_weight > 1.0:
            raise InputError(f"max_weight must be a ratio above 1, or null for none, got {max_weight}")
        self.max_weight = None if max_weight is None else float(max_weight)

    def weight(self, ratio: Tensor) -> TokenWeights:
        """The ratio, or 0 above the limit."""
        if self.max_weight is None:
            return TokenWeights(weight=ratio)
        return TokenWeights(weight=torch.where(ratio > self.max_weight, 0.0, ratio))
