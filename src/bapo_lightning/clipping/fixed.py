"""A window that never moves."""

from torch import Tensor

from bapo_lightning.clipping.base import ClipBounds, ClippingStrategy, Surrogate
from bapo_lightning.clipping.shares import contribution_sums
from bapo_lightning.clipping.surrogate import clipped_surrogate
from bapo_lightning.errors import InputError


class FixedClip(ClippingStrategy):
    """PPO's clip with a fixed window (arXiv 1707.06347, Eq. 7). Defaults are PPO's and GRPO's usual 1 ± 0.2.

    Args:
        low: Lower ratio bound (not an epsilon), in [0, 1]. Tokens with A < 0 lose their gradient below it.
        high: Upper ratio bound (not an epsilon), >= 1, ``.inf`` for none. Tokens with A > 0 lose their
            gradient above it.

    Raises:
        InputError: A bound is on the wrong side of 1, as an epsilon would be.
    """

    needs_statistics = False

    def __init__(self, low: float = 0.8, high: float = 1.2) -> None:
        if not 0.0 <= low <= 1.0:
            raise InputError(f"low must be a ratio bound in [0, 1], got {low}; for an epsilon e give 1 - e")
        if not high >= 1.0:
            raise InputError(f"high must be a ratio bound >= 1, got {high}; for an epsilon e give 1 + e")
        self.low = float(low)
        self.high = float(high)

    def bounds(
        self,
        log_ratio: Tensor,
        advantages: Tensor,
        mask: Tensor,
        rollout_log_probs: Tensor | None = None,
    ) -> ClipBounds:
        """Return the fixed window with the shares of this update; see `ClippingStrategy.bounds`.

        The shares are weighted by π_rollout when ``rollout_log_probs`` is given, as `BAPOClip` weights them
        by default, so that curves of both can be compared. ``measure`` is the value share.
        """
        sums = contribution_sums(
            log_ratio,
            advantages,
            mask,
            lows=[self.low],
            highs=[self.high],
            rollout_log_probs=rollout_log_probs,
        )
        value_share, gradient_share = sums.value_share(0, 0), sums.gradient_share(0, 0)
        return ClipBounds(
            low=self.low,
            high=self.high,
            measure=value_share,
            value_share=value_share,
            gradient_share=gradient_share,
            value_share_before=value_share,
            gradient_share_before=gradient_share,
            empty=sums.is_empty,
        )

    def surrogate(self, log_ratio: Tensor, advantages: Tensor, bounds: ClipBounds) -> Surrogate:
        """min(r·A, clip(r, low, high)·A); see `clipped_surrogate`."""
        return clipped_surrogate(log_ratio, advantages, bounds.low, bounds.high)
