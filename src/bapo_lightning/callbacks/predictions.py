"""What `bapo predict` leaves behind: one JSON line a response."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import BasePredictionWriter


class PredictionWriter(BasePredictionWriter):
    """Writes predictions to ``predictions.jsonl`` in the run's folder, one file a rank when there are several."""

    def __init__(self) -> None:
        super().__init__(write_interval="batch")
        self._path = Path("predictions.jsonl")

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Agree on the folder; a collective, so not at every batch, of which ranks may have unequal numbers."""
        folder = Path(trainer.log_dir or trainer.default_root_dir)
        folder.mkdir(parents=True, exist_ok=True)
        suffix = "" if trainer.world_size == 1 else f"_rank{trainer.global_rank}"
        self._path = folder / f"predictions{suffix}.jsonl"

    def write_on_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        prediction: Any,
        batch_indices: Sequence[int] | None,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int,
    ) -> None:
        """Append the answers of one batch."""
        with self._path.open("w" if batch_idx == 0 else "a", encoding="utf-8") as file:
            for answer in prediction.content:
                file.write(json.dumps(answer.as_record(), ensure_ascii=False) + "\n")
        if trainer.is_global_zero and batch_idx == 0:
            print(f"predictions: {self._path}", flush=True)
