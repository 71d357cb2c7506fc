"""What strategies share that have no bounds at all."""

from torch import Tensor

from bapo_lightning.clipping.base import ClippingStrategy
from bapo_lightning.clipping.records import ClipBounds


class OpenWindowStrategy(ClippingStrategy):
    """Strategies that weigh tokens instead of stopping them. They differ in their surrogate only."""

    needs_statistics = False

    def bounds(
        self,
        log_ratio: Tensor,
        advantages: Tensor,
        mask: Tensor,
        rollout_log_probs: Tensor | None = None,
    ) -> ClipBounds:
        """Return a window without walls, with the shares of this update; see `ClippingStrategy.bounds`."""
        window = ClipBounds(low=0.0, high=float("inf"))
        return self.with_shares(window, log_ratio, advantages, mask, rollout_log_probs)
