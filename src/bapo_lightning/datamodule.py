"""The DataModule: prompts → rollouts → buffer → loader. It owns all data state of a run."""

import logging
import time
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch.distributed as dist
from torch import Tensor

from bapo_lightning.advantages import AdvantageEstimator, GroupAdvantage
from bapo_lightning.answering_data import AnsweringDataModule
from bapo_lightning.background import BackgroundJob
from bapo_lightning.checkpoint_files import is_beside
from bapo_lightning.collection import assign_advantages
from bapo_lightning.collector import Collected, Collector, describe
from bapo_lightning.data_rules import check_budget, check_buffer, checked_lag
from bapo_lightning.errors import InputError
from bapo_lightning.phase_queue import PhaseQueue
from bapo_lightning.proximal import proximal_log_probs, with_proximal_log_probs
from bapo_lightning.replay import PhaseLoader, ReplayBuffer, group_trajectories, rank_share, update_order
from bapo_lightning.rewards import MathReward, Reward
from bapo_lightning.rollout import HFEngine, RolloutEngine, RolloutSettings
from bapo_lightning.tasks import PromptSource
from bapo_lightning.types import SamplingSettings, Sealed, TokenBatch, Trajectory

log = logging.getLogger(__name__)

SECONDS_TO_STOP = 60.0
"""How long the end of a run waits for a background rollout to notice that it is not wanted any more."""


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
        check_budget(rollout, sampling)
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
        self._job: BackgroundJob[Collected] | None = None
        self._metrics_of_job: dict[str, float] = {}
        self._attached = False
        self._phase = -1
        self._dealing = self._typed_dealing()
        self._restored = False
        self._proximal_log_probs: Tensor | None = None

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

        self.engine.cancelled.clear()
        self._attached = False

    def _attach_collector(self) -> None:
        """Hand the prompts and the place among the ranks over, once the model is there."""
        assert self.trainer is not None
        self._attached = True
        # The background thread must not talk between the messages of training.
        apart = self.rollout.overlap and self.trainer.world_size > 1
        self.collector.attach(
            self.deck,
            rank=self.trainer.global_rank,
            world_size=self.trainer.world_size,
            precision=self.trainer.precision_plugin.forward_context,
            process_group=dist.new_group(backend="gloo") if apart else None,
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
        groups = self.queue.present_groups()
        if self._proximal_log_probs is not None:
            groups = with_proximal_log_probs(groups, self._proximal_log_probs)
        policy = self.module.policy

        def collate(trajectories: list[Trajectory]) -> Sealed[TokenBatch]:
            if self._job is not None:
                self._job.raise_if_failed()
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
        """Have enough groups sampled and choose those of this phase. Collective: every rank calls it."""
        assert self.trainer is not None
        started = time.perf_counter()
        self._take_over_job()
        metrics, self._metrics_of_job = self._metrics_of_job, {}
        waited = time.perf_counter() - started
        version = self.sync_engine()
        if not self._attached:
            self._attach_collector()
        last_version = version + self._updates_per_phase - 1
        self.queue.retire(last_version)
        # With overlap the youngest groups are sampled beside the phase that begins.
        ahead = self.lag_phases + (0 if self.rollout.overlap else 1)
        fresh: list[Collected] = []
        while self.queue.num_waiting < ahead:
            fresh.append(self.collector.collect(self.queue.num_ready, self._oldest_useful_version(version)))
            self._take_in(fresh[-1])
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
        if self.rollout.overlap:
            wanted = self.queue.num_ready, self._oldest_useful_version(version)
            self._job = BackgroundJob(lambda: self.collector.collect(*wanted), f"rollouts beside phase {phase}")
            metrics["time/rollout_wait_seconds"] = waited
        self._proximal_log_probs = self._score_phase() if self.module.clipping.needs_proximal else None
        self.phase_metrics = {
            **(describe(fresh, self.group_size) if fresh else {}),
            **metrics,
            "rollout/dropped_prompts": float(self.deck.num_dropped),
            "buffer/groups": float(len(self.buffer)),
        }

    def _oldest_useful_version(self, version: int) -> int | None:
        """Version below which a token is too old for the last update of the phase that is sampled now."""
        limit = self.buffer.max_staleness
        return None if limit is None else version + self.lag + self._updates_per_phase - 1 - limit

    def _take_in(self, collected: Collected) -> None:
        """Give groups their advantages and put them into the buffer."""
        kept = [trajectory for group in collected.filled.kept for trajectory in group]
        if kept:
            kept = assign_advantages(kept, self.advantage, self._phase + 1)
        self.queue.add(group_trajectories(kept))
        self.buffer.counts.dropped_uniform += collected.filled.num_uniform

    def _take_over_job(self) -> None:
        """Wait for the background rollout, if there is one, and take its groups in."""
        job, self._job = self._job, None
        if job is not None:
            collected = job.result()
            self._take_in(collected)
            self._metrics_of_job = describe([collected], self.group_size)

    def sync_engine(self) -> int:
        """Bring the engine to the policy's weights, once it has finished what it samples in the background."""
        self._take_over_job()
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

    # --- state --------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything that a resumed run needs to draw and train on what the straight run would have.

        A rollout in the background is waited for: its weights will be gone.
        """
        self._take_over_job()
        return {
            "phase": self._phase,
            "dealing": asdict(self._dealing),
            "lag": self.lag,
            "proximal_log_probs": self._proximal_log_probs,
            "queue": self.queue.state_dict(),
            "collector": self.collector.state_dict(),
            "metrics_of_job": dict(self._metrics_of_job),
            "prompts": self.deck.fingerprint,
            "seed": self.seed,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the state of a checkpoint.

        Raises:
            InputError: The prompts or the seed are not those of the checkpoint.
        """
        if is_beside(state_dict):
            raise InputError(
                "ckpt_path: the data state of this checkpoint lies in a file beside it; give the Trainer "
                "plugins=[bapo_lightning.checkpoint_files.RunCheckpointIO()]"
            )
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
        self._dealing = _Dealing(**state_dict["dealing"])
        self._proximal_log_probs = state_dict["proximal_log_probs"]
        self._metrics_of_job = dict(state_dict["metrics_of_job"])
        self.queue.load_state_dict(state_dict["queue"])
        self.collector.load_state_dict(state_dict["collector"])
        held = self.queue.holds_more or bool(self.collector.open_groups)
        if self._dealing.temperature != self.sampling.temperature and held:
            raise InputError(
                f"data.sampling.temperature is {self.sampling.temperature}, but the checkpoint holds groups that were "
                f"sampled at {self._dealing.temperature} and are yet to be trained on: their ratios would be wrong; go "
                "on with the same temperature"
            )
        self._restored = self._phase >= 0

    # --- end ----------------------------------------------------------------------------------------------------------

    def on_exception(self, exception: BaseException) -> None:
        """Stop the background rollout, since nothing will be trained on it."""
        self._stop_job()

    def teardown(self, stage: str) -> None:
        """Stop the background rollout and the reward's worker processes."""
        self._stop_job()
        super().teardown(stage)

    def _stop_job(self) -> None:
        job, self._job = self._job, None
        if job is not None:
            self.engine.cancelled.set()
            if not job.wait(SECONDS_TO_STOP):
                log.warning("the background rollout did not stop within %.0f s; it is left behind", SECONDS_TO_STOP)
