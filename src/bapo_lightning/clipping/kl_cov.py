"""Holding back the tokens that would cost the most entropy."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bapo_lightning.clipping.around import AroundStrategy, UpdateTokens
from bapo_lightning.clipping.base import ClippingStrategy, call_bounds
from bapo_lightning.clipping.inputs import require_fraction, require_number
from bapo_lightning.clipping.no_clip import NoClip
from bapo_lightning.clipping.records import ClipBounds, Surrogate, report_of
from bapo_lightning.clipping.selector import covariances, largest_over_ranks
from bapo_lightning.clipping.surrogate import at_least_float32


@dataclass(frozen=True)
class KLCovBounds(ClipBounds):
    """The inner strategy's window, and which tokens are held back."""

    inner: ClipBounds = None  # type: ignore[assignment]  # always given, as is the next; ClipBounds has defaults
    held: Tensor = None  # type: ignore[assignment]


class KLCov(AroundStrategy):
    """Puts a penalty on leaving the behaviour policy on the tokens whose log-prob and advantage move together most.

    Formula: the inner objective, minus coefficient·|log r| on the ``share`` of tokens with the largest
    (log π − mean)·(A − mean), as far as it is positive.
    Source: KL-Cov, arXiv 2505.22617, whose formula clips nothing else. Defaults are those of its code.
    Helps: as `ClipCov`, but the tokens go on learning, held near where they were.
    Refuses: a share outside (0, 1]; a negative coefficient; to run without behaviour log-probs.

    Args:
        inner: What clips; null is `NoClip`, as in the source.
        share: Share of tokens to hold back, in (0, 1]; at least one token, and all equals of the last one.
            The source takes 2e-4 for 32 B parameters and 2e-3 for 7 B.
        coefficient: Weight of the penalty, >= 0; verl's default of the same key is 0.1.

    Raises:
        InputError: An argument is out of its range.
    """

    needs_statistics = True

    def __init__(self, inner: ClippingStrategy | None = None, share: float = 2e-4, coefficient: float = 1.0) -> None:
        super().__init__(NoClip() if inner is None else inner)
        self.share = require_fraction("share", share)
        self.coefficient = require_number("coefficient", coefficient, at_least=0.0)

    def bounds(
        self,
        log_ratio: Tensor,
        advantages: Tensor,
        mask: Tensor,
        rollout_log_probs: Tensor | None = None,
        *,
        entropy: Tensor | None = None,
        proximal_log_probs: Tensor | None = None,
    ) -> ClipBounds:
        """Find the inner window and the tokens to hold back; see `ClippingStrategy.bounds`.

        Raises:
            InputError: ``rollout_log_probs`` is missing.
        """
        tokens = UpdateTokens(log_ratio, advantages, mask, rollout_log_probs, entropy, proximal_log_probs)
        covariance, num_tokens = covariances(tokens, self)
        held = largest_over_ranks(covariance, tokens.mask & (covariance > 0), max(int(self.share * num_tokens), 1))
        found = call_bounds(self.inner, **vars(tokens))
        window = KLCovBounds(**report_of(found), inner=found, held=held)
        return self.with_shares(window, tokens.log_ratio, advantages, tokens.mask, rollout_log_probs)

    def surrogate(self, log_ratio: Tensor, advantages: Tensor, bounds: ClipBounds) -> Surrogate:
        """The inner objective less the penalty. A token that is held has a gradient, clipped or not."""
        assert isinstance(bounds, KLCovBounds)
        log_ratio = at_least_float32(log_ratio)
        result = self.inner.surrogate(log_ratio, advantages, bounds.inner)
        if self.coefficient == 0.0:
            return result
        penalty = torch.where(bounds.held, self.coefficient * log_ratio.abs(), 0.0)
        free = ~(bounds.held & (log_ratio.detach() != 0))
        return replace(
            result,
            objective=result.objective - penalty,
            clipped_low=result.clipped_low & free,
            clipped_high=result.clipped_high & free,
            clipped_dual=result.clipped_dual & free,
            dropped=result.dropped & free,
        )
