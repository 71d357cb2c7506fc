"""The clipped PPO objective, token by token."""

from typing import Any

import torch
from torch import Tensor

from bapo_lightning.clipping.base import Surrogate

MAX_LOG_RATIO = 20.0
"""Ratios are capped at e^20 ≈ 4.9e8, so that sums over an update stay finite in float32."""


def capped_ratio(log_ratio: Tensor) -> Tensor:
    """exp(log_ratio), at most exp(`MAX_LOG_RATIO`)."""
    return log_ratio.clamp(max=MAX_LOG_RATIO).exp()


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
        low: Lower ratio bound, > 0; a number or broadcastable to [B, T].
        high: Upper ratio bound, likewise.
        dual_clip: Ratio > 1 above which tokens with A < 0 are clipped too: max(min(…), dual_clip·A)
            (arXiv 1912.09729). None turns it off.

    Returns:
        The objective, in the floating type of ``log_ratio``, and the clip masks.
    """
    if log_ratio.dtype in (torch.float16, torch.bfloat16):
        log_ratio = log_ratio.float()
    advantages = advantages.to(log_ratio.dtype)
    ratio = capped_ratio(log_ratio.detach())
    negative = advantages < 0
    clipped_high = (advantages > 0) & (ratio > high)
    clipped_low = negative & (ratio < low)
    clipped_dual = negative & (ratio > dual_clip) if dual_clip is not None else torch.zeros_like(negative)
    objective = _RatioTimesAdvantage.apply(log_ratio, advantages)  # type: ignore[no-untyped-call]
    objective = torch.where(clipped_high, high * advantages, objective)
    objective = torch.where(clipped_low, low * advantages, objective)
    if dual_clip is not None:
        objective = torch.where(clipped_dual, dual_clip * advantages, objective)
    return Surrogate(objective, clipped_low=clipped_low, clipped_high=clipped_high, clipped_dual=clipped_dual)


class _RatioTimesAdvantage(torch.autograd.Function):
    """r·A with the derivative r·A, also where r is capped: a plain clamp would silence unclipped tokens.

    No gradient in, none out: a token that the caller masked stays silent even if its log-ratio is NaN, where
    0 × NaN would reach the weights.
    """

    @staticmethod
    def forward(ctx: Any, log_ratio: Tensor, advantages: Tensor) -> Tensor:
        value = capped_ratio(log_ratio) * advantages
        ctx.save_for_backward(value)
        return value

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor, None]:
        (value,) = ctx.saved_tensors
        (grad,) = grad_outputs
        return torch.where(grad == 0, 0.0, grad * value), None
