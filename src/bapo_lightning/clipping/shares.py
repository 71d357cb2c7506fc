"""How much tokens with positive and with negative advantage contribute, for many bounds at once.

The sums of tokens with A > 0 depend on the upper bound only, those with A < 0 on the lower one only. So a
vector per side holds every pair of bounds: one pass over the tokens, one all-reduce, one transfer to the
host.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from bapo_lightning.clipping.surrogate import capped_ratio

_BLOCK_ELEMENTS = 2**22
"""Size of the largest temporary, candidates × tokens: 32 MiB in float64."""


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
        total = positive + negative
        return positive / total if total != 0.0 else self.share_of_nothing

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

    Args:
        log_ratio: [B, T] nats.
        advantages: [B, T].
        mask: [B, T] bool; what stands under False never matters.
        lows: [j] lower ratio bounds.
        highs: [k] upper ratio bounds.
        rollout_log_probs: [B, T] nats; weights tokens by w = π_rollout. None: w = 1.
        dual_clip: Ratio above which tokens with A < 0 have no gradient. Their value is not capped, as in the
            authors' code.

    Returns:
        The sums in float64 (float32 on devices without it).
    """
    dtype = torch.float32 if log_ratio.device.type == "mps" else torch.float64
    mask = mask.bool()

    def unmasked(values: Tensor) -> Tensor:
        return torch.where(mask, values.to(dtype), 0.0).flatten()

    ratio = capped_ratio(unmasked(log_ratio))
    signed = unmasked(advantages)
    if rollout_log_probs is not None:
        signed = signed * unmasked(rollout_log_probs).exp()
    # A blocking copy would make the host wait for the forward pass here, besides the wait at the end.
    low = torch.tensor(lows, dtype=dtype)[:, None].to(ratio.device, non_blocking=True)
    high = torch.tensor(highs, dtype=dtype)[:, None].to(ratio.device, non_blocking=True)

    sums = ratio.new_zeros(2 * len(lows) + 2 * len(highs) + 2)
    block = max(_BLOCK_ELEMENTS // (len(lows) + len(highs)), 1)
    for r, a in zip(torch.split(ratio, block), torch.split(signed, block), strict=True):
        positive, negative = a.clamp(min=0.0), (-a).clamp(min=0.0)
        live = negative * r if dual_clip is None else torch.where(r <= dual_clip, negative * r, 0.0)
        sums += torch.cat(
            [
                torch.minimum(r, high) @ positive,
                torch.maximum(r, low) @ negative,
                (r <= high).to(dtype) @ (positive * r),
                (r >= low).to(dtype) @ live,
                torch.stack([positive.sum(), negative.sum()]),
            ]
        )
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(sums)
    numbers = iter(sums.tolist())

    def take(count: int) -> list[float]:
        return [next(numbers) for _ in range(count)]

    return ContributionSums(
        positive_value=take(len(highs)),
        negative_value=take(len(lows)),
        positive_gradient=take(len(highs)),
        negative_gradient=take(len(lows)),
        positive_weight=next(numbers),
        negative_weight=next(numbers),
    )
