"""BAPO: bounds that are searched at every update."""

import math
from typing import Any, Literal, get_args

from torch import Tensor

from bapo_lightning.clipping.bapo_search import (
    Measure,
    Order,
    Position,
    best_positions,
    candidate_bounds,
    measure_balance,
    search,
    search_path,
)
from bapo_lightning.clipping.base import ClippingStrategy
from bapo_lightning.clipping.records import ClipBounds, Surrogate
from bapo_lightning.clipping.shares import contribution_sums
from bapo_lightning.clipping.surrogate import clipped_surrogate
from bapo_lightning.errors import InputError

Contribution = Literal["value", "gradient"]
Weighting = Literal["rollout_prob", "none"]

_MOST_STEPS = 1000
"""Of one bound. The paper's ranges have 15 and 36."""


class BAPOClip(ClippingStrategy):
    """BAPO's adaptive clipping (arXiv 2510.18927, Eq. 8 and Algorithm 1). Defaults are the paper's.

    At every update the bounds go back to their start and then widen step by step, until tokens with A > 0
    contribute at least ``target`` to the loss or both bounds are at their limits. The search sees the whole
    update, over all ranks. `BAPOClip.official` gives the authors' code instead.

    With ``contribution="value"`` raising the lower bound can only lower the positive share, so that once the
    upper bound is at its limit the lower one runs to its limit too; with ``"gradient"`` it removes negative
    tokens.

    Args:
        target: Stop as soon as ``measure`` is at least this. In (0, 1) for ``share``, >= 0 otherwise.
        low_start: Lower ratio bound at the start of every search, in [0, 1].
        low_max: Limit of the lower bound, in [low_start, 1].
        low_step: Step of the lower bound, > 0 (ignored when ``low_start`` equals ``low_max``).
        high_start: Upper ratio bound at the start of every search, >= 1.
        high_max: Limit of the upper bound, >= high_start.
        high_step: Step of the upper bound, > 0 (ignored when ``high_start`` equals ``high_max``).
        contribution: What a clipped token counts: ``value``, its clipped value (Eq. 8 as printed);
            ``gradient``, nothing (as in Eq. 5).
        weighting: ``rollout_prob`` weights each token by π_rollout (Eq. 8); ``none`` weights all alike.
        order: ``high_first`` widens the upper bound to its limit and then raises the lower one (Algorithm 1);
            ``low_first`` the other way round.
        measure: With P and N the contributions of positive and negative tokens: ``share`` is P/(P+N);
            ``pos_neg`` is P/N; ``signed`` is P/abs(P-N), Eq. 8 read literally.
        dual_clip: Ratio > 1 above which tokens with A < 0 are clipped too; null turns it off. Their gradient
            contribution is then 0; their value contribution stays uncapped, as in the authors' code.
        clamp_last_step: Whether a range that is not a whole number of steps ends with a shorter step at its
            limit, or at the last whole step.
        pos_neg_epsilon: Added to N by ``measure="pos_neg"``, >= 0 and tiny; no other measure uses it.

    Raises:
        InputError: Bounds cross, a start lies beyond its limit, a step is not positive or makes more than 1000
            steps, the target is out of the measure's range, or an option is unknown.
    """

    def __init__(
        self,
        target: float = 0.4,
        low_start: float = 0.6,
        low_max: float = 0.9,
        low_step: float = 0.02,
        high_start: float = 1.2,
        high_max: float = 3.0,
        high_step: float = 0.05,
        contribution: Contribution = "value",
        weighting: Weighting = "rollout_prob",
        order: Order = "high_first",
        measure: Measure = "share",
        *,
        dual_clip: float | None = None,
        clamp_last_step: bool = False,
        pos_neg_epsilon: float = 0.0,
    ) -> None:
        _require_option("contribution", contribution, Contribution)
        _require_option("weighting", weighting, Weighting)
        _require_option("order", order, Order)
        _require_option("measure", measure, Measure)
        _require_range("low", low_start, low_max, low_step, smallest=0.0, largest=1.0)
        _require_range("high", high_start, high_max, high_step, smallest=1.0, largest=math.inf)
        if measure == "share" and not 0.0 < target < 1.0:
            raise InputError(
                f"target must lie in (0, 1) for measure='share', got {target}; a quotient P/N needs measure='pos_neg'"
            )
        if not 0.0 <= target < math.inf:
            raise InputError(f"target must be a finite number >= 0 for measure={measure!r}, got {target}")
        if dual_clip is not None and not dual_clip > 1.0:
            raise InputError(f"dual_clip must be a ratio above 1, or null for none, got {dual_clip}")
        if not 0.0 <= pos_neg_epsilon < math.inf:
            raise InputError(f"pos_neg_epsilon must be a finite number >= 0, got {pos_neg_epsilon}")
        self.target = float(target)
        self.low_start = float(low_start)
        self.low_max = float(low_max)
        self.low_step = float(low_step)
        self.high_start = float(high_start)
        self.high_max = float(high_max)
        self.high_step = float(high_step)
        self.contribution: Contribution = contribution
        self.weighting: Weighting = weighting
        self.order: Order = order
        self.measure: Measure = measure
        self.dual_clip = None if dual_clip is None else float(dual_clip)
        self.clamp_last_step = clamp_last_step
        self.pos_neg_epsilon = float(pos_neg_epsilon)
        self._lows = candidate_bounds(low_start, low_max, low_step, clamp_last_step=clamp_last_step)
        self._highs = candidate_bounds(high_start, high_max, high_step, clamp_last_step=clamp_last_step)
        self._path = search_path(len(self._lows), len(self._highs), order)

    @property
    def weighs_shares(self) -> bool:  # type: ignore[override]
        """As the search weighs tokens."""
        return self.weighting == "rollout_prob"

    @classmethod
    def official(
        cls,
        target: float = 1.0,
        low_start: float = 0.6,
        low_max: float = 0.8,
        low_step: float = 0.05,
        high_start: float = 1.2,
        high_max: float = 2.0,
        high_step: float = 0.05,
        dual_clip: float | None = 3.0,
    ) -> "BAPOClip":
        """The authors' published code, with the defaults of its YAML, where it departs from the paper.

        The target is P/(N + 1e-8), tokens are unweighted, the lower bound moves first, steps are clamped to
        their limits and negative tokens are dual-clipped. Their code searches once per micro-batch; this
        searches once per update, which is the same when an update is one micro-batch.
        """
        return cls(
            target=target,
            low_start=low_start,
            low_max=low_max,
            low_step=low_step,
            high_start=high_start,
            high_max=high_max,
            high_step=high_step,
            contribution="value",
            weighting="none",
            order="low_first",
            measure="pos_neg",
            dual_clip=dual_clip,
            clamp_last_step=True,
            pos_neg_epsilon=1e-8,
        )

    def bounds(
        self,
        log_ratio: Tensor,
        advantages: Tensor,
        mask: Tensor,
        rollout_log_probs: Tensor | None = None,
    ) -> ClipBounds:
        """Search the bounds of one update; see `ClippingStrategy.bounds`.

        A batch with nothing to measure keeps the start bounds. Shares use this strategy's ``weighting``.

        Raises:
            InputError: ``weighting`` is ``rollout_prob`` and ``rollout_log_probs`` is missing.
        """
        if self.weighting == "none":
            rollout_log_probs = None
        elif rollout_log_probs is None:
            raise InputError(
                "weighting='rollout_prob' needs rollout_log_probs, got None; pass them or use weighting='none'"
            )
        sums = contribution_sums(
            log_ratio,
            advantages,
            mask,
            lows=self._lows,
            highs=self._highs,
            rollout_log_probs=rollout_log_probs,
            dual_clip=self.dual_clip,
        )
        by_value = self.contribution == "value"
        positive = sums.positive_value if by_value else sums.positive_gradient
        negative = sums.negative_value if by_value else sums.negative_gradient

        def measure_at(position: Position) -> float:
            low_index, high_index = position
            return measure_balance(
                positive[high_index],
                negative[low_index],
                self.measure,
                share_of_nothing=sums.share_of_nothing,
                epsilon=self.pos_neg_epsilon,
            )

        found = search(self._path, measure_at, self.target, best_positions(positive, negative, self.measure))
        low_index, high_index = found.position
        return ClipBounds(
            low=self._lows[low_index],
            high=self._highs[high_index],
            measure=found.measure,
            value_share=sums.value_share(low_index, high_index),
            gradient_share=sums.gradient_share(low_index, high_index),
            steps=found.steps,
            saturated=found.saturated,
            reachable=found.reachable,
            value_share_before=sums.value_share(0, 0),
            gradient_share_before=sums.gradient_share(0, 0),
            empty=sums.is_empty,
        )

    def surrogate(self, log_ratio: Tensor, advantages: Tensor, bounds: ClipBounds) -> Surrogate:
        """min(r·A, clip(r, low, high)·A), dual-clipped if asked; see `clipped_surrogate`."""
        return clipped_surrogate(log_ratio, advantages, bounds.low, bounds.high, self.dual_clip)


def _require_option(name: str, value: str, options: Any) -> None:
    allowed = get_args(options)
    if value not in allowed:
        raise InputError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")


def _require_range(side: str, start: float, limit: float, step: float, *, smallest: float, largest: float) -> None:
    for name, bound in ((f"{side}_start", start), (f"{side}_max", limit)):
        if not (smallest <= bound <= largest and math.isfinite(bound)):
            raise InputError(
                f"{name} must be a finite ratio bound (not an epsilon) in [{smallest:g}, {largest:g}], got {bound}"
            )
    if start > limit:
        raise InputError(f"{side}_start must not lie beyond {side}_max, got {start} > {limit}")
    if not (0.0 < step < math.inf) and not (start == limit and step == 0.0):
        raise InputError(f"{side}_step must be a finite number > 0, got {step}")
    if start < limit and (limit - start) / step > _MOST_STEPS:
        raise InputError(
            f"{side}_step = {step} makes {(limit - start) / step:.0f} steps from {side}_start = {start} to {side}_max "
            f"= {limit}; at most {_MOST_STEPS} are searched"
        )
