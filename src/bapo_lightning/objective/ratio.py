"""Importance ratios, in log space."""

import torch
from torch import Tensor


def log_ratio(log_probs: Tensor, rollout_log_probs: Tensor, mask: Tensor | None = None) -> Tensor:
    """Subtract log-probs of sampled tokens: log π_θ − log π_rollout.

    Nothing is clamped: a clipping strategy decides what happens to a far ratio (arXiv 2510.18927, Eq. 4).

    Args:
        log_probs: [B, T] nats; differentiable.
        rollout_log_probs: [B, T] nats; a constant.
        mask: [B, T] bool; True for tokens that count. Elsewhere the result and its gradient are 0, whatever
            stands there, NaN included. None: every token counts.

    Returns:
        [B, T], float32; float64 if both inputs are.
    """
    rollout_log_probs = rollout_log_probs.detach()
    wide = log_probs.dtype == rollout_log_probs.dtype == torch.float64
    dtype = torch.float64 if wide else torch.float32
    # Raised before the subtraction: a difference of two bfloat16 numbers is off by up to 1 % of a ratio.
    log_probs, rollout_log_probs = log_probs.to(dtype), rollout_log_probs.to(dtype)
    if mask is None:
        return log_probs - rollout_log_probs
    mask = mask.bool()
    return torch.where(mask, log_probs, 0.0) - torch.where(mask, rollout_log_probs, 0.0)


@torch.no_grad()
def effective_sample_size(log_ratio: Tensor, mask: Tensor) -> Tensor:
    """Effective sample size of importance-weighted tokens, (Σr)² / (n·Σr²), computed in log space.

    Args:
        log_ratio: [B, T] nats.
        mask: [B, T] bool; True for tokens that count.

    Returns:
        A scalar in [0, 1], a share of the n tokens: 1 when all ratios are equal, 1/n when a single one
        dominates, 0 when nothing is unmasked.
    """
    mask = mask.bool()
    logs = torch.where(mask, log_ratio.float(), -torch.inf).flatten()
    count = mask.sum()
    exponent = 2 * logs.logsumexp(0) - (2 * logs).logsumexp(0) - count.float().log()
    return torch.where(count > 0, exponent.exp(), 0.0)
