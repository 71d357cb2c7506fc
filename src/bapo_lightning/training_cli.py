"""`bapo fit|validate|test|predict`: LightningCLI with this project's defaults, rules and messages."""

import logging
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonargparse
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint, ProgressBar
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.plugins.io import CheckpointIO

# Importing a room registers its classes, so that YAML and flags may name them without their module.
from bapo_lightning import advantages, clipping, rollout, tasks  # noqa: F401
from bapo_lightning.callbacks import (
    AIMEEvaluation,
    EntropyClipMonitor,
    GracefulStop,
    NewestCheckpoint,
    PhaseProgressBar,
    PredictionWriter,
    RunSummary,
    SampleWriter,
)
from bapo_lightning.callbacks.graceful_stop import RunStopped
from bapo_lightning.callbacks.saved_config import SavedConfig
from bapo_lightning.checkpoint_files import RunCheckpointIO
from bapo_lightning.config_rules import (
    ConfigParser,
    check_config_files,
    forget_arguments_of_replaced_classes,
    name_key,
)
from bapo_lightning.datamodule import ReplayDataModule
from bapo_lightning.errors import InputError, input_error_behind
from bapo_lightning.module import PolicyModule
from bapo_lightning.rollout_command import RolloutTrainer
from bapo_lightning.runs import RunFolder, inspect_checkpoint

TRAINER_DEFAULTS: dict[str, Any] = {
    # One Lightning epoch is one rollout phase.
    "reload_dataloaders_every_n_epochs": 1,
    # Ranks share out whole groups themselves.
    "use_distributed_sampler": False,
    # Otherwise a whole benchmark would run before the first update.
    "num_sanity_val_steps": 0,
    "log_every_n_steps": 1,
    "logger": {
        "class_path": "lightning.pytorch.loggers.TensorBoardLogger",
        "init_args": {"save_dir": "runs", "name": "bapo", "default_hp_metric": False},
    },
}


