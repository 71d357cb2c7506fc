"""Where a run lives, ``runs/<name>/version_<k>/``, and how its newest checkpoint is found and checked."""

import os
import pickle
import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bapo_lightning.checkpoint_files import LAST, PREVIOUS, check_content
from bapo_lightning.errors import InputError

LAST_CHECKPOINT = Path("checkpoints") / LAST


@dataclass(frozen=True)
class RunFolder:
    """The folder of all versions of a named run."""

    path: Path
    """``<save_dir>/<name>``."""

    version: int | str | None
    """The version that the config fixes, or None for the next free one."""

    @classmethod
    def from_logger_settings(cls, settings: Any) -> "RunFolder | None":
        """Read the folder off the config of the logger; None for a logger without folder and name."""
        arguments = settings.get("init_args") if hasattr(settings, "get") else None
        if arguments is None or arguments.get("save_dir") is None or arguments.get("name") is None:
            return None
        return cls(Path(arguments.get("save_dir")) / arguments.get("name"), arguments.get("version"))

    def find_last(self) -> tuple[int | str, Path, int]:
        """The newest checkpoint of the version that the config fixes, else of the newest version that has one.

        Where it is damaged the one before it is taken, and a message says so.

        Returns:
            The version, the checkpoint, and the policy updates behind it.

        Raises:
            InputError: There is none, or none that is whole.
        """
        if self.version is not None:
            name = f"version_{self.version}" if isinstance(self.version, int) else self.version
            candidates = [(self.version, self.path / name / LAST_CHECKPOINT)]
        else:
            versions = [
                int(match.group(1))
                for folder in self.path.glob("version_*")
                if (match := re.fullmatch(r"version_(\d+)", folder.name))
            ]
            candidates = [(v, self.path / f"version_{v}" / LAST_CHECKPOINT) for v in sorted(versions, reverse=True)]
        for version, path in candidates:
            if path.exists() or path.with_name(PREVIOUS).exists():
                found, updates, damage = _newest_whole(path)
                if damage is not None and os.environ.get("LOCAL_RANK", "0") == "0":
                    print(f"bapo: warning: {damage}\ngoing on from {found}, after update {updates}", file=sys.stderr)
                return version, found, updates
        raise InputError(
            f"ckpt_path=last: there is no {LAST_CHECKPOINT} under {self.path}; leave ckpt_path out to start the run, "
            "or give the path of a checkpoint"
        )

    @staticmethod
    def require_writable(folder: Path) -> None:
        """Make sure that a run can write into its folder, before hours are spent.

        Raises:
            InputError: It cannot.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            raise InputError(
                f"trainer.logger: cannot write to the run folder {folder}: {error.strerror}; choose another "
                "trainer.logger.init_args.save_dir"
            ) from error


def _newest_whole(last: Path) -> tuple[Path, int, InputError | None]:
    """The last checkpoint, or the previous one where that is damaged.

    Returns:
        The checkpoint, the updates behind it, and what is wrong with the last one.

    Raises:
        InputError: Neither is whole.
    """
    try:
        return last, _updates_behind(last), None
    except InputError as damage:
        previous = last.with_name(PREVIOUS)
        if not previous.exists():
            raise
        try:
            return previous, _updates_behind(previous), damage
        except InputError as worse:
            raise InputError(f"{damage}. The checkpoint before it cannot be used either: {worse}") from worse


def inspect_checkpoint(path: Path) -> int:
    """Check that a checkpoint is there and whole, its data file too.

    Args:
        path: A file, or the folder of a sharded checkpoint (only its presence is checked).

    Returns:
        Policy updates behind it; 0 for a folder.

    Raises:
        InputError: It is missing, damaged, or not a checkpoint of a training run.
    """
    if path.name != LAST:
        return _updates_behind(path)
    found, updates, damage = _newest_whole(path)
    if damage is not None:
        raise InputError(f"{damage}. The checkpoint before it is whole: {found}, after update {updates}") from damage
    return updates


def _updates_behind(path: Path) -> int:
    if not path.exists():
        raise InputError(f"ckpt_path: there is no checkpoint {str(path)!r}")
    if path.is_dir():
        return 0
    try:
        checkpoint = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except (OSError, RuntimeError, EOFError, ValueError, pickle.UnpicklingError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(f"ckpt_path: {str(path)!r} is damaged or no checkpoint: {reason}") from error
    if not isinstance(checkpoint, dict) or not {"global_step", "state_dict"} <= checkpoint.keys():
        raise InputError(f"ckpt_path: {str(path)!r} is not a checkpoint of a training run")
    check_content(path, checkpoint)
    return int(checkpoint["global_step"])
