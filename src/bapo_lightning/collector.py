"""Turns prompts into scored groups, phase by phase, and keeps what a phase leaves unfinished."""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from bapo_lightning.collection import gather, go_on, open_group, rollout_metrics, score
from bapo_lightning.deck import PromptDeck
from bapo_lightning.filling import FilledPhase, fill_phase
from bapo_lightning.replay import Group, group_trajectories, oldest_version, pack_trajectories, unpack_trajectories
from bapo_lightning.rewards import Reward
from bapo_lightning.rollout import RolloutEngine, RolloutSettings
from bapo_lightning.types import SamplingSettings, Trajectory


@dataclass(frozen=True)
class Collected:
    """What one phase of sampling brought, on every rank the same."""

    filled: FilledPhase
    num_resumed: int
    """Responses that an earlier phase had begun."""

    num_unfinished: int
    """Responses that a later phase will sample on."""

    num_expired: int
    """Groups given up because their oldest token would be too old by the time they are trained on."""

    seconds: float
    """Wall-clock time, rewards included."""

    reward_seconds: float
    """Of it for rewards, on this rank."""


class Collector:
    """Draws prompts, has an engine sample groups, and scores them.

    With a token budget the responses that reach it stay here and go on in the next phase. A group comes out when all
    its responses are finished. After at most ``max_new_tokens / token_budget`` phases, rounded up, it is.

    Args:
        engine: Samples; whoever calls `collect` has brought its weights up to date.
        reward: Scores finished responses.
        rollout: Token budget, and which tokens are trained on.
        sampling: Temperature, and the limit of a whole response.
        group_size: Responses a prompt.
        groups_per_phase: Groups that a phase starts, and wants to be finished.
        max_generations: How often a phase may start groups in place of those that teach nothing.
        drop_uniform: Whether groups whose rewards are all equal are left out.
        seed: The seed of the run.
    """

    def __init__(
        self,
        engine: RolloutEngine,
        reward: Reward,
        rollout: RolloutSettings,
        sampling: SamplingSettings,
        *,
        group_size: int,
        groups_per_phase: int,
        max_generations: int,
        drop_uniform: bool,
        seed: int,
    ) -> None:
        self.engine = engine
        self.reward = reward
        self.rollout = rollout
        self.sampling = sampling
        self.group_size = group_size
        self.groups_per_phase = groups_per_phase
        self.max_generations = max_generations
        self.drop_uniform = drop_uniform
        self.seed = seed
        self._deck: PromptDeck | None = None
        self._rank, self._world_size, self._process_group = 0, 1, None
        self._precision: Callable[[], AbstractContextManager[None]] = nullcontext
        self._groups_started = 0
        self._open: dict[int, Group] = {}
        self._reward_seconds = 0.0

    def attach(
        self,
        deck: PromptDeck,
        *,
        rank: int = 0,
        world_size: int = 1,
        precision: Callable[[], AbstractContextManager[None]] = nullcontext,
        process_group: Any = None,
    ) -> None:
        """Give it the prompts and the place where it works.

        Args:
            deck: The prompts.
            rank: This rank, 0 … world_size-1.
            world_size: Number of ranks; they share the responses of a phase.
            precision: Makes the Trainer's precision context.
            process_group: What ranks talk in; None is the group that training uses.
        """
        self._deck, self._rank, self._world_size = deck, rank, world_size
        self._precision, self._process_group = precision, process_group

    @property
    def open_groups(self) -> list[Group]:
        """Groups that are under way, in order of their ids."""
        return [self._open[group_id] for group_id in sorted(self._open)]

    def collect(self, num_ready: int = 0, oldest_useful_version: int | None = None) -> Collected:
        """Sample one phase. Collective: every rank calls it.

        Args:
            num_ready: Groups that were finished before and that the phase may be filled up with.
            oldest_useful_version: Groups under way with an older token are given up; None keeps all.

        Returns:
            Finished groups, scored, and counts.

        Raises:
            InputError: No group teaches anything.
        """
        started = time.perf_counter()
        self._reward_seconds = 0.0
        num_expired = self._give_up(oldest_useful_version)
        resumed = self._num_unfinished_responses()
        filled = fill_phase(
            self,
            self.groups_per_phase,
            at_least=max(self.groups_per_phase - num_ready, 0),
            max_generations=self.max_generations,
            max_waits=self.most_phases_of_a_response,
            drop_uniform=self.drop_uniform,
        )
        return Collected(
            filled=filled,
            num_resumed=resumed,
            num_unfinished=self._num_unfinished_responses(),
            num_expired=num_expired,
            seconds=time.perf_counter() - started,
            reward_seconds=self._reward_seconds,
        )

    def start(self, num_groups: int) -> list[Trajectory]:
        """Begin groups; see `GroupSource`."""
        return self._sample(self._open_new(num_groups))

    def go_on(self, num_groups: int) -> list[Trajectory]:
        """Begin groups and sample on those under way; see `GroupSource`."""
        return self._sample([*self._open, *self._open_new(num_groups)])

    @property
    def num_under_way(self) -> int:
        """Groups begun and not finished."""
        return len(self._open)

    @property
    def most_phases_of_a_response(self) -> int:
        """Phases after which every response is finished."""
        return -(-self.sampling.max_new_tokens // (self.rollout.token_budget or self.sampling.max_new_tokens))

    def cancel(self) -> None:
        """Let a `collect` in another thread end early; what it samples is not wanted any more."""
        self.engine.cancelled.set()

    def _num_unfinished_responses(self) -> int:
        return sum(not t.is_finished for group in self._open.values() for t in group)

    def _give_up(self, oldest_useful_version: int | None) -> int:
        if oldest_useful_version is None:
            return 0
        expired = [i for i, group in self._open.items() if oldest_version(group) < oldest_useful_version]
        for group_id in expired:
            del self._open[group_id]
        return len(expired)

    def _open_new(self, num_groups: int) -> list[int]:
        """Open groups for the next prompts; their ids."""
        assert self._deck is not None
        first = self._groups_started
        for group_id, encoded in enumerate(self._deck.draw(first, num_groups), first):
            self._open[group_id] = open_group(encoded, group_id, self.group_size, self.engine.version)
        self._groups_started += num_groups
        return list(range(first, self._groups_started))

    def _sample(self, group_ids: Iterable[int]) -> list[Trajectory]:
        """Sample on groups under way, within the budget, and take out those that are finished then."""
        chosen = sorted(group_ids)
        mine = [t for i in chosen[self._rank :: self._world_size] for t in self._open[i] if not t.is_finished]
        grown = go_on(
            mine,
            engine=self.engine,
            sampling=self.sampling,
            token_budget=self.rollout.token_budget,
            seed=self.seed,
            precision=self._precision(),
        )
        sampled = time.perf_counter()
        finished = iter(score([t for t in grown if t.is_finished], self.reward))
        everyone = gather([next(finished) if t.is_finished else t for t in grown], self._process_group)
        self._reward_seconds += time.perf_counter() - sampled
        by_place = {(t.group_id, t.sample_index): t for t in everyone}
        for i in chosen:
            self._open[i] = tuple(by_place.get((i, t.sample_index), t) for t in self._open[i])
        complete = [i for i in chosen if all(t.is_finished for t in self._open[i])]
        oldest = self.engine.version if self.rollout.train_on == "current_version" else 0
        return [replace(t, oldest_trained_version=oldest) for i in complete for t in self._open.pop(i)]

    def state_dict(self) -> dict[str, Any]:
        """The prompt cursor and the groups under way."""
        return {
            "groups_started": self._groups_started,
            "open": pack_trajectories([t for group in self.open_groups for t in group]),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a `state_dict`.

        Raises:
            InputError: The state is damaged.
        """
        self._groups_started = state_dict["groups_started"]
        groups = group_trajectories(unpack_trajectories(state_dict["open"]))
        self._open = {group[0].group_id: group for group in groups}


def describe(collected: Sequence[Collected]) -> dict[str, float]:
    """Metrics of what was sampled before a phase: one or, with a lag, at first several times.

    Args:
        collected: At least one.

    Returns:
        Tag → value.
    """
    reward_seconds = sum(c.reward_seconds for c in collected)
    return {
        **rollout_metrics([t for c in collected for t in c.filled.sampled]),
        "rollout/generations": float(sum(c.filled.generations for c in collected)),
        "rollout/dropped_uniform_groups": float(sum(c.filled.num_uniform for c in collected)),
        "rollout/resumed": float(sum(c.num_resumed for c in collected)),
        "rollout/unfinished": float(collected[-1].num_unfinished),
        "rollout/expired_groups": float(sum(c.num_expired for c in collected)),
        "time/rollout_seconds": sum(c.seconds for c in collected) - reward_seconds,
        "time/reward_seconds": reward_seconds,
    }
