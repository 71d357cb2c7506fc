"""A progress bar that counts phases and updates."""

from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import TQDMProgressBar


class PhaseProgressBar(TQDMProgressBar):
    """Says phase, update, reward and entropy."""

    def on_train_epoch_start(self, trainer: Trainer, *args: Any) -> None:
        """Name the phase."""
        super().on_train_epoch_start(trainer, *args)
        last = trainer.max_epochs
        total = f"/{last}" if last is not None and last > 0 else ""
        self.train_progress_bar.set_description(f"Phase {trainer.current_epoch + 1}{total}")

    def get_metrics(
        self, trainer: Trainer, pl_module: LightningModule
    ) -> dict[str, int | str | float | dict[str, float]]:
        """Show the update beside reward and entropy, and leave the run's version out."""
        metrics = super().get_metrics(trainer, pl_module)
        metrics.pop("v_num", None)
        return {"update": trainer.global_step, **metrics}
