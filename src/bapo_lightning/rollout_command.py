"""`bapo rollout`: training rollouts with fixed weights, written to files that `bapo replay` trains on."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from bapo_lightning.datamodule import ReplayDataModule
from bapo_lightning.errors import InputError
from bapo_lightning.module import PolicyModule
from bapo_lightning.replay import write_rollouts
from bapo_lightning.types import Trajectory


class RolloutTrainer(Trainer):
    """A Trainer with one command more."""

    def rollout(
        self,
        model: PolicyModule,
        datamodule: ReplayDataModule,
        out: str,
        phases: int = 1,
        ckpt_path: str | None = None,
        weights_only: bool | None = None,
    ) -> None:
        """Sample training rollouts with fixed weights and write them to files.

        Args:
            model: The module whose policy samples.
            datamodule: Prompts, engine and reward.
            out: Folder for the files, one a phase; new or empty.
            phases: Rollout phases of ``data.groups_per_phase`` groups, ≥ 1.
            ckpt_path: Sample with the weights of this checkpoint.
            weights_only: As in the other commands.

        Raises:
            InputError: The folder is in use, or a setting does not apply.
        """
        if phases < 1:
            raise InputError(f"phases must be at least 1, got {phases}")
        if datamodule.frozen is not None:
            raise InputError("data.rollouts are sampled already; leave it out to sample new ones")
        if datamodule.rollout.token_budget is not None:
            raise InputError(
                "data.rollout.token_budget cuts responses over phases, but here all are sampled with the same weights; "
                "leave it out"
            )
        writer = RolloutWriter(Path(out))
        self.callbacks.append(writer)  # type: ignore[attr-defined]
        datamodule.phases_to_roll_out = phases
        self.predict(
            model, datamodule=datamodule, ckpt_path=ckpt_path, weights_only=weights_only, return_predictions=False
        )
        if self.is_global_zero:
            print(writer.summary(), flush=True)


class RolloutWriter(Callback):
    """Writes the groups of each phase to a file of their own as soon as they are scored.

    Args:
        folder: New or empty.

    Raises:
        InputError: It is neither, or cannot be written to.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            in_use = any(self.folder.iterdir())
        except OSError as error:
            raise InputError(f"out: cannot write to {self.folder}: {error.strerror or error}") from error
        if in_use:
            raise InputError(f"out: {self.folder} is not empty; give a new folder, so that no rollouts are mixed")
        self._statuses: Counter[str] = Counter()
        self._tokens = 0
        self._groups = 0

    def on_predict_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int, *args: Any
    ) -> None:
        """Write one phase, on rank 0."""
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        trajectories = list(_from_version_0(outputs.content))
        self._statuses.update(t.reward_status for t in trajectories)
        self._tokens += sum(len(t.completion.token_ids) for t in trajectories)
        self._groups += len({t.group_id for t in trajectories})
        if trainer.is_global_zero:
            write_rollouts(
                self.folder / f"phase_{batch.number:05d}.parquet",
                trajectories,
                temperature=data.sampling.temperature,
                max_new_tokens=data.sampling.max_new_tokens,
            )

    def summary(self) -> str:
        """What was written, in two lines."""
        responses = sum(self._statuses.values())
        statuses = ", ".join(f"{status} {count}" for status, count in self._statuses.most_common())
        return (
            f"{self._groups} groups, {responses} responses, {self._tokens / max(responses, 1):.1f} tokens on average "
            f"({statuses})\nrollouts: {self.folder}"
        )


def _from_version_0(trajectories: list[Trajectory]) -> Iterator[Trajectory]:
    """Count versions from the weights that sampled: a replay starts from them, at version 0."""
    for t in trajectories:
        versions = (0,) * len(t.completion.policy_versions)
        yield replace(t, sampled_version=0, completion=replace(t.completion, policy_versions=versions))
