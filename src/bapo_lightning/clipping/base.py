"""What every clipping strategy is: two calls, and the records they return."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class ClipBounds:
    """The window of one update, and how balanced the update is inside it.

    A share is P/(P+N): what tokens with A > 0 contribute, over what all tokens contribute, in [0, 1]. Numbers
    that a strategy does not measure stay NaN.
    """

    low: float | Tensor
    """Lower ratio bound: a number, or [B, T] (or [B, 1]) for strategies with a bound per token."""

    high: float | Tensor
    """Upper ratio bound, likewise."""

    measure: float = math.nan
    """What the strategy steers, at these bounds (`BAPOClip`: see its ``measure``); else the value share."""

    value_share: float = math.nan
    """Share at these bounds where a clipped token counts its clipped value."""

    gradient_share: float = math.nan
    """Share at these bounds where a clipped token counts nothing."""

    steps: int = 0
    """Steps the search took from its start, 0 without a search."""

    saturated: bool = False
    """Whether the search went to both limits and still missed its target."""

    reachable: bool = True
    """Whether any pair of bounds within the limits meets the target, visited by the search or not."""

    value_share_before: float = math.nan
    """``value_share`` at the start bounds."""

    gradient_share_before: float = math.nan
    """``gradient_share`` at the start bounds."""

    empty: bool = False
    """Whether there was nothing to measure (no token, or every advantage 0); the shares are then 1."""

    def rows(self, start: int, stop: int, width: int | None = None) -> "ClipBounds":
        """Cut to a micro-batch: responses ``start … stop-1``, their first ``width`` tokens (all by default).

        Every tensor field is cut, those of subclasses too; without one this is the same object.
        """
        cut: dict[str, Any] = {
            name: value[start:stop, :width] for name, value in vars(self).items() if isinstance(value, Tensor)
        }
        return replace(self, **cut) if cut else self


@dataclass(frozen=True, eq=False)
class Surrogate:
    """The objective of every token, and which tokens lost their gradient."""

    objective: Tensor
    """[B, T], to be maximised. For A ≠ 0 its gradient is exactly zero if and only if a mask below is True."""

    clipped_low: Tensor
    """[B, T] bool; A < 0 and the ratio below the lower bound."""

    clipped_high: Tensor
    """[B, T] bool; A > 0 and the ratio above the upper bound."""

    clipped_dual: Tensor = None  # type: ignore[assignment]  # filled below: never None for a reader
    """[B, T] bool; A < 0 and the ratio above the dual clip. All False when left out."""

    def __post_init__(self) -> None:
        if vars(self)["clipped_dual"] is None:
            object.__setattr__(self, "clipped_dual", torch.zeros_like(self.clipped_low))

    @property
    def clipped(self) -> Tensor:
        """[B, T] bool; clipped by any of the three."""
        return self.clipped_low | self.clipped_high | self.clipped_dual


class ClippingStrategy(ABC):
    """Decides which tokens of an update keep their gradient.

    A strategy is a plain object without tensors or state from one update to the next, so it can be pickled,
    written to YAML and shared by ranks.
    """

    needs_statistics: bool = True
    """Whether ``low`` and ``high`` depend on the log-ratios.

    If not, a trainer needs no forward pass over the update before the first backward: it calls `bounds` with
    log-ratios of zero, and may call it again with the real ones, for the shares.
    """

    @abstractmethod
    def bounds(
        self,
        log_ratio: Tensor,
        advantages: Tensor,
        mask: Tensor,
        rollout_log_probs: Tensor | None = None,
    ) -> ClipBounds:
        """Find the window of one update. Called once per optimizer step, with the whole update.

        Under ``torch.distributed`` the sums go over all ranks in one all-reduce, so every rank must call, a
        rank without a single response too.

        Args:
            log_ratio: [B, T] nats; log π_θ − log π_rollout. No gradient is taken.
            advantages: [B, T].
            mask: [B, T] bool; True for tokens in the loss. Anything may stand under False, NaN included.
            rollout_log_probs: [B, T] nats; log π_rollout.

        Returns:
            The bounds, equal on all ranks.
        """

    @abstractmethod
    def surrogate(self, log_ratio: Tensor, advantages: Tensor, bounds: ClipBounds) -> Surrogate:
        """Compute the objective of every token. Called once per micro-batch.

        Args:
            log_ratio: [B, T] nats; differentiable. The caller drops masked tokens afterwards.
            advantages: [B, T].
            bounds: What `bounds` returned for the update, cut to these responses (`ClipBounds.rows`).

        Returns:
            The objective, not aggregated, and the clip masks.
        """

    def __repr__(self) -> str:
        arguments = (f"{name}={value!r}" for name, value in vars(self).items() if not name.startswith("_"))
        return f"{type(self).__name__}({', '.join(arguments)})"
