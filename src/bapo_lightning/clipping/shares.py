"""How much tokens with positive and with negative advantage contribute."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from bapo_lightning.clipping.bound_table import bound_table
from bapo_lightning.clipping.inputs import clean_tokens, require_shapes
from bapo_lightning.clipping.ranks import sum_over_ranks
from bapo_lightning.clipping.records import ClipBounds, Surrogate
from bapo_lightning.clipping.surrogate import capped_ratio

_BLOCK_TOKENS_CPU = 2**16
_BLOCK_TOKENS = 2**22

Bounds = TypeVar("Bounds", bound=ClipBounds)


def share_of(positive: float, negative: float, *, share_of_nothing: float) -> float:
    """P/(P+N), in [0, 1]; ``share_of_nothing`` for 0/0."""
    total = positive + negative
    return positive / total if total != 0.0 else share_of_nothing


@dataclass(frozen=True)
class ContributionSums:
    """Sums of |contribution| over the tokens of all ranks; ``k`` counts upper and ``j`` lower candidates."""

    positive_value: list[float]
    """[k] Σ w·min(r, high_k)·A over A > 0: the value that Eq. 8 adds up."""

    negative_value: list[float]
    """[j] Σ w·max(r, low_j)·|A| over A < 0."""

    positive_gradient: list[float]
    """[k] Σ w·r·A over A > 0 and r ≤ high_k: clipped tokens count nothing (Eq. 5)."""

    negative_gradient: list[float]
    """[j] Σ w·r·|A| over A < 0 and low_j ≤ r ≤ dual clip."""

    positive_weight: float
    """Σ w·A over A > 0."""

    negative_weight: float
    """Σ w·|A| over A < 0."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to measure: no token, or every advantage 0."""
        return self.positive_weight + self.negative_weight == 0.0

    def value_share(self, low_index: int, high_index: int) -> float:
        """Share P/(P+N) of clipped values."""
        return self._share(self.positive_value[high_index], self.negative_value[low_index])

    def gradient_share(self, low_index: int, high_index: int) -> float:
        """Share P/(P+N) of what is not clipped."""
        return self._share(self.positive_gradient[high_index], self.negative_gradient[low_index])

    def _share(self, positive: float, negative: float) -> float:
        return share_of(positive, negative, share_of_nothing=self.share_of_nothing)

    @property
    def share_of_nothing(self) -> float:
        """What 0/0 counts: 1 when no token pulls down; else 0, so that a search goes on to let tokens in."""
        return 1.0 if self.negative_weight == 0.0 else 0.0


