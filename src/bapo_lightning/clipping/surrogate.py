"""Objectives token by token: the clipped one of PPO, and those that strategies build from a weight."""

from typing import Any

import torch
from torch import Tensor

from bapo_lightning.clipping.records import Surrogate

MAX_LOG_RATIO = 20.0
"""Ratios are capped at e^20 ≈ 4.9e8, so that sums over an update stay finite in float32."""

MIN_LOG_RATIO = -80.0
"""And at e^−80 ≈ 2e-35, below which a token's gradient would underflow and fall silent without being clipped."""


def capped_ratio(log_ratio: Tensor) -> Tensor:
    """exp(log_ratio), kept within exp(`MIN_LOG_RATIO`) and exp(`MAX_LOG_RATIO`)."""
    return log_ratio.clamp(MIN_LOG_RATIO, MAX_LOG_RATIO).exp()


def at_least_float32(log_ratio: Tensor) -> Tensor:
    """Raise half precision: the difference of two bfloat16 ratios near 1 is up to a percent off."""
    return log_ratio.float() if log_ratio.dtype in (torch.float16, torch.bfloat16) else log_ratio


def objective_with_derivative(log_ratio: Tensor, value: Tensor, derivative: Tensor) -> Tensor:
    """A value per token whose derivative with respect to that token's log-ratio is given.

    For objectives with a stop-gradient, and for ratios that are capped without silencing the token. No gradient
    in, none out: a token that the caller masked stays silent even if its log-ratio is NaN.

    Args:
        log_ratio: [B, T] nats; differentiable.
        value: [B, T]; a constant.
        derivative: [B, T]; a constant.

    Returns:
        [B, T], equal to ``value``.
    """
    result: Tensor = _GivenDerivative.apply(log_ratio, value.detach(), derivative.detach())  # type: ignore[no-untyped-call]
    return result


def weighted_objective(log_ratio: Tensor, weighted_advantages: Tensor) -> Tensor:
    """sg(weight)·A·log π: its value is weight·A, and so is its derivative with respect to log π.

    An objective of this form is defined up to a constant only; this choice of it equals r·A where the weight is r.

    Args:
        log_ratio: [B, T] nats; differentiable.
        weighted_advantages: [B, T]; weight·A, a constant.

    Returns:
        [B, T].
    """
    return objective_with_derivative(log_ratio, weighted_advantages, weighted_advantages)


def clipped_surrogate(
    log_ratio: Tensor,
    advantages: Tensor,
    low: float | Tensor,
    high: float | Tensor,
    dual_clip: float | None = None,
) -> Surrogate:
    """min(r·A, clip(r, low, high)·A) for every token (arXiv 2510.18927, Eq. 4 and 5).

    Written by sign of the advantage: with A > 0 only the upper bound acts, with A < 0 only the lower one.
    Where A is not 0 the gradient is exactly zero if and only if the token is reported as clipped. Value and
    gradient are finite for every log-ratio; beyond `MAX_LOG_RATIO` an unclipped token keeps the gradient it
    has there.

    Args:
        log_ratio: [B, T] nats; differentiable; half precision is raised to float32.
        advantages: [B, T].
        low: Lower ratio bound, >= 0; a number or broadcastable to [B, T].
        high: Upper ratio bound, likewise.
        dual_clip: Ratio > 1 above which tokens with A < 0 are clipped too: max(min(…), dual_clip·A)
            (arXiv 1912.09729). None turns it off.

    Returns:
        The objective, in the floating type of ``log_ratio``, and the clip masks.
    """
    log_ratio = at_least_float32(log_ratio)
    advantages = advantages.to(log_ratio.dtype)
    ratio = log_ratio.detach().exp()  # not capped: a bound may lie beyond the cap
    negative = advantages < 0
    clipped_high = (advantages > 0) & (ratio > high)
    clipped_low = negative & (ratio < low)
    objective = weighted_objective(log_ratio, capped_ratio(log_ratio.detach()) * advantages)
    objective = torch.where(clipped_high, high * advantages, objective)
    objective = torch.where(clipped_low, low * advantages, objective)
    if dual_clip is None:
        return Surrogate(objective, clipped_low=clipped_low, clipped_high=clipped_high)
    clipped_dual = negative & (ratio > dual_clip)
    objective = torch.where(clipped_dual, dual_clip * advantages, objective)
    return Surrogate(objective, clipped_low=clipped_low, clipped_high=clipped_high, clipped_dual=clipped_dual)


class _GivenDerivative(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, _log_ratio: Tensor, value: Tensor, derivative: Tensor) -> Tensor:
        ctx.save_for_backward(derivative)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor, None, None]:
        (derivative,) = ctx.saved_tensors
        (grad,) = grad_outputs
        return torch.where(grad == 0, 0.0, grad * derivative), None, None
