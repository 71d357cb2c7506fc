"""What token selectors share: they keep some tokens of another strategy and leave the others out."""

from abc import abstractmethod

import torch
from torch import Tensor

from bapo_lightning.clipping.around import UpdateTokens
from bapo_lightning.clipping.ranks import gather_over_ranks, sum_over_ranks
from bapo_lightning.clipping.reweighted import ReweightedStrategy, TokenWeights
from bapo_lightning.errors import InputError


class TokenSelector(ReweightedStrategy):
    """Leaves tokens out of another strategy, whatever the sign of their advantage. A subclass says which.

    A token that is left out counts in the denominator of the loss all the same, as in the sources.

    Args:
        inner: Any strategy.
    """

    needs_statistics = True

    @abstractmethod
    def keep(self, tokens: UpdateTokens) -> Tensor:
        """Choose the tokens to keep, [B, T] bool, over all ranks; what is masked may be either."""

    def weights(self, tokens: UpdateTokens) -> TokenWeights:
        """1 for tokens that are kept, 0 for the others.

        Raises:
            InputError: Nothing is kept of an update that has tokens.
        """
        kept = self.keep(tokens)
        counts = torch.stack([(kept & tokens.mask).sum(), tokens.mask.sum()])
        num_kept, num_tokens = sum_over_ranks(counts).tolist()
        if num_kept == 0 and num_tokens > 0:
            raise InputError(f"{self!r} keeps none of the {num_tokens} tokens of an update")
        return TokenWeights(weight=kept.to(tokens.log_ratio.dtype))


def largest_over_ranks(values: Tensor, mask: Tensor, count: int) -> Tensor:
    """Mark the largest unmasked values of all ranks.

    Args:
        values: [B, T]; NaN counts as smallest.
        mask: [B, T] bool.
        count: How many, >= 1; more where the smallest of them has equals, so that order does not matter.

    Returns:
        [B, T] bool.
    """
    values = torch.where(mask, values.nan_to_num(nan=-torch.inf), -torch.inf)
    everywhere = gather_over_ranks(values[mask])
    if len(everywhere) == 0:
        return torch.zeros_like(mask)
    threshold = everywhere.topk(min(count, len(everywhere))).values[-1]
    return mask & (values >= threshold)


def covariances(tokens: UpdateTokens, who: object) -> tuple[Tensor, int]:
    """How each token pulls log-prob and advantage in one direction: (log π − mean)·(A − mean), over all ranks.

    Source: arXiv 2505.22617: entropy falls with the covariance of log-prob and advantage.

    Args:
        tokens: The update.
        who: The strategy that asks.

    Returns:
        [B, T] nats, 0 where masked; and the number of tokens of all ranks.

    Raises:
        InputError: ``rollout_log_probs`` is missing.
    """
    mask = tokens.mask
    log_probs = torch.where(mask, tokens.log_ratio + tokens.require("rollout_log_probs", who), 0.0).double()
    signed = torch.where(mask, tokens.advantages, 0.0).double()
    sums = sum_over_ranks(torch.stack([log_probs.sum(), signed.sum(), mask.sum().double()]))
    count = int(sums[2])
    mean_log_prob, mean_advantage = sums[:2] / max(count, 1)
    return torch.where(mask, (log_probs - mean_log_prob) * (signed - mean_advantage), 0.0), count
