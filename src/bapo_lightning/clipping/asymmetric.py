"""The windows of BAPO's experiment on asymmetric clipping."""

from bapo_lightning.clipping.fixed import FixedClip


class AsymmetricClip(FixedClip):
    """A fixed window with two unequal sides: the experiment that led to BAPO.

    Formula: min(r·A, clip(r, low, high)·A).
    Source: arXiv 2510.18927, sec. 4.1 and Fig. 7, which compares [0.8, 1.5] (the default: reward and entropy
    rise) with [0.8, 1.2] and with [0.5, 1.2] (worse, and entropy collapses faster).
    Helps: to see by hand what each bound does to entropy, before `BAPOClip` moves them.
    Refuses: a bound on the wrong side of 1, as an epsilon would be.

    Args:
        low: Lower ratio bound (not an epsilon), in [0, 1]. Tokens with A < 0 lose their gradient below it.
        high: Upper ratio bound (not an epsilon), >= 1, ``.inf`` for none. Tokens with A > 0 lose their
            gradient above it.

    Raises:
        InputError: A bound is on the wrong side of 1.
    """

    def __init__(self, low: float = 0.8, high: float = 1.5) -> None:
        super().__init__(low=low, high=high)
