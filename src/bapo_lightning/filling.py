"""Filling a phase with whole groups: those that teach something, and enough of them.

Dynamic sampling is DAPO's (arXiv 2503.14476, sec. 3.2).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from bapo_lightning.errors import InputError
from bapo_lightning.replay import Group, group_trajectories, is_uniform
from bapo_lightning.types import Trajectory


class GroupSource(Protocol):
    """Where groups come from: scored and gathered over ranks, each when all its responses are finished."""

    def start(self, num_groups: int) -> Sequence[Trajectory]:
        """Start new groups, within the budget; those that are finished then."""

    def go_on(self, num_groups: int) -> Sequence[Trajectory]:
        """Start new groups and sample on those under way, within the budget; those that are finished then."""

    @property
    def num_under_way(self) -> int:
        """Groups that were started and are not finished."""


@dataclass(frozen=True)
class FilledPhase:
    """What was sampled for a phase, on every rank the same."""

    sampled: list[Trajectory]
    """Every group that was finished, scored, what was left out too."""

    kept: list[Group]
    """The groups that may be trained on, in order of their ids."""

    generations: int
    """How often was sampled."""

    @property
    def num_uniform(self) -> int:
        """Groups that were finished and left out because their rewards are all equal."""
        return len({t.group_id for t in self.sampled}) - len(self.kept)


def fill_phase(
    source: GroupSource,
    num_groups: int,
    *,
    at_least: int,
    max_generations: int,
    max_waits: int,
    drop_uniform: bool,
) -> FilledPhase:
    """Start groups, put others in place of those that teach nothing, and wait until there are enough.

    Args:
        source: Samples.
        num_groups: Groups to start.
        at_least: Groups that are wanted now, 0 or more. While there are fewer it samples on those under way, and starts
            as many new ones as are missing: in the first phase that sets up the pipeline that later phases live on.
        max_generations: How often to start groups, at least 1; each time as many as the last one left out.
        max_waits: How often to sample on for want of finished groups.
        drop_uniform: Whether groups whose rewards are all equal are left out. If not, one generation is enough.

    Returns:
        What there is then; without groups only where some are under way and none is wanted now.

    Raises:
        InputError: Every group was left out.
    """
    sampled: list[Trajectory] = []
    kept: list[Group] = []

    def take(finished: Sequence[Trajectory]) -> int:
        """Keep what teaches; how many groups do not."""
        groups = group_trajectories(finished)
        teaching = [group for group in groups if not (drop_uniform and is_uniform(group))]
        sampled.extend(finished)
        kept.extend(teaching)
        return len(groups) - len(teaching)

    missing = take(source.go_on(num_groups))
    generations = 1
    while missing and generations < max_generations:
        missing = take(source.start(missing))
        generations += 1
    waits = 0
    # Groups that start now may take all these samplings to finish, and others in their place as many again.
    max_waits *= max_generations
    while len(kept) < at_least and source.num_under_way and waits < max_waits:
        take(source.go_on(at_least - len(kept)))
        waits += 1
    generations += waits
    if not kept and (at_least or not source.num_under_way):
        statuses = Counter(t.reward_status for t in sampled).most_common()
        raise InputError(
            f"data: {generations} generations of a rollout phase sampled {len({t.group_id for t in sampled})} groups, "
            f"and the rewards of each are all equal ({', '.join(f'{s} {n}' for s, n in statuses)}), so there is "
            "nothing to learn from. Give easier or harder prompts or a larger data.group_size, raise "
            "data.max_generations, or do not drop uniform groups"
        )
    return FilledPhase(sampled, sorted(kept, key=lambda group: group[0].group_id), generations)
