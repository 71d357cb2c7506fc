"""Learning from uncertain tokens only."""

import math

import torch
from torch import Tensor

from bapo_lightning.clipping.around import UpdateTokens
from bapo_lightning.clipping.base import ClippingStrategy
from bapo_lightning.clipping.clip_higher import ClipHigher
from bapo_lightning.clipping.inputs import refuse_unusable, require_fraction
from bapo_lightning.clipping.ranks import sum_over_ranks
from bapo_lightning.clipping.selector import TokenSelector, largest_over_ranks


class TopEntropyTokens(TokenSelector):
    """Keeps the tokens at which the policy was most uncertain: the forks of a line of reasoning.

    Formula: the inner objective where the entropy is among the largest ``share`` of the update, else 0.
    Source: arXiv 2506.01939, which trains on the top 20 % with DAPO.
    Helps: fewer tokens carry the gradient, and those that do are where reasoning branches.
    Refuses: a share outside (0, 1]; a trainer that gives no entropy.

    Args:
        inner: What clips the tokens that are kept; null is `ClipHigher`, as in the source.
        share: Share of tokens to keep, in (0, 1]; at least one token, and all equals of the last one.

    Raises:
        InputError: The share is out of its range; later, if an entropy is NaN.
    """

    needs_entropy = True

    def __init__(self, inner: ClippingStrategy | None = None, share: float = 0.2) -> None:
        super().__init__(ClipHigher() if inner is None else inner)
        self.share = require_fraction("share", share)

    def keep(self, tokens: UpdateTokens) -> Tensor:
        """Keep the most uncertain tokens of all ranks."""
        entropy = tokens.require("entropy", self)
        unusable = tokens.mask & ~entropy.isfinite()
        num_tokens, num_unusable = sum_over_ranks(torch.stack([tokens.mask.sum(), unusable.sum()])).tolist()
        refuse_unusable(num_unusable, unusable, entropy=entropy)
        return largest_over_ranks(entropy, tokens.mask, max(math.ceil(self.share * num_tokens - 1e-9), 1))
