"""DAPO's window: a higher upper bound."""

from bapo_lightning.clipping.fixed import FixedClip


class ClipHigher(FixedClip):
    """DAPO's clip-higher: `FixedClip` with more room above than below.

    Formula: min(r·A, clip(r, low, high)·A).
    Source: DAPO, arXiv 2503.14476, Eq. 10. Defaults are the paper's (ε 0.2 and 0.28).
    Helps: improbable tokens with A > 0 may grow further, which slows the loss of entropy.
    Refuses: a bound on the wrong side of 1, as an epsilon would be.

    Args:
        low: Lower ratio bound (not an epsilon), in [0, 1]. Tokens with A < 0 lose their gradient below it.
        high: Upper ratio bound (not an epsilon), >= 1, ``.inf`` for none. Tokens with A > 0 lose their
            gradient above it.

    Raises:
        InputError: A bound is on the wrong side of 1.
    """

    def __init__(self, low: float = 0.8, high: float = 1.28) -> None:
        super().__init__(low=low, high=high)
