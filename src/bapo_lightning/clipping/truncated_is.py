"""PPO with a truncated correction for the policy that sampled."""

from torch import Tensor

from bapo_lightning.clipping.base import ClippingStrategy
from bapo_lightning.clipping.proximal import ProximalStrategy
from bapo_lightning.clipping.reweighted import TokenWeights
from bapo_lightning.errors import InputError


class TruncatedIS(ProximalStrategy):
    """Truncated importance sampling: PPO from the phase's start, times min(π_proximal/π_rollout, cap).

    Formula: sg(min(π_proximal/π_rollout, cap)) · inner objective of π_θ/π_proximal.
    Source: Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training"
    (fengyao.notion.site/off-policy-rl); the cap of 2 is that of verl and slime.
    Helps: when engine and trainer disagree about log-probs; the bias is bounded and no token is lost.
    Refuses: a cap below 1; a trainer that gives no log-probs of the proximal policy. They cost a forward pass over the
    phase's data at its start.

    Args:
        inner: What clips π_θ/π_proximal; null is `FixedClip`.
        cap: Largest weight, >= 1.

    Raises:
        InputError: The cap is below 1.
    """

    def __init__(self, inner: ClippingStrategy | None = None, cap: float = 2.0) -> None:
        super().__init__(inner)
        if not cap >= 1.0:
            raise InputError(f"cap must be a ratio >= 1, got {cap}")
        self.cap = float(cap)

    def weight(self, ratio: Tensor) -> TokenWeights:
        """The ratio, at most the cap."""
        return TokenWeights(weight=ratio.clamp(max=self.cap), capped=ratio > self.cap)
