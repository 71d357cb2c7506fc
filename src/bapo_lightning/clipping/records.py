"""The two records that a clipping strategy returns."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class ClipBounds:
    """The window of one update, and how balanced the update is inside it.

    A share is P/(P+N): what tokens with A > 0 contribute, over what all tokens contribute, in [0, 1]. Numbers
    that a strategy does not measure stay NaN. A strategy that hands more than a window from `bounds` to
    `surrogate` returns a subclass with more fields.
    """

    low: float | Tensor
    """Lower ratio bound: a number, or [B, T] (or [B, 1]) for strategies with a bound per token."""

    high: float | Tensor
    """Upper ratio bound, likewise."""

    measure: float = math.nan
    """What the strategy steers, at these bounds (`BAPOClip`: see its ``measure``); else the value share."""

    value_share: float = math.nan
    """Share at these bounds where a token counts its objective: a clipped one its clipped value."""

    gradient_share: float = math.nan
    """Share at these bounds where a token counts its gradient: a clipped one nothing."""

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

        Every tensor is cut, those of subclasses and of bounds inside bounds too; without one this is the same
        object.
        """
        cut: dict[str, Any] = {}
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                cut[name] = value[start:stop, :width]
            elif isinstance(value, ClipBounds):
                cut[name] = value.rows(start, stop, width)
        return replace(self, **cut) if cut else self

    @classmethod
    def of_micro_batches(cls, parts: Sequence["ClipBounds"], sizes: Sequence[int], like: Tensor) -> "ClipBounds":
        """Report windows that were found for each micro-batch on its own.

        Args:
            parts: The window of each micro-batch.
            sizes: Responses in each.
            like: [B, T]; gives width, type and device.

        Returns:
            Bounds [B, T] as each token met them (1 where a micro-batch was narrower); the longest search; saturated
            if any was, reachable if all were. Shares stay NaN, since a mean of shares is no share.
        """

        def stacked(name: str) -> Tensor:
            rows = torch.ones(like.shape, dtype=torch.float32, device=like.device)
            start = 0
            for part, size in zip(parts, sizes, strict=True):
                bound = getattr(part, name)
                width = bound.shape[1] if isinstance(bound, Tensor) and bound.shape[1] > 1 else None
                rows[start : start + size, :width] = bound
                start += size
            return rows

        return ClipBounds(
            low=stacked("low"),
            high=stacked("high"),
            steps=max(part.steps for part in parts),
            saturated=any(part.saturated for part in parts),
            reachable=all(part.reachable for part in parts),
            empty=all(part.empty for part in parts),
        )


def report_of(bounds: ClipBounds) -> dict[str, Any]:
    """The fields of `ClipBounds` in a subclass, for a strategy that passes on what an inner one found."""
    return {item.name: getattr(bounds, item.name) for item in fields(ClipBounds)}


@dataclass(frozen=True, eq=False)
class Surrogate:
    """The objective of every token, and which tokens lost their gradient or part of it."""

    objective: Tensor
    """[B, T], to be maximised. For A ≠ 0 its gradient is exactly zero if and only if `clipped` is True."""

    clipped_low: Tensor
    """[B, T] bool; A < 0 and the ratio below the lower bound."""

    clipped_high: Tensor
    """[B, T] bool; A > 0 and the ratio above the upper bound."""

    clipped_dual: Tensor = field(default=None)  # type: ignore[assignment]  # filled below: never None for a reader
    """[B, T] bool; A < 0 and the ratio above the dual clip. All False when left out."""

    dropped: Tensor = field(default=None)  # type: ignore[assignment]
    """[B, T] bool; left out whatever the sign of A, by a token selector or a mask. All False when left out."""

    capped: Tensor = field(default=None)  # type: ignore[assignment]
    """[B, T] bool; the weight of the token was cut but its gradient kept. All False when left out."""

    def __post_init__(self) -> None:
        for name in ("clipped_dual", "dropped", "capped"):
            if vars(self)[name] is None:
                object.__setattr__(self, name, torch.zeros_like(self.clipped_low))

    @property
    def clipped(self) -> Tensor:
        """[B, T] bool; without a gradient, for any of the four reasons."""
        return self.clipped_low | self.clipped_high | self.clipped_dual | self.dropped

    def detach(self) -> "Surrogate":
        """The same without a graph, so that its memory is free."""
        return replace(self, objective=self.objective.detach())
