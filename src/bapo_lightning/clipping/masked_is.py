"""PPO without the tokens that engine and trainer disagree about."""

import torch
from torch import Tensor

from bapo_lightning.clipping.base import ClippingStrategy
from bapo_lightning.clipping.inputs import require_window
from bapo_lightning.clipping.proximal import ProximalStrategy
from bapo_lightning.clipping.reweighted import TokenWeights


class MaskedIS(ProximalStrategy):
    """IcePop, masked importance sampling: tokens whose π_proximal/π_rollout is far from 1 are left out.

    Formula: w · inner objective of π_θ/π_proximal, where w = π_proximal/π_rollout inside [low, high] and 0 outside.
    Source: IcePop (Ring-1T report, arXiv 2510.18855), with its [0.5, 5]. It filters and does not clamp.
    Helps: when engine and trainer disagree strongly about a few tokens, as in mixture-of-experts models.
    Refuses: a bound on the wrong side of 1; a trainer that gives no log-probs of the proximal policy. They cost a
    forward pass over the phase's data at its start.

    Args:
        inner: What clips π_θ/π_proximal; null is `FixedClip`.
        low: Smallest ratio that is kept, in [0, 1].
        high: Largest ratio that is kept, >= 1.

    Raises:
        InputError: A bound is on the wrong side of 1.
    """

    def __init__(self, inner: ClippingStrategy | None = None, low: float = 0.5, high: float = 5.0) -> None:
        super().__init__(inner)
        require_window(low, high)
        self.low = float(low)
        self.high = float(high)

    def weight(self, ratio: Tensor) -> TokenWeights:
        """The ratio, or 0 outside the band."""
        outside = (ratio < self.low) | (ratio > self.high)
        return TokenWeights(weight=torch.where(outside, 0.0, ratio))
