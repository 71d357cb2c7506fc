"""One ratio for a whole response, with a gradient for each token."""

import torch
from torch import Tensor

from bapo_lightning.clipping.records import ClipBounds, Surrogate
from bapo_lightning.clipping.sequence import SequenceBounds, SequenceStrategy, geometric_mean
from bapo_lightning.clipping.surrogate import at_least_float32, weighted_objective


class GSPOToken(SequenceStrategy):
    """GSPO whose advantages may differ from token to token.

    Formula: min(s_t·A_t, clip(s_t, low, high)·A_t) with s_t = sg(s)·r/sg(r) and s = exp(mean of log r).
    Source: GSPO, arXiv 2507.18071, Eq. 13 and 14 (what verl calls "gspo"). Defaults are the paper's. With one advantage
    a response it equals `GSPO`, value and gradient. Its loss is a mean over responses: set
    ``model.aggregation: sequence_mean``.
    Helps: GSPO together with anything that treats tokens of a response differently, such as a token selector.
    Refuses: a bound on the wrong side of 1.

    Args:
        low: Lower bound of the response's ratio, in [0, 1].
        high: Upper bound of the response's ratio, >= 1.

    Raises:
        InputError: A bound is on the wrong side of 1.
    """

    def __init__(self, low: float = 0.9997, high: float = 1.0004) -> None:
        super().__init__(low, high)

    def surrogate(self, log_ratio: Tensor, advantages: Tensor, bounds: ClipBounds) -> Surrogate:
        """min(s·A, clip(s, low, high)·A) at every token, with the gradient s·A of its own."""
        assert isinstance(bounds, SequenceBounds)
        log_ratio = at_least_float32(log_ratio)
        advantages = torch.where(bounds.mask, advantages.to(log_ratio.dtype), 0.0)
        ratio = geometric_mean(log_ratio.detach(), bounds.mask)
        clipped_high = (advantages > 0) & (ratio > bounds.high)
        clipped_low = (advantages < 0) & (ratio < bounds.low)
        objective = weighted_objective(log_ratio, ratio * advantages)
        objective = torch.where(clipped_high, bounds.high * advantages, objective)
        objective = torch.where(clipped_low, bounds.low * advantages, objective)
        return Surrogate(objective, clipped_low=clipped_low, clipped_high=clipped_high)
