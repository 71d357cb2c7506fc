"""DAPO's window: a higher upper bound."""

from bapo_lightning.clipping.fixed import FixedClip


class ClipHigher(FixedClip):
    """`FixedClip` with DAPO's clip-higher window (arXiv 2503.14476, Eq. 10). Defaults are the paper's.

    The wider upper bound lets improbable tokens with A > 0 grow further, which slows the loss of entropy.

    Args:
        low: Lower ratio bound (not an epsilon), in [0, 1]. Tokens with A < 0 lose their gradient below it.
        high: Upper ratio bound (not an epsilon), >= 1, ``.inf`` for none. Tokens with A > 0 lose their
            gradient above it.

    Raises:
        InputError: A bound is on the wrong side of 1, as an epsilon would be.
    """

    def __init__(self, low: float = 0.8, high: float = 1.28) -> None:
        super().__init__(low=low, high=high)
