"""A window as wide as the second moment of the log-ratios allows."""

import math

import torch
from torch import Tensor

from bapo_lightning.clipping.base import ClippingStrategy
from bapo_lightning.clipping.inputs import clean_tokens, require_number
from bapo_lightning.clipping.ranks import gather_over_ranks
from bapo_lightning.clipping.records import ClipBounds, Surrogate
from bapo_lightning.clipping.surrogate import clipped_surrogate


class M2PO(ClippingStrategy):
    """Second-moment trust policy optimization: drops the farthest tokens until the others are near enough on average.

    Formula: M·r·A, where M = 0 for the tokens with the largest (log r)², as few as make the mean of the others at most
    ``max_second_moment``. Only tokens that a clip could stop count: A > 0 with r > 1, A < 0 with r < 1. So M is a
    window [e^−θ, e^θ].
    Source: M2PO, arXiv 2510.01161, with its τ = 0.04. One threshold for the whole update over all ranks;
    other code takes one per micro-batch, or counts all tokens, or compares with the weights at the phase's start.
    Helps: data hundreds of updates old, of which a fixed window clips too much and no window too little.
    Refuses: a moment that is not positive.

    Args:
        max_second_moment: τ, in squared nats, > 0.

    Raises:
        InputError: The moment is not positive.
    """

    def __init__(self, max_second_moment: float = 0.04) -> None:
        self.max_second_moment = require_number("max_second_moment", max_second_moment, above=0.0)

    def bounds(
        self,
        log_ratio: Tensor,
        advantages: Tensor,
        mask: Tensor,
        rollout_log_probs: Tensor | None = None,
    ) -> ClipBounds:
        """Find the widest window whose tokens have this second moment; see `ClippingStrategy.bounds`."""
        tokens = clean_tokens(log_ratio, advantages, mask, rollout_log_probs)
        active = tokens.advantages.sign() * tokens.log_ratio
        distances = gather_over_ranks(active[active > 0]).double()
        limit = _largest_kept(distances, self.max_second_moment)
        window = ClipBounds(low=math.exp(-limit), high=math.exp(limit) if limit < 700 else math.inf)
        return self.with_shares(window, log_ratio, advantages, mask, rollout_log_probs)

    def surrogate(self, log_ratio: Tensor, advantages: Tensor, bounds: ClipBounds) -> Surrogate:
        """r·A inside the window, 0 outside."""
        result = clipped_surrogate(log_ratio, advantages, bounds.low, bounds.high)
        objective = torch.where(result.clipped, 0.0, result.objective)
        return Surrogate(objective, clipped_low=result.clipped_low, clipped_high=result.clipped_high)


def _largest_kept(distances: Tensor, max_second_moment: float) -> float:
    """Find a limit below which the mean of squares is small enough.

    Args:
        distances: [N] nats, > 0.
        max_second_moment: Largest mean of squares.

    Returns:
        A number between the largest distance that is kept and the smallest that is not; infinite if all are kept.
        Equal distances are kept or dropped together, so their order does not matter.
    """
    ordered = distances.sort().values
    counts = torch.arange(1, len(ordered) + 1, dtype=ordered.dtype, device=ordered.device)
    num_kept = int((ordered.square().cumsum(0) / counts <= max_second_moment).sum())
    if num_kept == len(ordered):
        return math.inf
    first_dropped = ordered[num_kept]
    below = ordered[ordered < first_dropped]
    last_kept = below[-1].item() if len(below) else 0.0
    return (last_kept + first_dropped.item()) / 2.0
