"""A window for each token, from its behaviour probability."""

import torch
from torch import Tensor

from bapo_lightning.clipping.base import ClippingStrategy
from bapo_lightning.clipping.inputs import require_given, require_number, require_shapes
from bapo_lightning.clipping.records import ClipBounds, Surrogate
from bapo_lightning.clipping.surrogate import at_least_float32, clipped_surrogate
from bapo_lightning.errors import InputError


class DCPO(ClippingStrategy):
    """Dynamic clipping: the less probable a token was, the wider its window.

    Formula: min(r·A, clip(r, low, high)·A) with q = π_rollout of the token, low = ½ + ½√max(1 − 4ε_low/q, 0) and
    high = min(½ + ½√(1 + 4ε_high/q), max_ratio). They solve r·|r − 1|·q = ε.
    Source: DCPO, arXiv 2509.02333. Defaults are the paper's; its code has 0.1 and 0.2.
    Helps: rare tokens may move, frequent ones may not: exploration without a wide window for all.
    Refuses: to run without behaviour log-probs. Its advantage smoothing and its loss over tokens are no clipping
    and not part of this.

    Args:
        epsilon_low: ε_low, > 0; in probability, the only place besides ``epsilon_high`` that is no ratio.
        epsilon_high: ε_high, > 0.
        max_ratio: Largest upper bound, > 1.

    Raises:
        InputError: An argument is out of its range.
    """

    needs_statistics = False

    def __init__(self, epsilon_low: float = 0.16, epsilon_high: float = 0.2, max_ratio: float = 10.0) -> None:
        self.epsilon_low = require_number("epsilon_low", epsilon_low, above=0.0)
        self.epsilon_high = require_number("epsilon_high", epsilon_high, above=0.0)
        if not max_ratio > 1.0:
            raise InputError(f"max_ratio must be a ratio above 1, got {max_ratio}")
        self.max_ratio = float(max_ratio)

    def bounds(
        self,
        log_ratio: Tensor,
        advantages: Tensor,
        mask: Tensor,
        rollout_log_probs: Tensor | None = None,
    ) -> ClipBounds:
        """Compute the window of every token; see `ClippingStrategy.bounds`.

        Raises:
            InputError: ``rollout_log_probs`` is missing.
        """
        rollout_log_probs = require_given(rollout_log_probs, "rollout_log_probs", "DCPO")
        require_shapes(log_ratio=log_ratio, rollout_log_probs=rollout_log_probs, mask=mask)
        dtype = at_least_float32(log_ratio).dtype
        inverse = torch.where(mask.bool(), -rollout_log_probs.to(dtype), 0.0).exp()
        window = ClipBounds(
            low=0.5 + 0.5 * (1.0 - 4.0 * self.epsilon_low * inverse).clamp(min=0.0).sqrt(),
            high=(0.5 + 0.5 * (1.0 + 4.0 * self.epsilon_high * inverse).sqrt()).clamp(max=self.max_ratio),
        )
        return self.with_shares(window, log_ratio, advantages, mask, rollout_log_probs)

    def surrogate(self, log_ratio: Tensor, advantages: Tensor, bounds: ClipBounds) -> Surrogate:
        """min(r·A, clip(r, low, high)·A) with bounds per token; see `clipped_surrogate`."""
        return clipped_surrogate(log_ratio, advantages, bounds.low, bounds.high)
