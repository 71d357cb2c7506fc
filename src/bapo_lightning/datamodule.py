"""The DataModule: prompts → rollouts → buffer → loader. It owns all data state of a run."""

import logging
import time
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor

from bapo_lightning.advantages import AdvantageEstimator, GroupAdvantage
from bapo_lightning.answering_data import AnsweringDataModule
from bapo_lightning.collection import (
    GroupRequest,
    assign_advantages,
    gather,
    rollout_metrics,
    sample_groups,
    score,
)
from bapo_lightning.errors import InputError
from bapo_lightning.filling import FilledPhase, fill_phase
from bapo_lightning.proximal import proximal_log_probs, with_proximal_log_probs
from bapo_lightning.replay import Group, PhaseLoader, ReplayBuffer, rank_share, update_order
from bapo_lightning.rewards import MathReward, Reward
from bapo_lightning.rollout import HFEngine, RolloutEngine
from bapo_lightning.seeding import generator
from bapo_lightning.tasks import PromptSource
from bapo_lightning.types import SamplingSettings, Sealed, TokenBatch, Trajectory

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Dealing:
    """How a phase was sampled and is dealt out.

    A phase that a checkpoint interrupted ends as it began, whatever the config says now; the next goes by the config.
    """

    groups_per_update: int
    inner_epochs: int
    temperature: float
    length_limit: int


