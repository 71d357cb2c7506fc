"""One ratio for a whole response."""

import torch
from torch import Tensor

from bapo_lightning.clipping.records import ClipBounds, Surrogate
from bapo_lightning.clipping.sequence import SequenceBounds, SequenceStrategy, geometric_mean
from bapo_lightning.clipping.surrogate import at_least_float32


class GSPO(SequenceStrategy):
    """Group sequence policy optimization: a response is clipped or kept as a whole.

    Formula: min(s·A, clip(s, low, high)·A) with s = exp(mean of log r over the response's tokens).
    Source: GSPO, arXiv 2507.18071, Eq. 5 to 7. Defaults are the paper's (3e-4 and 4e-4). The window is narrow because s
    is a mean; a token-level 0.2 never clips it. Its loss is a mean over responses: set
    ``model.aggregation: sequence_mean``.
    Helps: mixture-of-experts models and long responses, where ratios of single tokens are noise.
    Refuses: a bound on the wrong side of 1. Where advantages differ inside a response use `GSPOToken`.

    Args:
        low: Lower bound of the response's ratio, in [0, 1].
        high: Upper bound of the response's ratio, >= 1.

    Raises:
        InputError: A bound is on the wrong side of 1.
    """

    def __init__(self, low: float = 0.9997, high: float = 1.0004) -> None:
        super().__init__(low, high)

    def surrogate(self, log_ratio: Tensor, advantages: Tensor, bounds: ClipBounds) -> Surrogate:
        """min(s·A, clip(s, low, high)·A) at every token of the response."""
        assert isinstance(bounds, SequenceBounds)
        log_ratio = at_least_float32(log_ratio)
        advantages = torch.where(bounds.mask, advantages.to(log_ratio.dtype), 0.0)
        ratio = geometric_mean(log_ratio, bounds.mask)
        clipped_high = (advantages > 0) & (ratio.detach() > bounds.high)
        clipped_low = (advantages < 0) & (ratio.detach() < bounds.low)
        objective = torch.where(clipped_high, bounds.high * advantages, ratio * advantages)
        objective = torch.where(clipped_low, bounds.low * advantages, objective)
        return Surrogate(objective, clipped_low=clipped_low, clipped_high=clipped_high)
