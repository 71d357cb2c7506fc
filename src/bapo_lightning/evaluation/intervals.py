"""How far a benchmark score can be trusted: it rests on few problems, and on few samples of each."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from bapo_lightning.errors import InputError
from bapo_lightning.seeding import generator

RESAMPLES = 10_000
_NORMAL_95 = 1.959964
"""97.5 % quantile of the standard normal distribution."""


class Interval(NamedTuple):
    """A 95 % confidence interval."""

    low: float
    high: float


def problem_interval(scores: Sequence[float], seed: int = 0) -> Interval | None:
    """Percentile bootstrap over problems: what the score would be on other problems of the same kind (Efron 1979).

    Args:
        scores: One a problem; a score in [0, 1], or a difference of two.
        seed: Names the 10,000 resamples; equal arguments give equal intervals.

    Returns:
        The 2.5 % and 97.5 % quantiles of the mean of as many problems, drawn with replacement. Where all problems have
        one score it is that point, which says nothing. None for no problem.
    """
    if not scores:
        return None
    values = torch.tensor(scores, dtype=torch.float64)
    stream = generator(seed, "bootstrap", len(scores))
    # In parts of a few megabytes, however many problems there are.
    rows = max(1, 1_000_000 // len(values))
    parts = [min(rows, RESAMPLES - start) for start in range(0, RESAMPLES, rows)]
    means = torch.cat(
        [values[torch.randint(len(values), (part, len(values)), generator=stream)].mean(1) for part in parts]
    )
    low, high = torch.quantile(means, torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return Interval(low, high)


def sampling_interval(correct: Sequence[int], scored: Sequence[int]) -> Interval | None:
    """Interval of avg@k on these very problems: what another k samples of each would give.

    The variance of a problem's share p of n samples is estimated by p (1-p) / (n-1), and the mean is taken as normal.

    Args:
        correct: Correct samples of each problem.
        scored: Samples with a verdict of each problem; problems without any are left out.

    Returns:
        The interval, within [0, 1]. None when no problem has two samples, as the spread is unknown then.

    Raises:
        InputError: The sequences differ in length.
    """
    if len(correct) != len(scored):
        raise InputError(f"{len(correct)} counts of correct samples for {len(scored)} problems")
    pairs = [(c / n, n) for c, n in zip(correct, scored, strict=True) if n > 0]
    if not pairs or any(n < 2 for _, n in pairs):
        return None
    mean = sum(p for p, _ in pairs) / len(pairs)
    half = _NORMAL_95 * math.sqrt(sum(p * (1 - p) / (n - 1) for p, n in pairs)) / len(pairs)
    return Interval(max(mean - half, 0.0), min(mean + half, 1.0))


def interval_records(
    scores_by_metric: dict[str, Sequence[float]], correct: Sequence[int], scored: Sequence[int], seed: int
) -> dict[str, Any]:
    """Intervals of a benchmark's scores, for its record.

    Args:
        scores_by_metric: Metric → score of each problem.
        correct: Correct samples of each problem, for avg@k.
        scored: Samples with a verdict of each problem.
        seed: Names the resamples.

    Returns:
        Metric → ``problems`` [low, high], and for avg@k ``samples`` [low, high]; null where unknown.
    """
    records: dict[str, Any] = {}
    for name, scores in scores_by_metric.items():
        over_problems = problem_interval(scores, seed)
        records[name] = {"problems": None if over_problems is None else list(over_problems)}
        if name.startswith("avg@"):
            over_samples = sampling_interval(correct, scored)
            records[name]["samples"] = None if over_samples is None else list(over_samples)
    return records
