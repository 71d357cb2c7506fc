"""The DataModule: prompts → rollouts → buffer → loader. It owns all data state of a run."""

import logging
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from typing import Any

import torch.distributed as dist
from lightning.pytorch.plugins import DoublePrecision, HalfPrecision
from torch import Tensor
from torch.utils.data import DataLoader

from bapo_lightning.advantages import AdvantageEstimator, GroupAdvantage
from bapo_lightning.answering_data import AnsweringDataModule
from bapo_lightning.collector import Collector
from bapo_lightning.data_rules import check_budget, check_buffer, check_counts, check_frozen, checked_lag
from bapo_lightning.dealing import Dealing
from bapo_lightning.errors import InputError
from bapo_lightning.frozen import FrozenSource
from bapo_lightning.phase_queue import PhaseQueue
from bapo_lightning.proximal import proximal_log_probs, with_proximal_log_probs
from bapo_lightning.replay import PhaseLoader, ReplayBuffer, update_order
from bapo_lightning.resuming import check_data_state
from bapo_lightning.rewards import MathReward, Reward
from bapo_lightning.rollout import HFEngine, RolloutEngine, RolloutSettings
from bapo_lightning.supply import GroupSupply
from bapo_lightning.tasks import PromptSource
from bapo_lightning.types import RolloutPhase, SamplingSettings, Sealed, TokenBatch, Trajectory

log = logging.getLogger(__name__)


