"""The table at the end of a run: what changed, how long it took, where to look."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from bapo_lightning.callbacks.logging import run_folder
from bapo_lightning.datamodule import ReplayDataModule
from bapo_lightning.module import PolicyModule


@dataclass(frozen=True)
class _PhaseRow:
    """Means over the updates of one phase, all ranks together."""

    success: float | None
    entropy: float | None
    value_share: float | None
    low: float | None
    high: float | None


_TAGS = {
    "entropy": "policy/entropy",
    "value_share": "balance/value_share",
    "low": "clip/bound_low",
    "high": "clip/bound_high",
}


class RunSummary(Callback):
    """Prints the first and the last phase of this run side by side when it ends. It reads what the monitor logs."""

    def __init__(self) -> None:
        self._started = 0.0
        self._first: _PhaseRow | None = None
        self._last: _PhaseRow | None = None
        self._values: dict[str, list[float]] = {}

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clock."""
        self._started = time.monotonic()
        self._first = self._last = None
        self._values = {}

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Take down what was logged for the update."""
        logged = trainer.callback_metrics
        for name, tag in _TAGS.items():
            if tag in logged:
                self._values.setdefault(name, []).append(float(logged[tag]))

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Average the phase."""
        datamodule = trainer.datamodule  # type: ignore[attr-defined]
        assert isinstance(datamodule, ReplayDataModule)
        means = {name: sum(values) / len(values) for name, values in self._values.items()}
        self._last = _PhaseRow(
            success=datamodule.phase_metrics.get("rollout/success"), **{name: means.get(name) for name in _TAGS}
        )
        self._first = self._first or self._last
        self._values = {}

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print the table on rank 0."""
        if not trainer.is_global_zero:
            return
        if self._first is None or self._last is None:
            print(
                f"no update was made: the run stands at update {trainer.global_step} in phase {trainer.current_epoch}, "
                f"trainer.max_epochs is {trainer.max_epochs} and trainer.max_steps is {trainer.max_steps}",
                flush=True,
            )
        else:
            assert isinstance(pl_module, PolicyModule)
            print(self._render(trainer, type(pl_module.clipping).__name__, self._first, self._last), flush=True)

    def _render(self, trainer: Trainer, strategy: str, first: _PhaseRow, last: _PhaseRow) -> str:
        rows = [
            ("success rate", first.success, last.success),
            ("entropy (nats)", first.entropy, last.entropy),
            ("positive share", first.value_share, last.value_share),
            ("c_low", first.low, last.low),
            ("c_high", first.high, last.high),
        ]
        minutes = (time.monotonic() - self._started) / 60
        lines = ["", f"{strategy}, {trainer.global_step} updates", f"{'':<16}{'first phase':>12}{'last phase':>12}"]
        lines += [f"{name:<16}{_number(before):>12}{_number(after):>12}" for name, before, after in rows]
        lines.append(f"{'minutes':<16}{'':>12}{minutes:>12.1f}")
        folder = run_folder(trainer)
        if folder is not None:
            lines += [
                "",
                f"run:          {folder}",
                f"TensorBoard:  tensorboard --logdir {_root(folder)}",
            ]
        return "\n".join(lines)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _root(folder: Path) -> Path:
    """The folder that holds runs side by side: two above ``runs/<name>/version_<k>``."""
    return folder.parents[1] if len(folder.parents) > 2 else folder
