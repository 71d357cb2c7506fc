"""Log-probs and entropies of sampled tokens from hidden states, a chunk of tokens at a time."""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint


def token_log_probs(
    hidden: Tensor,
    head_weight: Tensor,
    targets: Tensor,
    *,
    temperature: float = 1.0,
    chunk_size: int = 1024,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Score sampled tokens without ever holding logits of all tokens.

    Logits of one chunk are computed in float32, used and dropped; the backward pass computes them again. Peak memory
    is of the order ``chunk_size × V`` instead of ``N × V``.

    Args:
        hidden: [N, H]; last hidden states, one per scored token (the state *before* the token).
        head_weight: [V, H]; weight of the language-model head.
        targets: [N] int64; the sampled ids.
        temperature: Sampling temperature, > 0. Logits are divided by it, as the sampler does.
        chunk_size: Tokens per chunk, > 0.
        bias: [V]; bias of the head, if it has one.

    Returns:
        ``(log_probs [N], entropy [N])`` in nats, float32 (float64 for float64 inputs), both differentiable.

    Raises:
        ValueError: ``temperature`` or ``chunk_size`` is not positive.
    """
    if temperature <= 0.0:
        raise ValueError(f"temperature must be > 0, got {temperature}")
    if chunk_size <= 0:
        raise ValueError(f"chunk_size must be > 0, got {chunk_size}")

    parts = []
    # At least one pass, so that an empty input still gives a result with a gradient to hidden and head.
    for start in range(0, max(hidden.shape[0], 1), chunk_size):
        chunk = slice(start, start + chunk_size)
        arguments = (hidden[chunk], head_weight, targets[chunk], bias, temperature)
        if torch.is_grad_enabled():
            parts.append(checkpoint(_score_chunk, *arguments, use_reentrant=False))
        else:
            parts.append(_score_chunk(*arguments))
    log_probs, entropy = zip(*parts, strict=True)
    return torch.cat(log_probs), torch.cat(entropy)


def _score_chunk(
    hidden: Tensor, weight: Tensor, targets: Tensor, bias: Tensor | None, temperature: float
) -> tuple[Tensor, Tensor]:
    dtype = torch.promote_types(hidden.dtype, torch.float32)
    # Under autocast the matrix product would fall back to bf16; the log-softmax must not see that.
    with torch.autocast(device_type=hidden.device.type, enabled=False):
        logits = F.linear(hidden.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype))
        return scores_from_logits(logits, targets, temperature)


def scores_from_logits(logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probs of ``targets`` and entropies from logits that are already there.

    Args:
        logits: [N, V]; −inf marks tokens that cannot be sampled.
        targets: [N] int64.
        temperature: Sampling temperature, > 0.

    Returns:
        ``(log_probs [N], entropy [N])`` in nats, at least float32.
    """
    log_softmax = F.log_softmax(logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature, dim=-1)
    chosen = log_softmax.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    # p·log p is 0 at p = 0; the product itself would be 0 · −inf = NaN.
    finite = log_softmax.masked_fill(log_softmax == float("-inf"), 0.0)
    entropy = -(log_softmax.exp() * finite).sum(-1)
    return chosen, entropy
