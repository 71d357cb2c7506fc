"""Entropy of next-token distributions."""

import torch
from torch import Tensor


def entropy_from_logits(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """−Σ p·log p of softmax(logits / temperature), in float32 or wider.

    For tests and small vocabularies: it holds [..., V]. Forbidden tokens (logits of −inf) count 0, in the
    gradient too.

    Args:
        logits: [..., V]; differentiable; at least one finite logit in each row.
        temperature: > 0, dimensionless; the sampling temperature.

    Returns:
        [...] nats, in [0, log V].
    """
    if logits.dtype != torch.float64:
        logits = logits.float()
    log_probs = torch.log_softmax(logits / temperature, dim=-1)
    finite_log_probs = log_probs.masked_fill(log_probs == -torch.inf, 0.0)
    return -(log_probs.exp() * finite_log_probs).sum(-1)
