"""What a module does besides training: it answers benchmark problems and prompts."""

from typing import TYPE_CHECKING

from lightning.pytorch import LightningModule

from bapo_lightning.types import RolloutPhase, Sealed, Trajectory

if TYPE_CHECKING:
    from bapo_lightning.answering import Answer, AnswerRequest
    from bapo_lightning.datamodule import ReplayDataModule


class AnsweringModule(LightningModule):
    """Validation, test and prediction: the DataModule's engine answers with the weights of the moment."""

    @property
    def data(self) -> "ReplayDataModule":
        """The DataModule of the run: it owns engine and reward."""
        datamodule: ReplayDataModule = self.trainer.datamodule  # type: ignore[attr-defined]
        return datamodule

    def on_validation_start(self) -> None:
        """Evaluate the weights of the moment."""
        self.data.sync_engine()

    def validation_step(
        self, batch: "list[AnswerRequest]", batch_idx: int, dataloader_idx: int = 0
    ) -> "dict[str, list[Answer]]":
        """Answer benchmark problems; `AIMEEvaluation` turns the answers into scores."""
        return {"answers": self.data.answer(batch)}

    def on_test_start(self) -> None:
        """Evaluate the weights of the moment."""
        self.data.sync_engine()

    def test_step(
        self, batch: "list[AnswerRequest]", batch_idx: int, dataloader_idx: int = 0
    ) -> "dict[str, list[Answer]]":
        """The same as validation."""
        return self.validation_step(batch, batch_idx, dataloader_idx)

    def on_predict_start(self) -> None:
        """Predict with the weights of the moment."""
        self.data.sync_engine()

    def predict_step(
        self, batch: "list[AnswerRequest] | RolloutPhase", batch_idx: int
    ) -> "Sealed[list[Answer]] | Sealed[list[Trajectory]]":
        """Answer prompts of the task, or sample a rollout phase; sealed, since Lightning would walk through records."""
        if isinstance(batch, RolloutPhase):
            return Sealed(self.data.roll_out_to_keep())
        return Sealed(self.data.answer(batch))