@torch.no_grad()
def contribution_sums(
    log_ratio: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    lows: Sequence[float],
    highs: Sequence[float],
    rollout_log_probs: Tensor | None = None,
    dual_clip: float | None = None,
) -> ContributionSums:
    """Sum the contributions of an update for every candidate bound, over tokens and ranks.

    The sums of tokens with A > 0 depend on the upper bound only, those with A < 0 on the lower one only, and
    between two neighbouring candidates no token changes sides. So tokens are added up once by sign and by the
    candidates they lie between; running sums over these bins are the sums for every candidate. One pass over the
    tokens, one all-reduce, one transfer to the host, whatever the number of candidates.

    Args:
        log_ratio: [B, T] nats.
        advantages: [B, T].
        mask: [B, T] bool; what stands under False never matters.
        lows: [j] lower ratio bounds, increasing, <= 1.
        highs: [k] upper ratio bounds, increasing, >= 1.
        rollout_log_probs: [B, T] nats; weights tokens by w = π_rollout. None: w = 1.
        dual_clip: Ratio above which tokens with A < 0 have no gradient. Their value is not capped, as in the
            authors' code.

    Returns:
        The sums in float64 (float32 on devices without it).

    Raises:
        InputError: Shapes differ, or an unmasked value is NaN or infinite.
    """
    require_shapes(log_ratio=log_ratio, advantages=advantages, mask=mask, rollout_log_probs=rollout_log_probs)
    inputs = [t for t in (log_ratio, advantages, mask, rollout_log_probs) if t is not None]
    num_columns = 2 if dual_clip is None else 3
    num_bins = len(lows) + len(highs) + 1
    dtype = torch.float32 if log_ratio.device.type == "mps" else torch.float64
    sums = log_ratio.new_zeros(num_columns * 2 * num_bins + 1, dtype=dtype)
    by_bin = sums[:-1].view(num_columns, 2 * num_bins)
    # In blocks that stay in a CPU's cache, which also bounds the memory that this takes.
    block = _BLOCK_TOKENS_CPU if log_ratio.device.type == "cpu" else _BLOCK_TOKENS
    rows = max(block // max(log_ratio.shape[1], 1), 1)
    for parts in zip(*(torch.split(tensor, rows) for tensor in inputs), strict=True):
        tokens = clean_tokens(*parts)
        ratio = capped_ratio(tokens.log_ratio).flatten()
        signed = (tokens.advantages * tokens.weight).flatten()
        negative = signed < 0
        size = signed.abs()
        value = size * ratio
        table = bound_table(tuple(lows), tuple(highs), ratio.dtype, str(ratio.device))
        bins = table.bins(ratio) + num_bins * negative
        columns = [size, value]
        if dual_clip is not None:
            columns.append(torch.where(negative & (ratio > dual_clip), 0.0, value))
        for row, column in zip(by_bin, columns, strict=True):
            row.scatter_add_(0, bins, column.to(dtype))
        sums[-1] += tokens.unusable.sum()

    numbers = sum_over_ranks(sums).cpu()
    if numbers[-1] > 0:
        clean_tokens(*inputs).require_usable(numbers[-1].item())
    sizes, values, *rest = numbers[:-1].view(num_columns, 2, num_bins)
    live = rest[0] if rest else values

    # Edge j is lower candidate j and edge J + k upper candidate k; a token in bin b lies above the first b edges.
    # Sums from above and from below, never a difference: a far ratio would swallow the rest.
    num_low = len(lows)
    low, high = torch.tensor(lows, dtype=dtype), torch.tensor(highs, dtype=dtype)
    up_to_high = values[0].cumsum(0)[num_low:-1]
    return ContributionSums(
        positive_value=(up_to_high + high * _sums_above(sizes[0])[num_low:]).tolist(),
        negative_value=(_sums_above(values[1])[:num_low] + low * sizes[1].cumsum(0)[:num_low]).tolist(),
        positive_gradient=up_to_high.tolist(),
        negative_gradient=_sums_above(live[1])[:num_low].tolist(),
        positive_weight=sizes[0].sum().item(),
        negative_weight=sizes[1].sum().item(),
    )


def _sums_above(bins: Tensor) -> Tensor:
    """[E]: for each edge the sum of the bins [E + 1] above it."""
    return bins[1:].flip(0).cumsum(0).flip(0)


def measure_shares(
    surrogate: Callable[[Tensor, Tensor, Bounds], Surrogate],
    bounds: Bounds,
    log_ratio: Tensor,
    advantages: Tensor,
    mask: Tensor,
    rollout_log_probs: Tensor | None = None,
) -> Bounds:
    """Measure the shares of positive tokens under any surrogate; see `ClippingStrategy.with_shares`.

    Each token counts the size of its objective (value share) and of its gradient with respect to its own
    log-prob (gradient share).

    Args:
        surrogate: Gives the objective of every token.
        bounds: The window it is given.
        log_ratio: [B, T] nats.
        advantages: [B, T].
        mask: [B, T] bool.
        rollout_log_probs: [B, T] nats; weights tokens by π_rollout. None: they weigh alike.

    Returns:
        The bounds, with what was measured over all ranks.

    Raises:
        InputError: Shapes differ, or an unmasked value is NaN or infinite.
        RuntimeError: Inference mode is on.
    """
    if torch.is_inference_mode_enabled():
        raise RuntimeError("shares are measured with autograd; call `bounds` under torch.no_grad, not inference_mode")
    tokens = clean_tokens(log_ratio, advantages, mask, rollout_log_probs)
    with torch.enable_grad():
        differentiable = tokens.log_ratio.detach().requires_grad_()
        objective = surrogate(differentiable, tokens.advantages, bounds).objective
        gradient = torch.zeros_like(objective)
        if objective.requires_grad:
            (gradient,) = torch.autograd.grad(objective.sum(), differentiable)
    dtype = torch.float32 if gradient.device.type == "mps" else torch.float64
    positive, negative = tokens.advantages > 0, tokens.advantages < 0
    parts = [
        (part * tokens.weight * side).sum(dtype=dtype)
        for part in (objective.detach().abs(), gradient.abs(), tokens.advantages.abs())
        for side in (positive, negative)
    ]
    sums = sum_over_ranks(torch.stack([*parts, tokens.unusable.sum().to(dtype)]))
    numbers = sums.tolist()
    tokens.require_usable(numbers.pop())
    value_up, value_down, gradient_up, gradient_down, weight_up, weight_down = numbers
    share_of_nothing = 1.0 if weight_down == 0.0 else 0.0
    value_share = share_of(value_up, value_down, share_of_nothing=share_of_nothing)
    gradient_share = share_of(gradient_up, gradient_down, share_of_nothing=share_of_nothing)
    return replace(
        bounds,
        measure=value_share,
        value_share=value_share,
        gradient_share=gradient_share,
        value_share_before=value_share,
        gradient_share_before=gradient_share,
        empty=weight_up + weight_down == 0.0,
    )
