"""No clipping at all."""

from torch import Tensor

from bapo_lightning.clipping.open_window import OpenWindowStrategy
from bapo_lightning.clipping.records import ClipBounds, Surrogate
from bapo_lightning.clipping.surrogate import clipped_surrogate


class NoClip(OpenWindowStrategy):
    """REINFORCE with importance sampling: every token keeps its gradient, weighted by its ratio.

    Formula: r·A.
    Source: Williams 1992, with the importance ratio of off-policy data; unbiased token by token.
    Helps: as the other end of the scale; shows what clipping prevents.
    Refuses: nothing; on stale data the gradient norm says when this is too bold.
    """

    def surrogate(self, log_ratio: Tensor, advantages: Tensor, bounds: ClipBounds) -> Surrogate:
        """r·A."""
        return clipped_surrogate(log_ratio, advantages, bounds.low, bounds.high)