class BapoCLI(LightningCLI):
    """Adds the links, checks and permanent callbacks of a run."""

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """Lightning's commands, and `bapo rollout`."""
        return {**LightningCLI.subcommands(), "rollout": {"model", "datamodule"}}

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """One seed for everything."""
        parser.link_arguments("seed_everything", "data.seed", compute_fn=int)

    def _parse_ckpt_path(self) -> None:
        """A checkpoint's hyper-parameters never override what was typed: what you type is what runs."""

    def before_instantiate_classes(self) -> None:
        """Find the checkpoint to go on from, and check it, before anything is built."""
        self._first_new_update: int | None = None
        settings = self.config[self.subcommand]
        if self.subcommand == "rollout":
            # What it leaves behind lies in its own folder.
            settings.trainer.logger = False
        logger = settings.trainer.logger
        self.run_folder = RunFolder.from_logger_settings(logger) if logger else None
        if settings.get("weights_only") is None:
            # A checkpoint is data here; one that would run code is refused.
            settings.weights_only = True
        path = settings.get("ckpt_path")
        if path == "last":
            if self.run_folder is None:
                raise InputError(
                    "ckpt_path=last needs a logger with save_dir and name; give the path of the checkpoint"
                )
            version, last, updates = self.run_folder.find_last()
            settings.ckpt_path = str(last)
            # Going on in the same folder keeps the curves of a run in one place.
            logger.init_args.version = version
            self._first_new_update = updates + 1
        elif path is not None:
            inspect_checkpoint(Path(path))

    def instantiate_classes(self) -> None:
        """Build everything; a class that refuses an argument is named by its key."""
        try:
            super().instantiate_classes()
        except ValueError as error:
            mistake = input_error_behind(error)
            if mistake is None:
                raise
            raise InputError(name_key(str(mistake), error)) from error

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Build the Trainer with the permanent callbacks that the config does not already list."""
        trainer_settings = self._get(self.config_init, "trainer")
        if trainer_settings.get("precision") == "16-mixed":
            raise InputError("trainer.precision=16-mixed scales the gradients that we clip; use bf16-mixed")
        if str(trainer_settings.get("strategy")).startswith("fsdp") and "fsdp2" not in str(trainer_settings.strategy):
            raise InputError(
                "trainer.strategy=fsdp (FSDP1) cannot do manual optimisation; use ddp, or fsdp2 when released"
            )
        listed = trainer_settings.get("callbacks") or []
        listed = listed if isinstance(listed, list) else [listed]
        permanent = [c for c in self._permanent_callbacks() if not any(isinstance(o, type(c)) for o in listed)]
        if any(isinstance(o, ProgressBar) for o in listed) or trainer_settings.get("enable_progress_bar") is False:
            permanent = [c for c in permanent if not isinstance(c, ProgressBar)]
        newest_is_kept = any(isinstance(o, ModelCheckpoint) and o.save_last for o in listed)
        if newest_is_kept or trainer_settings.get("enable_checkpointing") is False:
            permanent = [c for c in permanent if not isinstance(c, NewestCheckpoint)]
        plugins = trainer_settings.get("plugins") or []
        plugins = plugins if isinstance(plugins, list) else [plugins]
        own_io = getattr(trainer_settings.get("strategy"), "_checkpoint_io", None)
        if own_io is None and not any(isinstance(plugin, CheckpointIO) for plugin in plugins):
            plugins = [*plugins, RunCheckpointIO()]
        trainer = super().instantiate_trainer(**kwargs, callbacks=[*listed, *permanent], plugins=plugins)
        for logger in trainer.loggers:
            if isinstance(logger, TensorBoardLogger):
                if self.subcommand == "fit" and self._first_new_update is not None:
                    # Points that were logged after the checkpoint are about to be logged again.
                    logger._kwargs["purge_step"] = self._first_new_update
                RunFolder.require_writable(Path(logger.log_dir))
        if self.subcommand in ("validate", "test") and not any(isinstance(c, AIMEEvaluation) for c in listed):
            raise InputError(
                f"bapo {self.subcommand} needs a benchmark: list the AIMEEvaluation callback under trainer.callbacks "
                "(configs/evaluation/aime24.yaml shows how)"
            )
        return trainer

    def after_rollout(self) -> None:
        """The config beside the rollouts, which reruns as is."""
        if self.trainer.is_global_zero:
            text = self._parser("rollout").dump(self.config["rollout"], skip_none=False)
            (Path(self.config["rollout"].out) / "config.yaml").write_text(text, encoding="utf-8")

    def _permanent_callbacks(self) -> list[Callback]:
        always: list[Callback] = [PhaseProgressBar()]
        if self.subcommand == "predict":
            return [*always, PredictionWriter()]
        if self.subcommand != "fit":
            return always
        return [
            *always,
            EntropyClipMonitor(),
            SampleWriter(),
            RunSummary(),
            GracefulStop(),
            NewestCheckpoint(),
        ]


def run(arguments: Sequence[str]) -> int:
    """Parse a command and run it.

    Args:
        arguments: What follows ``bapo``.

    Returns:
        The exit code: 0, or 1 when a signal ended the run.

    Raises:
        InputError: The user's input is unusable.
    """
    _quieten()
    if str(Path.cwd()) not in sys.path:
        # A strategy or reward in a file beside the config can then be named by its class path.
        sys.path.append(str(Path.cwd()))
    check_config_files(arguments)
    jsonargparse.set_parsing_settings(
        docstring_parse_attribute_docstrings=True, omegaconf_absolute_to_relative_paths=True
    )
    forget_arguments_of_replaced_classes()
    torch.set_float32_matmul_precision("highest")
    try:
        BapoCLI(
            PolicyModule,
            ReplayDataModule,
            trainer_class=RolloutTrainer,
            args=list(arguments),
            parser_class=ConfigParser,
            parser_kwargs={"prog": "bapo", "parser_mode": "omegaconf+"},
            seed_everything_default=0,
            trainer_defaults=TRAINER_DEFAULTS,
            save_config_callback=SavedConfig,
            auto_configure_optimizers=False,
        )
    except RunStopped as stopped:
        if int(os.environ.get("LOCAL_RANK", "0")) == 0:
            print(
                f"\nstopped; the checkpoint is {stopped}\ngo on with the same command and --ckpt_path last", flush=True
            )
        return 1
    return 0


def _quieten() -> None:
    """Leave out notices that a user can do nothing about."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("JSONARGPARSE_DEPRECATION_WARNINGS", "off")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    for name in (
        "pytorch.utilities.rank_zero",
        "pytorch.trainer.connectors.checkpoint_connector",
        "fabric.utilities.seed",
    ):
        logging.getLogger(f"lightning.{name}").setLevel(logging.WARNING)
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    for message in (
        ".*does not have many workers which may be a bottleneck.*",
        ".*LightningCLI's args parameter is intended.*",
        ".*Checkpoint directory .* exists and is not empty.*",
        ".*is an instance of `nn.Module` and is already saved during checkpointing.*",
        ".*Total length of `list` across ranks is zero.*",
        ".*`isinstance\\(treespec, LeafSpec\\)` is deprecated.*",
        ".*You have overridden `transfer_batch_to_device` in `LightningModule`.*",
        ".*The number of training batches .* is smaller than the logging interval.*",
    ):
        warnings.filterwarnings("ignore", message=message)