class ReplayDataModule(AnsweringDataModule):
    """Rolls out, scores, buffers and deals mini-batches. One Lightning epoch is one rollout phase.

    Args:
        task: Where prompts come from.
        engine: What samples; None is `HFEngine`.
        reward: What scores responses; None is `MathReward`.
        advantage: Turns rewards into advantages; None is `GroupAdvantage` (GRPO).
        buffer: Given one (and no lag), each phase trains on ``groups_per_phase`` groups drawn from it, fresh and older
            ones alike, and they stay in it until they are too old or there is no room. None keeps a group until it has
            had its phase.
        sampling: Temperature and token limit of training rollouts.
        rollout: Token budget of a phase (partial rollouts), and sampling beside training.
        group_size: Responses a prompt, ≥ 2: the group is its own baseline.
        groups_per_phase: Prompts that a phase begins to sample, over all ranks, and most that it trains on.
        groups_per_update: Prompts in one optimizer step, over all ranks; divides ``groups_per_phase`` and is a multiple
            of the number of ranks.
        inner_epochs: Times a phase's data is gone through, ≥ 1. The staleness of the last update of a phase is
            ``groups_per_phase / groups_per_update × inner_epochs − 1`` policy updates.
        lag: Policy updates between the weights that sample a group and the first update on it, ≥ 0, a multiple of the
            updates in a phase: the groups of a phase are sampled so much earlier and wait in the buffer. The first
            phases, before which there were no earlier weights, train on samples of the initial ones. Staleness is then
            ``lag`` to ``lag`` + updates in a phase − 1. None is 0, with ``rollout.overlap`` the updates of one phase.
        max_generations: How often a phase may start groups in place of those that teach nothing (DAPO's dynamic
            sampling), ≥ 1. More than 1 needs a buffer with ``drop_uniform``, which is what None then is. With fewer
            groups in the end, the phase has fewer updates.
        rollouts: Train on the groups of these rollout files (a Parquet file or a folder of them) instead of sampling;
            the run ends when all are trained on. Versions count from the weights that it starts from.
        accept_changed_prompts: Go on from a checkpoint although the prompts are not those it was made with.
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
        rollout: RolloutSettings = RolloutSettings(),
        group_size: int = 8,
        groups_per_phase: int = 32,
        groups_per_update: int = 8,
        inner_epochs: int = 1,
        lag: int | None = None,
        max_generations: int = 1,
        max_prompt_tokens: int = 1024,
        rollouts: str | None = None,
        accept_changed_prompts: bool = False,
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
        check_counts(
            group_size=group_size,
            groups_per_phase=groups_per_phase,
            inner_epochs=inner_epochs,
            max_generations=max_generations,
        )
        sampling.require_full_distribution("data.sampling")
        check_budget(rollout, sampling)
        check_frozen(rollouts, rollout, lag, max_generations)
        self.accept_changed_prompts = accept_changed_prompts
        self.advantage = GroupAdvantage() if advantage is None else advantage
        updates_per_phase = len(update_order(groups_per_phase, groups_per_update, inner_epochs, seed=0, phase=0))
        self.rollout = rollout
        self.samples_beside_training = rollout.overlap
        self.lag = checked_lag(lag, updates_per_phase, rollout.overlap)
        self.lag_phases = self.lag // updates_per_phase
        # Not `buffer or …`: an empty buffer has length 0 and would be taken for none.
        replays = buffer is not None and self.lag == 0
        self.buffer = ReplayBuffer(drop_uniform=max_generations > 1) if buffer is None else buffer
        check_buffer(
            self.buffer,
            replays=replays,
            groups_per_phase=groups_per_phase,
            lag=self.lag,
            updates_per_phase=updates_per_phase,
            max_generations=max_generations,
            token_budget=rollout.token_budget,
        )
        self.max_generations = max_generations
        self.group_size = group_size
        self.groups_per_phase = groups_per_phase
        self.groups_per_update = groups_per_update
        self.inner_epochs = inner_epochs
        self.phase_metrics: dict[str, float] = {}
        """What the newest rollout phase was like; empty after a resume until the next one."""
        self.phase_trajectories: list[Trajectory] = []
        """The trajectories that the newest phase trains on, on every rank the same."""
        self._updates_per_phase = updates_per_phase
        self.queue = PhaseQueue(
            self.buffer,
            groups_per_phase=groups_per_phase,
            groups_per_update=groups_per_update,
            replays=replays,
            seed=seed,
        )
        self.frozen = (
            FrozenSource(rollouts, sampling, groups_per_phase=groups_per_phase, drop_uniform=self.buffer.drop_uniform)
            if rollouts
            else None
        )
        self.collector = Collector(
            self.engine,
            self.reward,
            rollout,
            sampling,
            group_size=group_size,
            groups_per_phase=groups_per_phase,
            max_generations=max_generations,
            drop_uniform=self.buffer.drop_uniform,
            seed=seed,
        )
        self.supply = GroupSupply(self.frozen or self.collector, self.queue, self.advantage)
        self.phases_to_roll_out = 0
        """Set by `bapo rollout`."""
        self._attached = False
        self._phase = -1
        self._dealing = self._typed_dealing()
        self._restored = False
        self._proximal_log_probs: Tensor | None = None

    def _typed_dealing(self) -> Dealing:
        return Dealing(
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
            if self._phase >= 0 and self.trainer.ckpt_path is None:
                raise InputError(
                    "this ReplayDataModule holds the groups and the prompt cursor of a run before; make a new one for "
                    "another run, or give the checkpoint to go on from as ckpt_path"
                )
            if self.frozen:
                self._end_with_the_data(self.frozen)
        self.engine.cancelled.clear()
        self._attached = False

    def _end_with_the_data(self, frozen: FrozenSource) -> None:
        assert self.trainer is not None
        wanted, num_phases = self.trainer.max_epochs, frozen.num_phases
        if wanted is None or wanted < 0 or wanted > num_phases:
            log.warning(
                "data.rollouts holds %d groups: the run ends after %d phases of at most %d",
                len(frozen.rollouts.groups),
                num_phases,
                self.groups_per_phase,
            )
            self.trainer.fit_loop.max_epochs = num_phases

    def _attach_source(self) -> None:
        """Hand the prompts and the place among the ranks over, once the model is there. Collective."""
        assert self.trainer is not None
        self._attached = True
        if self.frozen:
            self.frozen.require_vocabulary(self.module.policy.vocabulary_size)
            return
        # The background thread must not talk between the messages of training.
        apart = self.rollout.overlap and self.trainer.world_size > 1
        self.collector.attach(
            self.deck,
            rank=self.trainer.global_rank,
            world_size=self.trainer.world_size,
            precision=self._rollout_precision(),
            process_group=dist.new_group(backend="gloo") if apart else None,
        )

    def _rollout_precision(self) -> Callable[[], AbstractContextManager[None]]:
        assert self.trainer is not None
        plugin = self.trainer.precision_plugin
        # These set torch's default dtype, which all threads share: entered beside training it would never be put back.
        if self.rollout.overlap and isinstance(plugin, HalfPrecision | DoublePrecision):
            return nullcontext
        return plugin.forward_context

    # --- training ---------------------------------------------------------------------------------------------------

    def train_dataloader(self) -> PhaseLoader[Sealed[TokenBatch]]:
        """Roll out the next phase, or rebuild the phase that a checkpoint was taken in; then deal its updates."""
        assert self.trainer is not None
        if not self._attached:
            self._attach_source()
        if self._restored:
            # The loader's position is restored too: in the middle of the phase, or at its end.
            self._restored = False
        else:
            self._roll_out(self._phase + 1)
        groups = self.queue.present_groups()
        if self._proximal_log_probs is not None:
            groups = with_proximal_log_probs(groups, self._proximal_log_probs)
        return self._dealing.loader(
            groups,
            pad_id=self.module.policy.pad_id,
            seed=self.seed,
            phase=self._phase,
            rank=self.trainer.global_rank,
            world_size=self.trainer.world_size,
            before_batch=self.supply.raise_if_failed,
        )

    def _roll_out(self, phase: int) -> None:
        """Have enough groups sampled and choose those of this phase. Collective: every rank calls it."""
        assert self.trainer is not None
        started = time.perf_counter()
        self.supply.take_over()
        waited = time.perf_counter() - started
        version = self.module.updates_done if self.frozen else self.sync_engine()
        last_version = version + self._updates_per_phase - 1
        self.queue.retire()
        # With overlap the youngest groups are sampled beside the phase that begins.
        ahead = self.lag_phases + (0 if self.rollout.overlap else 1)
        while self.queue.num_waiting < ahead:
            self.supply.collect(self._oldest_useful_version(last_version))
        if self.frozen:
            self.frozen.require_known_versions(version)
        chosen = self.queue.draw(phase, last_version, self.trainer.world_size)
        self._dealing = replace(self._typed_dealing(), groups_per_update=chosen.groups_per_update)
        if len(chosen.groups) < self.groups_per_phase and self.rollout.token_budget is None:
            log.warning(
                "rollout phase %d trains on %d groups instead of %d: no more could be found",
                phase,
                len(chosen.groups),
                self.groups_per_phase,
            )
        self._phase = phase
        self.phase_trajectories = [trajectory for group in chosen.groups for trajectory in group]
        self.phase_metrics = {
            **self.supply.metrics(),
            "rollout/dropped_prompts": 0.0 if self.frozen else float(self.deck.num_dropped),
            "buffer/groups": float(len(self.buffer)),
        }
        if self.rollout.overlap:
            self.supply.begin(self._oldest_useful_version(last_version))
            self.phase_metrics["time/rollout_wait_seconds"] = waited
        self._proximal_log_probs = self._score_phase() if self.module.clipping.needs_proximal else None

    def _oldest_useful_version(self, last_version: int) -> int | None:
        """Version below which a token is too old for the last update of the phase that is sampled now."""
        limit = self.buffer.max_staleness
        return None if limit is None else last_version + self.lag - limit

    def sync_engine(self) -> int:
        """Bring the engine to the policy's weights, once it has finished what it samples in the background."""
        self.supply.take_over()
        return super().sync_engine()

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

    # --- rollouts to keep ---------------------------------------------------------------------------------------------

    def predict_dataloader(self) -> Iterable[Any]:
        """One batch a phase for `bapo rollout`; else one response to each prompt of the task."""
        if self.phases_to_roll_out == 0:
            return super().predict_dataloader()
        return DataLoader([Sealed(RolloutPhase(n)) for n in range(self.phases_to_roll_out)], batch_size=None)  # type: ignore[arg-type]

    def roll_out_to_keep(self) -> list[Trajectory]:
        """Sample one phase of whole, scored groups and put none into the buffer. Collective."""
        if not self._attached:
            self._attach_source()
        return [t for group in self.collector.collect().filled.kept for t in group]

    # --- state --------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything that a resumed run needs to draw and train on what the straight run would have."""
        return {
            "phase": self._phase,
            "dealing": asdict(self._dealing),
            "lag": self.lag,
            "proximal_log_probs": self._proximal_log_probs,
            # First, as it waits for groups that the queue takes in.
            "supply": self.supply.state_dict(),
            "queue": self.queue.state_dict(),
            "prompts": self._fingerprint(),
            "seed": self.seed,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the state of a checkpoint.

        Raises:
            InputError: The prompts or the seed are not those of the checkpoint.
        """
        if self.phases_to_roll_out:
            # Rollouts to keep want the weights only: groups under way are of older ones.
            return
        check_data_state(
            state_dict,
            prompts=self._fingerprint(),
            prompts_key="data.rollouts" if self.frozen else "data.task",
            accept_changed_prompts=self.accept_changed_prompts,
            seed=self.seed,
            lag=self.lag,
        )
        self._phase = state_dict["phase"]
        self._dealing = Dealing(**state_dict["dealing"])
        self._proximal_log_probs = state_dict["proximal_log_probs"]
        self.queue.load_state_dict(state_dict["queue"])
        self.supply.load_state_dict(state_dict["supply"])
        held = self.queue.holds_more or bool(self.supply.source.open_groups)
        if self._dealing.temperature != self.sampling.temperature and held:
            raise InputError(
                f"data.sampling.temperature is {self.sampling.temperature}, but the checkpoint holds groups that were "
                f"sampled at {self._dealing.temperature} and are yet to be trained on: their ratios would be wrong; go "
                "on with the same temperature"
            )
        self._restored = self._phase >= 0

    def _fingerprint(self) -> str:
        return self.frozen.fingerprint if self.frozen else self.deck.fingerprint

    # --- end ----------------------------------------------------------------------------------------------------------

    def on_exception(self, exception: BaseException) -> None:
        """Stop a background rollout, since nothing will be trained on it."""
        self.supply.stop()

    def teardown(self, stage: str) -> None:
        """Stop a background rollout and the reward's worker processes."""
        self.supply.stop()
        super().teardown(stage)
