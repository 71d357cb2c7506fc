"""Which groups of a replay buffer are drawn. All draw without replacement and leave the buffer as it is."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch

from bapo_lightning.errors import InputError
from bapo_lightning.replay.groups import Group
from bapo_lightning.replay.staleness import newest_version, staleness


class GroupSampler(ABC):
    """Chooses groups. A plain object without state: the generator holds all randomness."""

    @abstractmethod
    def draw(self, groups: Sequence[Group], count: int, generator: torch.Generator, version: int) -> list[int]:
        """Choose ``count`` different positions of ``groups``.

        Args:
            groups: At least ``count``, in order of insertion.
            count: At least 1.
            generator: CPU generator; with the groups it determines the draw.
            version: Policy updates behind the weights that are about to be updated.

        Returns:
            The positions, in the order in which they are dealt.
        """

    def __repr__(self) -> str:
        arguments = (f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({', '.join(arguments)})"


class UniformSampler(GroupSampler):
    """Every group is as likely as any other."""

    def draw(self, groups: Sequence[Group], count: int, generator: torch.Generator, version: int) -> list[int]:
        """Draw uniformly."""
        positions: list[int] = torch.randperm(len(groups), generator=generator)[:count].tolist()
        return positions


class OldestFirstSampler(GroupSampler):
    """First in, first out: the groups that have waited longest, in order of insertion."""

    def draw(self, groups: Sequence[Group], count: int, generator: torch.Generator, version: int) -> list[int]:
        """Take the first ones."""
        return list(range(count))


class RecencySampler(GroupSampler):
    """Newer groups are likelier: the weight of a group halves with every ``half_life`` updates of its age.

    Args:
        half_life: In policy updates, > 0.

    Raises:
        InputError: The half-life is not positive.
    """

    def __init__(self, half_life: float = 16.0) -> None:
        if not 0.0 < half_life < math.inf:
            raise InputError(f"half_life must be a finite number of updates > 0, got {half_life}")
        self.half_life = float(half_life)

    def draw(self, groups: Sequence[Group], count: int, generator: torch.Generator, version: int) -> list[int]:
        """Draw by age."""
        ages = torch.tensor([staleness(group, version) for group in groups], dtype=torch.float64)
        # Relative to the youngest, so that old buffers do not underflow to weights of 0.
        return weighted_draw(torch.exp2((ages.min() - ages) / self.half_life), count, generator)


class PrioritySampler(GroupSampler):
    """Groups with larger advantages are likelier: weight (mean |A|)^exponent.

    Groups without any advantage come only when the others run out.

    Args:
        exponent: >= 0; 0 is uniform.

    Raises:
        InputError: The exponent is negative.
    """

    def __init__(self, exponent: float = 1.0) -> None:
        if not 0.0 <= exponent < math.inf:
            raise InputError(f"exponent must be a finite number >= 0, got {exponent}")
        self.exponent = float(exponent)

    def draw(self, groups: Sequence[Group], count: int, generator: torch.Generator, version: int) -> list[int]:
        """Draw by size of the advantages."""
        sizes = [sum(abs(t.advantage) for t in group) / len(group) for group in groups]
        return weighted_draw(torch.tensor(sizes, dtype=torch.float64) ** self.exponent, count, generator)


class MixedSampler(GroupSampler):
    """A fixed part of every phase is fresh, the rest is replayed; uniformly within both.

    Args:
        fresh_fraction: Share of groups of the newest version, in [0, 1], rounded to whole groups. Where one kind runs
            short the other fills up.

    Raises:
        InputError: The share is out of its range.
    """

    def __init__(self, fresh_fraction: float = 0.5) -> None:
        if not 0.0 <= fresh_fraction <= 1.0:
            raise InputError(f"fresh_fraction must lie in [0, 1], got {fresh_fraction}")
        self.fresh_fraction = float(fresh_fraction)

    def draw(self, groups: Sequence[Group], count: int, generator: torch.Generator, version: int) -> list[int]:
        """Draw from both kinds, then shuffle them together."""
        newest = max(newest_version(group) for group in groups)
        shuffled = torch.randperm(len(groups), generator=generator).tolist()
        fresh = [i for i in shuffled if newest_version(groups[i]) == newest]
        older = [i for i in shuffled if newest_version(groups[i]) < newest]
        num_fresh = min(round(self.fresh_fraction * count), len(fresh))
        num_older = min(count - num_fresh, len(older))
        chosen = set(fresh[: count - num_older] + older[:num_older])
        return [i for i in shuffled if i in chosen]


def weighted_draw(weights: torch.Tensor, count: int, generator: torch.Generator) -> list[int]:
    """Draw without replacement, each time with probability proportional to the weights that are left.

    Source: Efraimidis and Spirakis 2006: the smallest of exponential waiting times with these rates.

    Args:
        weights: [N] float64, >= 0; those of weight 0 come last, in random order.
        count: At most N.
        generator: CPU generator.

    Returns:
        Positions, in the order of the draw.
    """
    uniform = torch.rand(len(weights), generator=generator, dtype=torch.float64)
    waits = -torch.log1p(-uniform)
    keys = [
        (weight == 0.0, wait / (weight or 1.0)) for wait, weight in zip(waits.tolist(), weights.tolist(), strict=True)
    ]
    return sorted(range(len(keys)), key=keys.__getitem__)[:count]