class ReplayDataModule(AnsweringDataModule):
    """Rolls out, scores, buffers and deals mini-batches. One Lightning epoch is one rollout phase.

    Args:
        task: Where prompts come from.
        engine: What samples; None is `HFEngine`.
        reward: What scores responses; None is `MathReward`.
        advantage: Turns rewards into advantages; None is `GroupAdvantage` (GRPO).
        buffer: Keeps groups over phases; None keeps the present phase only. With a larger buffer each phase trains on
            ``groups_per_phase`` groups drawn from it, fresh and older ones alike.
        sampling: Temperature and token limit of training rollouts.
        group_size: Responses a prompt, ≥ 2: the group is its own baseline.
        groups_per_phase: Prompts sampled a phase, over all ranks.
        groups_per_update: Prompts in one optimizer step, over all ranks; divides ``groups_per_phase`` and is a multiple
            of the number of ranks.
        inner_epochs: Times a phase's data is gone through, ≥ 1. The staleness of the last update of a phase is
            ``groups_per_phase / groups_per_update × inner_epochs − 1`` policy updates.
        lag: Policy updates between the weights that sample a group and the first update on it, ≥ 0, a multiple of the
            updates in a phase: the groups of a phase are sampled so much earlier and wait in the buffer. The first
            phases, before which there were no earlier weights, train on samples of the initial ones. Staleness is then
            ``lag`` to ``lag`` + updates in a phase − 1.
        max_generations: How often a phase may sample to fill itself up with groups that teach something (DAPO's dynamic
            sampling), ≥ 1; each time as many groups as are missing. More than 1 needs a buffer with ``drop_uniform``,
            which is what None then is. With fewer groups in the end, the phase has fewer updates.
        max_prompt_tokens: Longer prompts are dropped and counted, never cut.
        seed: Seeds every draw of the run. On the command line it is ``--seed_everything``.

    Raises:
        InputError: A value is unusable, or values contradict each other.
    """

    def __init__(
        self,
        task: PromptSource,
        engine: RolloutEngine | None = None,
        reward: Reward | None = None,
        advantage: AdvantageEstimator | None = None,
        buffer: ReplayBuffer | None = None,
        sampling: SamplingSettings = SamplingSettings(),
        group_size: int = 8,
        groups_per_phase: int = 32,
        groups_per_update: int = 8,
        inner_epochs: int = 1,
        lag: int = 0,
        max_generations: int = 1,
        max_prompt_tokens: int = 1024,
        seed: int = 0,
    ) -> None:
        super().__init__(
            task,
            HFEngine() if engine is None else engine,
            MathReward() if reward is None else reward,
            sampling,
            max_prompt_tokens,
            seed,
        )
        if group_size < 2:
            raise InputError(
                f"data.group_size must be at least 2, got {group_size}: a group of one has no baseline, so every "
                "advantage would be 0"
            )
        for name, value in (
            ("groups_per_phase", groups_per_phase),
            ("inner_epochs", inner_epochs),
            ("max_generations", max_generations),
        ):
            if value < 1:
                raise InputError(f"data.{name} must be at least 1, got {value}")
        sampling.require_full_distribution("data.sampling")
        self.advantage = GroupAdvantage() if advantage is None else advantage
        # Not `buffer or …`: an empty buffer has length 0 and would be taken for none.
        updates_per_phase = len(update_order(groups_per_phase, groups_per_update, inner_epochs, seed=0, phase=0))
        if lag < 0 or lag % updates_per_phase:
            raise InputError(
                f"data.lag must be a multiple of the {updates_per_phase} updates in a phase (data.groups_per_phase / "
                f"data.groups_per_update × data.inner_epochs), since sampling happens between phases; got {lag}"
            )
        self.lag = lag
        self.lag_phases = lag // updates_per_phase
        most_groups = groups_per_phase * (self.lag_phases + 1)
        if buffer is None:
            buffer = ReplayBuffer(capacity=most_groups, drop_uniform=max_generations > 1)
        if max_generations > 1 and not buffer.drop_uniform:
            raise InputError(
                f"data.max_generations = {max_generations} fills a phase up in place of groups that teach nothing, but "
                "data.buffer.drop_uniform is false, so none is left out; set it to true"
            )
        self.buffer = buffer
        self.max_generations = max_generations
        self.group_size = group_size
        self.groups_per_phase = groups_per_phase
        self.groups_per_update = groups_per_update
        self.inner_epochs = inner_epochs
        self.phase_metrics: dict[str, float] = {}
        """What the newest rollout phase was like; empty after a resume until the next one."""
        self.phase_trajectories: list[Trajectory] = []
        """The trajectories that the newest phase trains on, on every rank the same."""

        oldest_needed = lag + updates_per_phase - 1
        oldest_allowed = self.buffer.max_staleness
        if oldest_allowed is not None and oldest_allowed < oldest_needed:
            raise InputError(
                f"data.buffer.max_staleness is {oldest_allowed}, but the last of the {updates_per_phase} updates of a "
                f"phase is {oldest_needed} updates away from its own rollouts; raise it to at least {oldest_needed}, "
                "or lower data.lag, data.inner_epochs or data.groups_per_phase"
            )
        if self.buffer.capacity is not None and self.buffer.capacity < most_groups:
            raise InputError(
                f"data.buffer.capacity is {self.buffer.capacity} groups, less than the {most_groups} that wait at a "
                f"time: data.groups_per_phase = {groups_per_phase} for each of {self.lag_phases + 1} phases"
            )
        self._updates_per_phase = updates_per_phase
        self._phase = -1
        self._dealing = self._typed_dealing()
        self._restored = False
        self._phase_group_ids: list[int] = []
        self._proximal_log_probs: Tensor | None = None
        self._groups_sampled = 0
        self._phases_sampled = 0
        self._waiting: list[list[int]] = []
        self._reward_seconds = 0.0

    def _typed_dealing(self) -> "_Dealing":
        return _Dealing(
            groups_per_update=self.groups_per_update,
            inner_epochs=self.inner_epochs,
            temperature=self.sampling.temperature,
            length_limit=self.sampling.max_new_tokens,
        )

    # --- set-up -----------------------------------------------------------------------------------------------------

    def setup(self, stage: str) -> None:
        """Check the settings against the run, and read the prompts for stages that need them."""
        assert self.trainer is not None
        world_size = self.trainer.world_size
        if stage == "fit":
            if self.groups_per_update % world_size:
                raise InputError(
                    f"data.groups_per_update = {self.groups_per_update} is not a multiple of the {world_size} ranks; "
                    "groups stay whole, so every rank needs equally many"
                )
            if self.trainer.reload_dataloaders_every_n_epochs != 1:  # type: ignore[attr-defined]
                raise InputError(
                    "trainer.reload_dataloaders_every_n_epochs must be 1, as one Lightning epoch is one rollout phase; "
                    f"got {self.trainer.reload_dataloaders_every_n_epochs}"  # type: ignore[attr-defined]
                )

    # --- training ---------------------------------------------------------------------------------------------------

    def train_dataloader(self) -> PhaseLoader[Sealed[TokenBatch]]:
        """Roll out the next phase, or rebuild the phase that a checkpoint was taken in; then deal its updates."""
        assert self.trainer is not None
        if self._restored:
            # The loader's position is restored too: in the middle of the phase, or at its end.
            self._restored = False
        else:
            self._roll_out(self._phase + 1)
        dealing = self._dealing
        buffered = {group[0].group_id: group for group in self.buffer.groups}
        groups = [buffered[group_id] for group_id in self._phase_group_ids]
        if self._proximal_log_probs is not None:
            groups = with_proximal_log_probs(groups, self._proximal_log_probs)
        policy = self.module.policy

        def collate(trajectories: list[Trajectory]) -> Sealed[TokenBatch]:
            batch = TokenBatch.from_trajectories(
                trajectories,
                pad_id=policy.pad_id,
                temperature=dealing.temperature,
                length_limit=dealing.length_limit,
            )
            return Sealed(batch)

        order = update_order(
            len(groups), dealing.groups_per_update, dealing.inner_epochs, seed=self.seed, phase=self._phase
        )
        rank, world_size = self.trainer.global_rank, self.trainer.world_size
        return PhaseLoader(groups, [rank_share(update, rank, world_size) for update in order], collate)

    def _roll_out(self, phase: int) -> None:
        """Fill the buffer with fresh groups and choose the groups of this phase. Collective: every rank calls it."""
        assert self.trainer is not None
        started = time.perf_counter()
        self._reward_seconds = 0.0
        version = self.sync_engine()
        if self.lag_phases:
            # Each phase's groups are trained on in that phase only.
            self.buffer.remove(group_id for group_id in self._phase_group_ids if group_id in self.buffer)
        sampled: list[FilledPhase] = []
        while len(self._waiting) <= self.lag_phases:
            sampled.append(self._fill(self._phases_sampled))
            self._phases_sampled += 1
        waiting = self._waiting.pop(0)
        groups = self._draw_groups(phase, waiting, version + self._updates_per_phase - 1)
        self._phase = phase
        self._phase_group_ids = [group[0].group_id for group in groups]
        self.phase_trajectories = [trajectory for group in groups for trajectory in group]
        self._proximal_log_probs = self._score_phase() if self.module.clipping.needs_proximal else None
        self.phase_metrics = {
            **rollout_metrics([t for filled in sampled for t in filled.sampled], self.group_size),
            "rollout/generations": float(sum(filled.generations for filled in sampled)),
            "rollout/dropped_uniform_groups": float(sum(filled.num_uniform for filled in sampled)),
            "rollout/dropped_prompts": float(self.deck.num_dropped),
            "buffer/groups": float(len(self.buffer)),
            "time/rollout_seconds": time.perf_counter() - started - self._reward_seconds,
            "time/reward_seconds": self._reward_seconds,
        }

    def _fill(self, phase: int) -> FilledPhase:
        """Sample the groups of a phase, put them into the buffer and queue them up."""
        filled = fill_phase(
            partial(self._sample, phase),
            self.groups_per_phase,
            max_generations=self.max_generations,
            drop_uniform=self.buffer.drop_uniform,
        )
        kept = [trajectory for group in filled.kept for trajectory in group]
        self.buffer.add(assign_advantages(kept, self.advantage, phase))
        self.buffer.counts.dropped_uniform += filled.num_uniform
        self._waiting.append([group[0].group_id for group in filled.kept])
        return filled

    def _sample(self, phase: int, num_groups: int) -> list[Trajectory]:
        """Sample and score new groups, shared among ranks and gathered on all of them."""
        assert self.trainer is not None
        requests = [
            GroupRequest(encoded, group_id)
            for group_id, encoded in enumerate(self.deck.draw(self._groups_sampled, num_groups), self._groups_sampled)
        ]
        self._groups_sampled += num_groups
        local = sample_groups(
            requests[self.trainer.global_rank :: self.trainer.world_size],
            group_size=self.group_size,
            engine=self.engine,
            sampling=self.sampling,
            seed=self.seed,
            phase=phase,
            precision=self.trainer.precision_plugin.forward_context(),
        )
        sampled = time.perf_counter()
        trajectories = gather(score(local, self.reward))
        self._reward_seconds += time.perf_counter() - sampled
        return trajectories

    def _draw_groups(self, phase: int, waiting: list[int], last_version: int) -> list[Group]:
        """Choose the groups of a phase: as many as it wants, or as many whole updates as there are.

        Without a lag they are drawn from the whole buffer, with one they are those that were sampled for this phase.
        """
        assert self.trainer is not None
        self.buffer.drop_stale(last_version)
        own = [group for group in self.buffer.groups if group[0].group_id in set(waiting)]
        usable = len(own) if self.lag_phases else min(len(self.buffer), self.groups_per_phase)
        per_update = self.groups_per_update
        if usable < per_update:
            # One smaller update, of which every rank gets an equal share.
            per_update = usable - usable % self.trainer.world_size
        if per_update == 0:
            raise InputError(
                f"data.buffer: rollout phase {phase} left {usable} usable groups for {self.trainer.world_size} ranks "
                f"({self.buffer.counts}); raise data.max_generations, capacity or max_staleness, or do not drop "
                "uniform groups"
            )
        self._dealing = replace(self._typed_dealing(), groups_per_update=per_update)
        if usable < self.groups_per_phase:
            log.warning(
                "rollout phase %d trains on %d groups instead of %d: no more could be found",
                phase,
                usable - usable % per_update,
                self.groups_per_phase,
            )
        count = usable - usable % per_update
        if self.lag_phases:
            return own[:count]
        return self.buffer.sample(count, generator(self.seed, "buffer", phase), last_version)

    def _score_phase(self) -> Tensor:
        """Log-probs of the phase's tokens under the weights it begins with."""
        assert self.trainer is not None
        return proximal_log_probs(
            self.phase_trajectories,
            self.module.policy,
            responses_at_once=self.module.micro_batch_size or self.groups_per_update * self.group_size,
            temperature=self._dealing.temperature,
            device=self.module.device,
            precision=self.trainer.precision_plugin.forward_context(),
        )

    # --- state --------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything that a resumed run needs to draw and train on what the straight run would have."""
        return {
            "phase": self._phase,
            "phase_group_ids": self._phase_group_ids,
            "dealing": asdict(self._dealing),
            "groups_sampled": self._groups_sampled,
            "phases_sampled": self._phases_sampled,
            "waiting": self._waiting,
            "lag": self.lag,
            "proximal_log_probs": self._proximal_log_probs,
            "buffer": self.buffer.state_dict(),
            "prompts": self.deck.fingerprint,
            "seed": self.seed,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the state of a checkpoint.

        Raises:
            InputError: The prompts or the seed are not those of the checkpoint.
        """
        if state_dict["prompts"] != self.deck.fingerprint:
            raise InputError(
                "data.task: the prompts are not those of the checkpoint, so the run cannot go on where it stopped; "
                "give the same data (and data.max_prompt_tokens), or start a new run from exported weights"
            )
        if state_dict["seed"] != self.seed:
            raise InputError(
                f"seed_everything is {self.seed}, but the checkpoint was made with {state_dict['seed']}; a run goes on "
                "with its own seed"
            )
        if state_dict["lag"] != self.lag:
            raise InputError(
                f"data.lag is {self.lag}, but the checkpoint was made with {state_dict['lag']}: groups are waiting for "
                "their phases, and would be lost or come at another age; go on with the same lag"
            )
        self._phase = state_dict["phase"]
        self._phase_group_ids = list(state_dict["phase_group_ids"])
        self._dealing = _Dealing(**state_dict["dealing"])
        self._groups_sampled = state_dict["groups_sampled"]
        self._phases_sampled = state_dict["phases_sampled"]
        self._waiting = [list(ids) for ids in state_dict["waiting"]]
        self._proximal_log_probs = state_dict["proximal_log_probs"]
        self.buffer.load_state_dict(state_dict["buffer"])
        if any(group_id not in self.buffer for group_id in self._phase_group_ids):
            raise InputError(
                f"data.buffer.capacity = {self.buffer.capacity} (data.groups_per_phase where no buffer is given) is "
                f"too small for the phase that the checkpoint interrupted: it needs {len(self._phase_group_ids)} groups"
            )
        if self._dealing.temperature != self.sampling.temperature and len(self.buffer) > len(self._phase_group_ids):
            raise InputError(
                f"data.sampling.temperature is {self.sampling.temperature}, but the checkpoint's buffer holds groups "
                f"that were sampled at {self._dealing.temperature} and are yet to be trained on: their ratios would be "
                "wrong; go on with the same temperature"
            )
        self._restored = self._phase >= 0
