"""The newest checkpoint of a run, always loadable."""

from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from bapo_lightning.errors import InputError


class NewestCheckpoint(ModelCheckpoint):
    """Keeps ``last.ckpt`` up to date: after every rollout phase, and where asked after every few updates.

    It is replaced in one step, and the one before it stays as ``previous.ckpt``. Every run has this callback; list it
    to change its settings. Checkpoints that are kept for longer are a `ModelCheckpoint` beside it.

    Args:
        every_n_updates: Also write one after so many updates, ≥ 1; None only after phases.

    Raises:
        InputError: ``every_n_updates`` is less than 1.
    """

    def __init__(self, every_n_updates: int | None = None) -> None:
        if every_n_updates is not None and every_n_updates < 1:
            raise InputError(f"every_n_updates must be at least 1 or null, got {every_n_updates}")
        super().__init__(save_last=True, save_top_k=0, save_on_train_epoch_end=True, enable_version_counter=False)
        self.every_n_updates = every_n_updates

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Write one if it is time."""
        if self.every_n_updates is not None and trainer.global_step % self.every_n_updates == 0:
            self._save(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write one after a phase; Lightning's own callback would not, as it keeps no other checkpoint then."""
        self._save(trainer)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Have the curves on disk before a checkpoint, of whichever callback: a killed run goes on behind it."""
        for logger in trainer.loggers:
            logger.save()

    def _save(self, trainer: Trainer) -> None:
        if not self._should_skip_saving_checkpoint(trainer):
            self._save_last_checkpoint(trainer, {})
