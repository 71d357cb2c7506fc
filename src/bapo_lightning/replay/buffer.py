"""The replay buffer: whole groups, bounded in number and in age, every token as it was sampled."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from bapo_lightning.errors import InputError
from bapo_lightning.replay.groups import Group, group_trajectories, is_uniform
from bapo_lightning.replay.packing import pack_trajectories, unpack_trajectories
from bapo_lightning.replay.samplers import GroupSampler, UniformSampler
from bapo_lightning.replay.staleness import oldest_version, staleness
from bapo_lightning.types import Trajectory


class NotEnoughGroups(RuntimeError):  # noqa: N818 - not an error: the caller then rolls out more
    """The buffer cannot fill the draw; nothing was drawn, and new rollouts are needed.

    Args:
        wanted: Groups asked for.
        usable: Groups in the buffer that are young enough.
        dropped_stale: Groups that this draw found too old and dropped.
    """

    def __init__(self, wanted: int, usable: int, dropped_stale: int) -> None:
        super().__init__(
            f"{wanted} groups were asked for, the replay buffer has {usable} that are young enough "
            f"({dropped_stale} were too old and are dropped); roll out at least {wanted - usable} more"
        )
        self.wanted = wanted
        self.usable = usable
        self.dropped_stale = dropped_stale


@dataclass
class BufferCounts:
    """Groups that left the buffer, or never entered, since the start of the run."""

    added: int = 0
    """Groups taken in."""

    evicted_for_room: int = 0
    """Groups pushed out by the capacity."""

    dropped_stale: int = 0
    """Groups dropped because of their age."""

    dropped_uniform: int = 0
    """Groups never taken in because their rewards were all equal."""


class ReplayBuffer:
    """Groups of trajectories waiting to be trained on, in order of insertion.

    Groups enter and leave whole. Nothing in a trajectory is changed: behaviour log-probs and policy versions are
    those of the sampling. Drawing does not remove; groups leave by `remove`, by capacity, or by age.

    Args:
        capacity: Most groups held, at least 1; None for no bound. When full, the group with the oldest token
            leaves first, among equals the one that came first.
        max_staleness: Greatest age at which a group may still be trained on, in policy updates, inclusive, at
            least 0 (0 allows on-policy groups only); None for no limit. A group is as old as its oldest token.
        drop_uniform: Do not take in groups whose rewards are all equal (they have no advantage).
        sampler: Which groups are drawn; None is `UniformSampler`.

    Raises:
        InputError: A limit is out of its range.
    """

    def __init__(
        self,
        capacity: int | None = None,
        max_staleness: int | None = None,
        drop_uniform: bool = False,
        sampler: GroupSampler | None = None,
    ) -> None:
        if capacity is not None and capacity < 1:
            raise InputError(f"replay buffer: capacity must be at least 1 group, or null, got {capacity}")
        if max_staleness is not None and max_staleness < 0:
            raise InputError(f"replay buffer: max_staleness must be at least 0 updates, or null, got {max_staleness}")
        self.capacity = capacity
        self.max_staleness = max_staleness
        self.drop_uniform = drop_uniform
        self.sampler = UniformSampler() if sampler is None else sampler
        self.counts = BufferCounts()
        self._groups: dict[int, Group] = {}

    def __len__(self) -> int:
        """Groups held."""
        return len(self._groups)

    def __contains__(self, group_id: object) -> bool:
        """Whether the group of this id is held."""
        return group_id in self._groups

    @property
    def groups(self) -> list[Group]:
        """The groups held, in order of insertion."""
        return list(self._groups.values())

    def add(self, trajectories: Iterable[Trajectory]) -> None:
        """Take in complete groups, in any order of their members; too full, the oldest groups leave.

        Args:
            trajectories: All members of one or more groups.

        Raises:
            ValueError: A group is already held (it came in two parts, or an id was used twice), or its members
                do not fit together. Nothing is taken in then.
        """
        groups = group_trajectories(trajectories)
        for group in groups:
            if group[0].group_id in self._groups:
                raise ValueError(
                    f"group {group[0].group_id} is in the replay buffer already; a group must be added whole, "
                    "in one call, and its id must be unique in the run"
                )
        for group in groups:
            if self.drop_uniform and is_uniform(group):
                self.counts.dropped_uniform += 1
                continue
            self._groups[group[0].group_id] = group
            self.counts.added += 1
        self._make_room()

    def sample(self, n_groups: int, generator: torch.Generator, version: int) -> list[Group]:
        """Draw groups without replacement, after dropping those that are too old.

        Args:
            n_groups: Groups to draw, at least 1.
            generator: CPU generator; with the contents of the buffer it determines the draw.
            version: Policy updates behind the weights that are about to be updated.

        Returns:
            ``n_groups`` different groups, each whole, none older than ``max_staleness``.

        Raises:
            NotEnoughGroups: Fewer are young enough: never an update on nothing or on less.
            InputError: ``n_groups`` is less than 1, or more than the buffer can ever hold.
            ValueError: A token is newer than ``version``.
        """
        if n_groups < 1:
            raise InputError(f"replay buffer: at least 1 group must be drawn, got n_groups={n_groups}")
        if self.capacity is not None and n_groups > self.capacity:
            raise InputError(
                f"replay buffer: {n_groups} groups cannot be drawn from a buffer of capacity {self.capacity}; "
                "raise the capacity"
            )
        dropped = self.drop_stale(version)
        if n_groups > len(self):
            raise NotEnoughGroups(n_groups, len(self), dropped)
        groups = self.groups
        return [groups[i] for i in self.sampler.draw(groups, n_groups, generator, version)]

    def drop_stale(self, version: int) -> int:
        """Drop groups older than ``max_staleness``.

        Args:
            version: Policy updates behind the weights that are about to be updated.

        Returns:
            How many were dropped.

        Raises:
            ValueError: A token is newer than ``version``.
        """
        ages = {group_id: staleness(group, version) for group_id, group in self._groups.items()}
        if self.max_staleness is None:
            return 0
        stale = [group_id for group_id, age in ages.items() if age > self.max_staleness]
        self.remove(stale)
        self.counts.dropped_stale += len(stale)
        return len(stale)

    def remove(self, group_ids: Iterable[int]) -> None:
        """Take groups out, for example after training on them.

        Args:
            group_ids: Ids of groups held.

        Raises:
            KeyError: A group is not held.
        """
        for group_id in group_ids:
            del self._groups[group_id]

    def state_dict(self) -> dict[str, Any]:
        """The contents and counts as tensors and plain values, loadable with ``weights_only=True``.

        The limits are not part of it: they come from the config.
        """
        flat = [trajectory for group in self._groups.values() for trajectory in group]
        return {"trajectories": pack_trajectories(flat), "counts": dict(vars(self.counts))}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Replace the contents by those of a `state_dict`; with a smaller capacity the oldest groups leave.

        Raises:
            InputError: The state is damaged.
        """
        if missing := {"trajectories", "counts"} - state_dict.keys():
            raise InputError(f"state of the replay buffer is damaged: no {', '.join(sorted(missing))}")
        groups = group_trajectories(unpack_trajectories(state_dict["trajectories"]))
        self._groups = {group[0].group_id: group for group in groups}
        self.counts = BufferCounts(**state_dict["counts"])
        self._make_room()

    def _make_room(self) -> None:
        surplus = 0 if self.capacity is None else len(self) - self.capacity
        if surplus > 0:
            # Sorting keeps the order of insertion among equals.
            by_age = sorted(self._groups, key=lambda group_id: oldest_version(self._groups[group_id]))
            self.remove(by_age[:surplus])
            self.counts.evicted_for_room += surplus
