"""Ctrl-C and SIGTERM stop a run between two updates, with a checkpoint of the exact state."""

import logging
import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

log = logging.getLogger(__name__)


class RunStopped(Exception):  # noqa: N818 - it is an outcome, not an error of the code
    """A signal ended the run after a complete update; the checkpoint is written."""


class GracefulStop(Callback):
    """On the first SIGINT or SIGTERM the run finishes its update, saves ``last.ckpt`` and ends; on the second, at once.

    A signal during a rollout takes effect after the first update of that phase. With several ranks, one signalled rank
    stops all of them, after the same update.
    """

    def __init__(self) -> None:
        self._signal: int | None = None
        self._previous: dict[int, Any] = {}
        self.stopped_by: int | None = None
        """Number of the signal that ended the run, or None."""

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take over both signals, in place of Lightning's handlers, which stop in the middle of things."""
        if threading.current_thread() is not threading.main_thread():
            return
        self._signal = self.stopped_by = None
        self._previous = {s: signal.signal(s, self._on_signal) for s in (signal.SIGINT, signal.SIGTERM)}

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._signal is not None:
            raise KeyboardInterrupt
        self._signal = number
        log.warning(
            "%s: stopping after the next complete update, with a checkpoint; once more stops at once",
            signal.Signals(number).name,
        )

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save and end the run if a rank was signalled."""
        if not trainer.strategy.reduce_boolean_decision(self._signal is not None, all=False):
            return
        self.stopped_by = self._signal or signal.SIGTERM
        path = last_checkpoint_path(trainer)
        if path is not None:
            trainer.save_checkpoint(path)
        trainer.should_stop = True
        raise RunStopped(str(path))

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Give the signals back."""
        self._restore()

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Give the signals back."""
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}


def last_checkpoint_path(trainer: Trainer) -> Path | None:
    """Where this run keeps ``last.ckpt``: beside its other checkpoints."""
    for callback in trainer.checkpoint_callbacks:
        if isinstance(callback, ModelCheckpoint) and callback.dirpath is not None:
            return Path(callback.dirpath) / f"{callback.CHECKPOINT_NAME_LAST}{callback.FILE_EXTENSION}"
    return None
