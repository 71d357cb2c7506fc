"""Leaving out a few tokens that would cost the most entropy."""

import torch
from torch import Tensor

from bapo_lightning.clipping.around import UpdateTokens
from bapo_lightning.clipping.base import ClippingStrategy, call_bounds
from bapo_lightning.clipping.fixed import FixedClip
from bapo_lightning.clipping.inputs import require_fraction, require_number
from bapo_lightning.clipping.selector import TokenSelector, covariances, largest_over_ranks
from bapo_lightning.errors import InputError


class ClipCov(TokenSelector):
    """Leaves out a random few of the tokens whose log-prob and advantage move together.

    Formula: with cov = (log π − mean)·(A − mean), ``share`` of all tokens are drawn from those that the inner strategy
    does not clip and whose cov lies strictly between ``low`` and ``high``; their objective is 0.
    Source: Clip-Cov, arXiv 2505.22617. Defaults are those of its code.
    Helps: a tiny share of tokens causes most of the loss of entropy; without them it stays.
    Refuses: an empty range; to run without behaviour log-probs. The draw is made by a hash of each response's stored
    log-probs, so it depends neither on micro-batches, nor on the order of responses, nor on ranks; while a phase's data
    is reused, the same tokens tend to be drawn again.

    Args:
        inner: What clips the other tokens; null is `FixedClip`. Scripts of the source open the window to
            [0, 2].
        share: Share of tokens to leave out, in (0, 1]; at least one token if any qualifies.
        low: Lower end of the covariances to draw from, in nats.
        high: Upper end, > low.

    Raises:
        InputError: An argument is out of its range.
    """

    def __init__(
        self, inner: ClippingStrategy | None = None, share: float = 2e-4, low: float = 1.0, high: float = 5.0
    ) -> None:
        super().__init__(FixedClip() if inner is None else inner)
        self.share = require_fraction("share", share)
        self.low = require_number("low", low)
        if not high > low:
            raise InputError(f"high must be above low = {low}, got {high}; both are covariances, not ratio bounds")
        self.high = float(high)

    def keep(self, tokens: UpdateTokens) -> Tensor:
        """Keep what is not drawn."""
        covariance, num_tokens = covariances(tokens, self)
        found = call_bounds(self.inner, **vars(tokens))
        with torch.no_grad():
            clipped = self.inner.surrogate(tokens.log_ratio, tokens.advantages, found).clipped
        candidates = tokens.mask & ~clipped & (covariance > self.low) & (covariance < self.high)
        lots = _lots(tokens.require("rollout_log_probs", self), tokens.mask)
        return ~largest_over_ranks(lots, candidates, max(int(self.share * num_tokens), 1))


def _lots(rollout_log_probs: Tensor, mask: Tensor) -> Tensor:
    """Draw a number in [0, 1) for each token: fixed by its response and its place in it, yet without a pattern.

    From stored numbers only: log π_θ differs in its last bit from one cut into micro-batches to another.

    Args:
        rollout_log_probs: [B, T] nats; 0 where masked.
        mask: [B, T] bool.

    Returns:
        [B, T] float64. Responses with equal log-probs get equal numbers.
    """
    place = torch.arange(mask.shape[1], device=mask.device).expand(mask.shape)
    bits = rollout_log_probs.float().contiguous().view(torch.int32).long()
    tokens = torch.where(mask, _mixed(_mixed(bits) ^ place), 0)
    # Sums and products of integers wrap around, the same on every device.
    response = tokens.sum(1, keepdim=True)
    return ((_mixed(_mixed(response) ^ place) >> 11) & (2**52 - 1)).double() / 2**52


def _mixed(state: Tensor) -> Tensor:
    """Scatter the bits of integers: multiply by large odd numbers, fold the high half onto the low one."""
    for factor in (0x2545F4914F6CDD1D, -0x61C8864680B583EB):
        state = state * factor
        state = state ^ (state >> 29)
    return state
