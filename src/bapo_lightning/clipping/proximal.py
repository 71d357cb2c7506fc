"""What strategies share that split the ratio at the weights with which a rollout phase began.

π_θ/π_rollout = π_θ/π_proximal · π_proximal/π_rollout. The first factor is what an inner strategy clips: it is 1 at the
start of a phase, however stale the data. The second one is a constant weight.
"""

from abc import abstractmethod

from torch import Tensor

from bapo_lightning.clipping.around import UpdateTokens
from bapo_lightning.clipping.base import ClippingStrategy
from bapo_lightning.clipping.fixed import FixedClip
from bapo_lightning.clipping.reweighted import ReweightedStrategy, TokenWeights
from bapo_lightning.clipping.surrogate import capped_ratio
from bapo_lightning.errors import InputError


class ProximalStrategy(ReweightedStrategy):
    """Clips π_θ/π_proximal with an inner strategy and weights it by something of π_proximal/π_rollout.

    Args:
        inner: What clips π_θ/π_proximal; None is `FixedClip`.

    Raises:
        InputError: The inner strategy splits the ratio, too.
    """

    needs_proximal = True

    def __init__(self, inner: ClippingStrategy | None = None) -> None:
        super().__init__(FixedClip() if inner is None else inner)
        if self.inner.needs_proximal:
            raise InputError(
                f"inner: {type(self.inner).__name__} splits the ratio at the proximal policy already, so it cannot "
                f"stand inside {type(self).__name__}"
            )

    @abstractmethod
    def weight(self, ratio: Tensor) -> TokenWeights:
        """Weight tokens by their ratio π_proximal/π_rollout, [B, T], > 0."""

    def weights(self, tokens: UpdateTokens) -> TokenWeights:
        """Shift the log-ratio to π_θ/π_proximal and weight by the rest."""
        rollout_log_probs = tokens.require("rollout_log_probs", self)
        shift = tokens.require("proximal_log_probs", self) - rollout_log_probs
        given = self.weight(capped_ratio(shift))
        return TokenWeights(weight=given.weight, capped=given.capped, shift=shift)
