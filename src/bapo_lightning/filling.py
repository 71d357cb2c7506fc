"""Dynamic sampling: a phase is filled up with groups that teach something (DAPO, arXiv 2503.14476, sec. 3.2)."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bapo_lightning.errors import InputError
from bapo_lightning.replay import Group, group_trajectories, is_uniform
from bapo_lightning.types import Trajectory


@dataclass(frozen=True)
class FilledPhase:
    """What was sampled for a phase, on every rank the same."""

    sampled: list[Trajectory]
    """Everything, scored, what was left out too."""

    kept: list[Group]
    """The groups that may be trained on, in order of their ids."""

    generations: int
    """How often was sampled."""

    @property
    def num_uniform(self) -> int:
        """Groups that were sampled and left out because their rewards are all equal."""
        return len({t.group_id for t in self.sampled}) - len(self.kept)


def fill_phase(
    sample: Callable[[int], Sequence[Trajectory]], num_groups: int, *, max_generations: int, drop_uniform: bool
) -> FilledPhase:
    """Sample groups until there are enough of them, or until it has been tried often enough.

    Args:
        sample: Samples and scores a number of new groups, gathered over ranks.
        num_groups: Groups the phase wants.
        max_generations: How often to sample, at least 1; each time as many groups as are missing.
        drop_uniform: Whether groups whose rewards are all equal are left out. If not, one generation is enough.

    Returns:
        At most ``num_groups`` groups, at least one.

    Raises:
        InputError: Every group of every generation was left out.
    """
    sampled: list[Trajectory] = []
    kept: list[Group] = []
    generations = 0
    while len(kept) < num_groups and generations < max_generations:
        fresh = list(sample(num_groups - len(kept)))
        sampled += fresh
        kept += [group for group in group_trajectories(fresh) if not (drop_uniform and is_uniform(group))]
        generations += 1
    if not kept:
        statuses = Counter(t.reward_status for t in sampled).most_common()
        raise InputError(
            f"data: {generations} generations of a rollout phase sampled {len({t.group_id for t in sampled})} groups, "
            f"and the rewards of each are all equal ({', '.join(f'{s} {n}' for s, n in statuses)}), so there is "
            "nothing to learn from. Give easier or harder prompts or a larger data.group_size, raise "
            "data.max_generations, or do not drop uniform groups"
        )
    return FilledPhase(sampled, kept, generations)
