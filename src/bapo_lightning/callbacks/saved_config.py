"""The resolved config of every run, beside its curves; it reruns as is."""

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.cli import SaveConfigCallback
from lightning.pytorch.trainer.states import TrainerFn

from bapo_lightning.callbacks.logging import run_folder, tensorboard_writer


class SavedConfig(SaveConfigCallback):
    """Writes ``config.yaml`` into the run's folder, and as text into TensorBoard.

    Other commands than fit write ``config_validate.yaml`` and so on. A second start in the same folder keeps an
    earlier, different config as ``config_<n>.yaml``.
    """

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Write the file once, on rank 0."""
        folder = run_folder(trainer)
        if self.already_saved or folder is None or not trainer.is_global_zero:
            return
        self.already_saved = True
        text = self.parser.dump(self.config, skip_none=False)
        # The stage is an enum; its value is the command.
        command = TrainerFn(stage).value
        stem = "config" if command == "fit" else f"config_{command}"
        path = folder / f"{stem}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and path.read_text(encoding="utf-8") != text:
            number = 1
            while (earlier := path.with_name(f"{stem}_{number}.yaml")).exists():
                number += 1
            path.replace(earlier)
        path.write_text(text, encoding="utf-8")
        writer = tensorboard_writer(trainer)
        if writer is not None and command == "fit":
            writer.add_text("config", f"```yaml\n{text}\n```", trainer.global_step)
