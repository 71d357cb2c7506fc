"""A window that never moves."""

from torch import Tensor

from bapo_lightning.clipping.base import ClippingStrategy
from bapo_lightning.clipping.inputs import require_window
from bapo_lightning.clipping.records import ClipBounds, Surrogate
from bapo_lightning.clipping.surrogate import clipped_surrogate


class FixedClip(ClippingStrategy):
    """PPO's clip: one window around 1, the same for every token and update.

    Formula: min(r·A, clip(r, low, high)·A).
    Source: PPO, arXiv 1707.06347, Eq. 7; GRPO, arXiv 2402.03300. Defaults are their usual 1 ± 0.2.
    Helps: as the baseline of everything else; with data that is nearly on-policy it is enough.
    Refuses: a bound on the wrong side of 1, as an epsilon would be.

    Args:
        low: Lower ratio bound (not an epsilon), in [0, 1]. Tokens with A < 0 lose their gradient below it.
        high: Upper ratio bound (not an epsilon), >= 1, ``.inf`` for none. Tokens with A > 0 lose their
            gradient above it.

    Raises:
        InputError: A bound is on the wrong side of 1.
    """

    needs_statistics = False

    def __init__(self, low: float = 0.8, high: float = 1.2) -> None:
        require_window(low, high)
        self.low = float(low)
        self.high = float(high)

    def bounds(
        self,
        log_ratio: Tensor,
        advantages: Tensor,
        mask: Tensor,
        rollout_log_probs: Tensor | None = None,
    ) -> ClipBounds:
        """Return the fixed window with the shares of this update; see `ClippingStrategy.bounds`."""
        return self.with_shares(ClipBounds(self.low, self.high), log_ratio, advantages, mask, rollout_log_probs)

    def surrogate(self, log_ratio: Tensor, advantages: Tensor, bounds: ClipBounds) -> Surrogate:
        """min(r·A, clip(r, low, high)·A); see `clipped_surrogate`."""
        return clipped_surrogate(log_ratio, advantages, bounds.low, bounds.high)
