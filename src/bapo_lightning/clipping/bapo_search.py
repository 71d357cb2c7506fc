"""The search of BAPO: candidate bounds, the order in which they are tried, what is measured, where it ends.

Plain numbers only; the tokens were summed before (``shares.py``). Steps are counted in integers and
candidates are decimal, because adding 0.02 fifteen times to 0.6 in floats overshoots 0.9 and loses the last
step.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import product
from typing import Literal

Order = Literal["high_first", "low_first"]
Measure = Literal["share", "pos_neg", "signed"]

Position = tuple[int, int]
"""(lower candidate, upper candidate), counted from the start bounds."""

_ROUNDING = 1e-12
"""Relative slack at the target. A tie must not depend on the order in which tokens or ranks were summed."""


@dataclass(frozen=True)
class SearchResult:
    """Where a search ended; the flags are those of `ClipBounds`."""

    position: Position
    measure: float
    steps: int
    saturated: bool
    reachable: bool


def candidate_bounds(start: float, limit: float, step: float, *, clamp_last_step: bool) -> list[float]:
    """List ``start, start + step, …`` up to ``limit``.

    Args:
        start: First bound.
        limit: Last bound allowed, >= start.
        step: > 0; ignored when start equals limit.
        clamp_last_step: What happens to a range that is not a whole number of steps. False: it ends at the
            last whole step (Algorithm 1). True: one shorter step ends at the limit (the authors' code).

    Returns:
        At least one bound, increasing, each rounded as its decimal reads (0.62, not 0.6200000000000001).
    """
    if start == limit:
        return [start]
    first, last, stride = (Decimal(repr(float(value))) for value in (start, limit, step))
    quotient = (last - first) / stride
    num_steps = int(quotient + Decimal("1e-9"))
    bounds = [float(min(first + stride * count, last)) for count in range(num_steps + 1)]
    ends_at_limit = num_steps > 0 and abs(quotient - num_steps) < Decimal("1e-9")
    if ends_at_limit:
        bounds[-1] = float(limit)
    elif clamp_last_step:
        bounds.append(float(limit))
    return bounds


def search_path(num_low: int, num_high: int, order: Order) -> list[Position]:
    """List the positions that the search tries, in order: one bound to its end, then the other.

    Args:
        num_low: Number of lower candidates, >= 1.
        num_high: Number of upper candidates, >= 1.
        order: Which bound moves first. Algorithm 1: the upper one.

    Returns:
        ``num_low + num_high - 1`` positions, from (0, 0) to both last candidates.
    """
    if order == "high_first":
        return [(0, k) for k in range(num_high)] + [(j, num_high - 1) for j in range(1, num_low)]
    return [(j, 0) for j in range(num_low)] + [(num_low - 1, k) for k in range(1, num_high)]


def measure_balance(
    positive: float, negative: float, measure: Measure, *, share_of_nothing: float, epsilon: float = 0.0
) -> float:
    """Compare the contribution P of positive tokens with N, that of negative ones.

    Args:
        positive: P >= 0.
        negative: N >= 0.
        measure: ``share`` P/(P+N); ``pos_neg`` P/(N+epsilon), infinite for N = 0; ``signed`` P/abs(P-N),
            infinite for P = N.
        share_of_nothing: 1 or 0; decides the case P = N = 0 (see `ContributionSums.share_of_nothing`).
        epsilon: Added to N by ``pos_neg``.

    Returns:
        The measure, >= 0, never NaN for finite sums.
    """
    if positive == negative == 0.0:
        return math.inf if share_of_nothing == 1.0 and measure != "share" else share_of_nothing
    if measure == "share":
        return positive / (positive + negative)
    if measure == "pos_neg":
        return positive / (negative + epsilon) if negative != 0.0 else math.inf
    return positive / abs(positive - negative) if positive != negative else math.inf


def best_positions(positive: Sequence[float], negative: Sequence[float], measure: Measure) -> list[Position]:
    """List positions among which the largest measure is found.

    Args:
        positive: P at each upper candidate.
        negative: N at each lower candidate.
        measure: What is measured.

    Returns:
        One position where the measure rises with P and falls with N; all of them for ``signed``, which does neither.
    """
    if measure == "signed":
        return list(product(range(len(negative)), range(len(positive))))
    return [(min(range(len(negative)), key=negative.__getitem__), max(range(len(positive)), key=positive.__getitem__))]


def search(
    path: list[Position], measure_at: Callable[[Position], float], target: float, best: Sequence[Position]
) -> SearchResult:
    """Stop at the first position of a path that meets the target, else at its end.

    Args:
        path: What `search_path` returned.
        measure_at: The measure at a position.
        target: Met by a measure >= target.
        best: What `best_positions` returned: some of these meet the target if any position does.

    Returns:
        The same as stepping and measuring one bound at a time.
    """

    def meets_target(measure: float) -> bool:
        return measure >= target * (1.0 - _ROUNDING)

    measures = [measure_at(position) for position in path]
    steps = next((count for count, measure in enumerate(measures) if meets_target(measure)), None)
    if steps is not None:
        return SearchResult(path[steps], measures[steps], steps, saturated=False, reachable=True)
    return SearchResult(
        position=path[-1],
        measure=measures[-1],
        steps=len(path) - 1,
        saturated=True,
        reachable=any(meets_target(measure_at(position)) for position in best),
    )
