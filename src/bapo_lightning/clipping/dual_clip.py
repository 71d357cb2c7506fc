"""PPO's clip with a cap on negative tokens."""

from torch import Tensor

from bapo_lightning.clipping.fixed import FixedClip
from bapo_lightning.clipping.records import ClipBounds, Surrogate
from bapo_lightning.clipping.surrogate import clipped_surrogate
from bapo_lightning.errors import InputError


class DualClip(FixedClip):
    """PPO's clip that also stops negative tokens whose ratio has run away upwards.

    Formula: min(r·A, clip(r, low, high)·A), and for A < 0 at least dual·A.
    Source: arXiv 1912.09729, with c = 3 as in common code.
    Helps: stale data, where a single token with A < 0 and a huge ratio can carry the whole gradient.
    Refuses: a bound on the wrong side of 1; ``dual`` not above 1.

    Args:
        low: Lower ratio bound (not an epsilon), in [0, 1]. Tokens with A < 0 lose their gradient below it.
        high: Upper ratio bound (not an epsilon), >= 1. Tokens with A > 0 lose their gradient above it.
        dual: Ratio above which tokens with A < 0 lose their gradient, > 1; ``.inf`` for none.

    Raises:
        InputError: A bound is on the wrong side of 1.
    """

    def __init__(self, low: float = 0.8, high: float = 1.2, dual: float = 3.0) -> None:
        super().__init__(low=low, high=high)
        if not dual > 1.0:
            raise InputError(f"dual must be a ratio above 1, got {dual}")
        self.dual = float(dual)

    def surrogate(self, log_ratio: Tensor, advantages: Tensor, bounds: ClipBounds) -> Surrogate:
        """The clipped objective, with its floor for A < 0; see `clipped_surrogate`."""
        return clipped_surrogate(log_ratio, advantages, bounds.low, bounds.high, self.dual)
