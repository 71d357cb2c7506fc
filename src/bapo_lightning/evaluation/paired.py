"""Whether two checkpoints differ on the same problems, or the problems are too few to say."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from bapo_lightning.errors import InputError
from bapo_lightning.evaluation.intervals import Interval, problem_interval
from bapo_lightning.seeding import generator

_MOST_EXACT = 16
"""Problems that differ, up to which all 2^n flips of signs are counted."""
_RANDOM_FLIPS = 100_000
_TWO_SIDED_95 = 1.959964


@dataclass(frozen=True)
class PairedComparison:
    """The second checkpoint against the first, on the same problems."""

    num_problems: int
    """Problems that both have a verdict on."""

    first: float
    """Mean score of the first, in [0, 1]."""

    second: float
    """Mean score of the second."""

    interval: Interval
    """95 % interval of second - first over problems (percentile bootstrap)."""

    p_value: float
    """Two-sided: how often flipping who is who, problem by problem at random, gives a difference as large."""

    detectable: float
    """The least difference that this spread between problems could show at 5 %, by the normal approximation."""

    @property
    def difference(self) -> float:
        """Second - first."""
        return self.second - self.first

    @property
    def is_told_apart(self) -> bool:
        """Whether the difference is more than chance at 5 %."""
        return self.p_value < 0.05


def compare_paired(first: Sequence[float], second: Sequence[float], seed: int = 0) -> PairedComparison:
    """Compare two checkpoints by their scores on the same problems.

    The test flips the sign of each problem's difference (Fisher's randomisation test): it needs no normal distribution
    and is exact for up to 16 problems that differ; beyond, 100,000 random flips are counted.

    Args:
        first: One score a problem, in [0, 1].
        second: The same problems, in the same order.
        seed: Names the random flips and resamples.

    Returns:
        The comparison.

    Raises:
        InputError: The sequences differ in length, or are empty.
    """
    if len(first) != len(second):
        raise InputError(f"{len(first)} scores and {len(second)} scores cannot be paired")
    if not first:
        raise InputError("there is no problem that both were scored on")
    differences = [b - a for a, b in zip(first, second, strict=True)]
    count = len(differences)
    mean = sum(differences) / count
    spread = sum((d - mean) ** 2 for d in differences) / max(count - 1, 1)
    interval = problem_interval(differences, seed)
    assert interval is not None
    return PairedComparison(
        num_problems=count,
        first=sum(first) / count,
        second=sum(second) / count,
        interval=interval,
        p_value=_sign_flip_p_value(differences, seed),
        detectable=_TWO_SIDED_95 * math.sqrt(spread / count),
    )


def _sign_flip_p_value(differences: Sequence[float], seed: int) -> float:
    sizes = [abs(d) for d in differences if d != 0.0]
    # A little less than what was seen, so that rounding cannot take equal sums apart.
    seen = abs(math.fsum(differences)) * (1 - 1e-9) - 1e-12
    if len(sizes) <= _MOST_EXACT:
        sums = [
            math.fsum(s * x for s, x in zip(signs, sizes, strict=True))
            for signs in itertools.product((1, -1), repeat=len(sizes))
        ]
        return sum(abs(total) >= seen for total in sums) / len(sums)
    stream = generator(seed, "sign flips", len(sizes))
    signs = torch.randint(0, 2, (_RANDOM_FLIPS, len(sizes)), generator=stream).double() * 2 - 1
    as_large = int((signs @ torch.tensor(sizes, dtype=torch.float64)).abs().ge(seen).sum())
    # What was seen is one of the possible flips, so p is never 0.
    return (as_large + 1) / (_RANDOM_FLIPS + 1)
