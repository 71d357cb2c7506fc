"""A reward of several named parts: the verdict on the answer and whatever else a response should be."""

import logging
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from bapo_lightning.errors import InputError
from bapo_lightning.rewards.base import Reward
from bapo_lightning.rewards.math_reward import MathReward
from bapo_lightning.rewards.term import RewardTerm
from bapo_lightning.types import Score, Trajectory

log = logging.getLogger(__name__)

CORRECTNESS = "correctness"
"""Name of the verdict among the parts."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


class CombinedReward(Reward):
    """The weighted sum of a verdict and of named terms.

    Every part is logged by its own name, unweighted, as ``reward/<name>``. Success, status and extracted answer are
    those of the verdict alone, whatever the weights; so are the scores of benchmarks. A response with a part that
    could not be computed has no reward: a sum without it would be another reward. Parts of weight 0 are watched only.

    Args:
        terms: Name → term. Names are letters, digits, ``_`` and ``-``.
        weights: Name → weight, ``correctness`` included; 1 for those left out.
        correctness: What judges the answer; None is `MathReward`.

    Raises:
        InputError: A name or a weight is unusable.
    """

    def __init__(
        self,
        terms: dict[str, RewardTerm],
        weights: dict[str, float] | None = None,
        correctness: Reward | None = None,
    ) -> None:
        for name in terms:
            if name == CORRECTNESS or not _NAME.fullmatch(name):
                raise InputError(
                    f"data.reward.terms: a term cannot be named {name!r}; use letters, digits, _ and -, and not "
                    f"{CORRECTNESS!r}, which is the verdict's"
                )
        self.terms = dict(terms)
        self.weights = {CORRECTNESS: 1.0, **dict.fromkeys(terms, 1.0)}
        for name, weight in (weights or {}).items():
            if name not in self.weights:
                raise InputError(
                    f"data.reward.weights has {name!r}, which is no part of this reward; parts are "
                    f"{', '.join(self.weights)}"
                )
            if not math.isfinite(weight):
                raise InputError(f"data.reward.weights.{name} must be a finite number, got {weight}")
            self.weights[name] = float(weight)
        if not any(self.weights.values()):
            raise InputError("data.reward.weights: every weight is 0, so there is no reward")
        self.correctness = MathReward() if correctness is None else correctness

    def score(
        self,
        responses: Sequence[str | None],
        answers: Sequence[str | list[str]],
        finish_reasons: Sequence[str] | None = None,
    ) -> list[Score]:
        """The verdicts alone, as benchmarks want them; terms need whole trajectories (`score_trajectories`)."""
        return self.correctness.score(responses, answers, finish_reasons)

    def score_trajectories(self, trajectories: Sequence[Trajectory]) -> list[Score]:
        """Verdict and terms of finished responses.

        Args:
            trajectories: Any number.

        Returns:
            One `Score` each; ``parts`` has every part before its weight, None where it is missing.

        Raises:
            InputError: A term did not return one number for each response.
        """
        verdicts = self.correctness.score_trajectories(trajectories)
        judged = [replace(t, reward_status=v.status) for t, v in zip(trajectories, verdicts, strict=True)]
        columns: dict[str, list[float | None]] = {CORRECTNESS: [None if v.is_missing else v.value for v in verdicts]}
        for name, term in self.terms.items():
            columns[name] = _checked(name, term, term.values(judged), len(judged))
        scores = []
        for i, verdict in enumerate(verdicts):
            parts = {name: column[i] for name, column in columns.items()}
            scores.append(replace(verdict, value=self._total(parts), parts=parts))
        return scores

    def _total(self, parts: Mapping[str, float | None]) -> float:
        total = 0.0
        for name, value in parts.items():
            if self.weights[name] != 0.0:
                total += math.nan if value is None else self.weights[name] * value
        return total

    def settings(self) -> dict[str, Any]:
        """Those of the verdict."""
        return self.correctness.settings()

    def close(self) -> None:
        """Release what the parts hold."""
        self.correctness.close()
        for term in self.terms.values():
            term.close()


def _checked(name: str, term: RewardTerm, values: Sequence[float], count: int) -> list[float | None]:
    """Values of one term with None for the missing ones."""
    kind = type(term).__name__
    if len(values) != count:
        raise InputError(
            f"data.reward.terms.{name}: {kind} returned {len(values)} values for {count} responses; it must return "
            "one for each, in order"
        )
    for value in values:
        if not isinstance(value, float | int):
            raise InputError(f"data.reward.terms.{name}: {kind} returned {value!r}; it must return numbers")
    infinite = sum(math.isinf(value) for value in values)
    if infinite:
        log.warning("data.reward.terms.%s: %d of %d values are infinite and count as missing", name, infinite, count)
    return [float(value) if math.isfinite(value) else None for value in values]
