"""Strategies around another one: they weight its tokens, or leave some out."""

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bapo_lightning.clipping.around import AroundStrategy, UpdateTokens
from bapo_lightning.clipping.base import call_bounds
from bapo_lightning.clipping.records import ClipBounds, Surrogate, report_of
from bapo_lightning.clipping.surrogate import at_least_float32


@dataclass(frozen=True)
class TokenWeights:
    """What a strategy makes of each token before the inner one sees it."""

    weight: Tensor
    """[B, T]; >= 0, a constant; 0 leaves the token out."""

    capped: Tensor | None = None
    """[B, T] bool; where the weight is smaller than its formula says. None: nowhere."""

    shift: Tensor | None = None
    """[B, T] nats; moved from the log-ratio to the policy that the inner strategy starts from. None: nothing."""


@dataclass(frozen=True)
class ReweightedBounds(ClipBounds):
    """The inner strategy's window, and the weights of the tokens inside it."""

    inner: ClipBounds = None  # type: ignore[assignment]  # always given, as are the next two; ClipBounds has defaults
    weight: Tensor = None  # type: ignore[assignment]
    dropped: Tensor = None  # type: ignore[assignment]
    capped: Tensor | None = None
    shift: Tensor | None = None


class ReweightedStrategy(AroundStrategy):
    """Multiplies objective and gradient of another strategy's tokens by a weight.

    The inner strategy searches and measures with the weighted tokens, so that what it balances is what is optimised.
    A subclass says what the weights are.

    Args:
        inner: Any strategy, another one of this kind too.
    """

    @abstractmethod
    def weights(self, tokens: UpdateTokens) -> TokenWeights:
        """Weight the tokens of an update, the same way on all ranks; what is masked gets any weight."""

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
        """Weight the tokens, then let the inner strategy find its window; see `ClippingStrategy.bounds`."""
        tokens = UpdateTokens(log_ratio, advantages, mask, rollout_log_probs, entropy, proximal_log_probs)
        given = self.weights(tokens)
        dtype = tokens.log_ratio.dtype
        weight = torch.where(tokens.mask, given.weight.to(dtype), 1.0)
        shift = None if given.shift is None else torch.where(tokens.mask, given.shift.to(dtype), 0.0)
        weighted = replace(
            tokens,
            log_ratio=tokens.log_ratio if shift is None else tokens.log_ratio - shift,
            advantages=advantages * weight,
        )
        if shift is not None:
            # The policy that the inner strategy starts from; log π_θ stays what it is.
            weighted = replace(weighted, rollout_log_probs=tokens.require("rollout_log_probs", self) + shift)
        found = call_bounds(self.inner, **vars(weighted))
        window = ReweightedBounds(
            **report_of(found), inner=found, weight=weight, dropped=weight == 0, capped=given.capped, shift=shift
        )
        # The inner strategy measured f(weight·A), which is not weight·f(A) where A is shifted or a ratio shared.
        measured = self.with_shares(window, tokens.log_ratio, advantages, tokens.mask, rollout_log_probs)
        if found.measure != found.value_share or found.steps > 0:
            measured = replace(
                measured,
                measure=found.measure,
                value_share_before=found.value_share_before,
                gradient_share_before=found.gradient_share_before,
            )
        return measured

    def surrogate(self, log_ratio: Tensor, advantages: Tensor, bounds: ClipBounds) -> Surrogate:
        """The inner strategy's objective times the weight, with its gradient times the weight."""
        assert isinstance(bounds, ReweightedBounds)
        log_ratio = at_least_float32(log_ratio)
        if bounds.shift is not None:
            log_ratio = log_ratio - bounds.shift
        weight = bounds.weight
        result = self.inner.surrogate(_scale_gradient(log_ratio, weight), advantages, bounds.inner)
        # The value only: the gradient is scaled on its way out, each token's by its own weight even where the inner
        # objective of one token depends on the others.
        value = result.objective.detach()
        objective = weight * value + (result.objective - value)
        kept = ~bounds.dropped
        return replace(
            result,
            objective=objective,
            clipped_low=result.clipped_low & kept,
            clipped_high=result.clipped_high & kept,
            clipped_dual=result.clipped_dual & kept,
            capped=(result.capped if bounds.capped is None else result.capped | bounds.capped) & kept & ~result.clipped,
            dropped=result.dropped | (bounds.dropped & (advantages != 0)),
        )


def _scale_gradient(log_ratio: Tensor, weight: Tensor) -> Tensor:
    scaled: Tensor = _ScaledGradient.apply(log_ratio, weight)  # type: ignore[no-untyped-call]
    return scaled


class _ScaledGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, log_ratio: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(weight)
        return log_ratio.clone()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor, None]:
        (weight,) = ctx.saved_tensors
        (grad,) = grad_outputs
        return torch.where(weight == 0, 0.0, grad * weight), None
