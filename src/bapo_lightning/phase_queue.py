"""Which groups a phase trains on: its own, those of an earlier phase (lag), or a draw from the buffer (replay)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bapo_lightning.errors import InputError
from bapo_lightning.replay import Group, ReplayBuffer, oldest_version
from bapo_lightning.seeding import generator
from bapo_lightning.types import Trajectory


@dataclass(frozen=True)
class PhaseGroups:
    """The groups of one phase, a whole number of updates."""

    groups: list[Group]
    groups_per_update: int
    """Less than asked for where there are too few groups for one update of that size."""


class PhaseQueue:
    """Keeps groups between sampling and training.

    With ``replays`` a phase draws from all groups in the buffer, and they stay there until age or capacity takes them
    out. Otherwise each group is trained on in one phase, in the order of sampling, and leaves with the next. What does
    not fill an update waits for the phase after.

    Args:
        buffer: Holds the groups.
        groups_per_phase: Most groups of a phase.
        groups_per_update: Groups of an update.
        replays: Whether groups are drawn from the whole buffer.
        seed: The seed of the run.
    """

    def __init__(
        self, buffer: ReplayBuffer, *, groups_per_phase: int, groups_per_update: int, replays: bool, seed: int
    ) -> None:
        self.buffer = buffer
        self.groups_per_phase = groups_per_phase
        self.groups_per_update = groups_per_update
        self.replays = replays
        self.seed = seed
        self.phase_group_ids: list[int] = []
        """The groups of the present phase, in order."""
        self._waiting: list[list[int]] = []
        self._left_over: list[int] = []

    @property
    def num_waiting(self) -> int:
        """Phases whose groups are sampled and yet to be trained on."""
        return len(self._waiting)

    def num_ready(self, oldest_useful_version: int | None = None) -> int:
        """Groups that the phase sampled next may be filled up with, once those that wait before it have theirs.

        Args:
            oldest_useful_version: Groups with an older token will be dropped by then; None keeps all.
        """
        useful = {
            group[0].group_id
            for group in self.buffer.groups
            if oldest_useful_version is None or oldest_version(group) >= oldest_useful_version
        }
        if self.replays:
            return len(useful)
        left = sum(i in useful for i in self._left_over)
        for ids in self._waiting:
            left += sum(i in useful for i in ids)
            left -= self._dealt(left)[0]
        return left

    def _dealt(self, available: int, world_size: int = 1) -> tuple[int, int]:
        """How many of the available groups a phase trains on, and how many of them make an update."""
        usable = min(available, self.groups_per_phase)
        # With too few for one update there is a smaller one, of which every rank gets an equal share.
        per_update = self.groups_per_update if usable >= self.groups_per_update else usable - usable % world_size
        return (usable - usable % per_update if per_update else 0), per_update

    def retire(self) -> None:
        """Let go of the groups that had their phase."""
        if not self.replays:
            self.buffer.remove(i for i in self.phase_group_ids if i in self.buffer)
            self.phase_group_ids = []

    def add(self, trajectories: Sequence[Trajectory]) -> None:
        """Take in the groups of the phase that was sampled last; whole, in order of their ids."""
        self.buffer.add(trajectories)
        self._waiting.append(list(dict.fromkeys(t.group_id for t in trajectories)))

    def draw(self, phase: int, last_version: int, world_size: int) -> PhaseGroups:
        """Choose the groups of the next phase.

        Args:
            phase: Its number, from 0.
            last_version: Policy updates behind the weights that its last update changes; groups that are too old by
                then are dropped.
            world_size: Ranks; every update is shared equally.

        Returns:
            As many groups as a phase wants, or as many whole updates as there are; at least one update.

        Raises:
            InputError: There is not even one group for each rank.
        """
        self.buffer.drop_stale(last_version)
        own = set(self._left_over) | set(self._waiting.pop(0))
        available = [g for g in self.buffer.groups if self.replays or g[0].group_id in own]
        count, per_update = self._dealt(len(available), world_size)
        if count == 0:
            raise InputError(
                f"data.buffer: rollout phase {phase} left {len(available)} usable groups for {world_size} ranks "
                f"({self.buffer.counts}); raise data.max_generations, capacity or max_staleness, or do not drop "
                "uniform groups"
            )
        if self.replays:
            groups = self.buffer.sample(count, generator(self.seed, "buffer", phase), last_version)
        else:
            groups = available[:count]
            self._left_over = [group[0].group_id for group in available[count:]]
        self.phase_group_ids = [group[0].group_id for group in groups]
        return PhaseGroups(groups, per_update)

    def present_groups(self) -> list[Group]:
        """The groups of the present phase, in the order in which they were drawn."""
        buffered = {group[0].group_id: group for group in self.buffer.groups}
        return [buffered[group_id] for group_id in self.phase_group_ids]

    @property
    def holds_more(self) -> bool:
        """Whether groups beyond the present phase are kept to be trained on."""
        return len(self.buffer) > len(self.phase_group_ids)

    def state_dict(self) -> dict[str, Any]:
        """Everything that waits, and the buffer."""
        return {
            "phase_group_ids": list(self.phase_group_ids),
            "waiting": [list(ids) for ids in self._waiting],
            "left_over": list(self._left_over),
            "buffer": self.buffer.state_dict(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a `state_dict`.

        Raises:
            InputError: The buffer's capacity is less than what the present phase needs.
        """
        self.phase_group_ids = list(state_dict["phase_group_ids"])
        self._waiting = [list(ids) for ids in state_dict["waiting"]]
        self._left_over = list(state_dict["left_over"])
        self.buffer.load_state_dict(state_dict["buffer"])
        if any(group_id not in self.buffer for group_id in self.phase_group_ids):
            raise InputError(
                f"data.buffer.capacity = {self.buffer.capacity} is too small for the phase that the checkpoint "
                f"interrupted: it needs {len(self.phase_group_ids)} groups"
            )
