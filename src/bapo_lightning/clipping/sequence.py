"""What strategies share whose ratio belongs to a whole response."""

from dataclasses import dataclass

import torch
from torch import Tensor

from bapo_lightning.clipping.base import ClippingStrategy
from bapo_lightning.clipping.inputs import require_shapes, require_window
from bapo_lightning.clipping.records import ClipBounds
from bapo_lightning.clipping.surrogate import capped_ratio, objective_with_derivative


@dataclass(frozen=True)
class SequenceBounds(ClipBounds):
    """A window, and which tokens make up each response."""

    mask: Tensor = None  # type: ignore[assignment]  # always given; a default because the fields before it have one
    """[B, T] bool."""


class SequenceStrategy(ClippingStrategy):
    """Strategies with one ratio a response. They differ in their surrogate only.

    Args:
        low: Lower ratio bound, in [0, 1].
        high: Upper ratio bound, >= 1.

    Raises:
        InputError: A bound is on the wrong side of 1.
    """

    needs_statistics = False
    source_aggregation = "sequence_mean"

    def __init__(self, low: float, high: float) -> None:
        require_window(low, high)
        self.low = float(low)
        self.high = float(high)

    def bounds(
        self,
        log_ratio: Tensor,
        advantages: Tensor,
        mask: Tensor,
        rollout_log_probs: Tensor | None = None,
    ) -> SequenceBounds:
        """Return the fixed window with the shares of this update; see `ClippingStrategy.bounds`."""
        require_shapes(log_ratio=log_ratio, advantages=advantages, mask=mask)
        window = SequenceBounds(low=self.low, high=self.high, mask=mask.bool())
        found = self.with_shares(window, log_ratio, advantages, mask, rollout_log_probs)
        assert isinstance(found, SequenceBounds)
        return found


def geometric_mean(log_ratio: Tensor, mask: Tensor) -> Tensor:
    """The geometric mean of the ratios of each response, differentiable also where it is capped.

    Args:
        log_ratio: [B, T] nats, float32 or wider; differentiable.
        mask: [B, T] bool.

    Returns:
        [B, 1]; 1 for a response without tokens.
    """
    mean = torch.where(mask, log_ratio, 0.0).sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)
    ratio = capped_ratio(mean.detach())
    return objective_with_derivative(mean, ratio, ratio)
