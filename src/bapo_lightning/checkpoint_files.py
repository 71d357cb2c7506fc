"""How a checkpoint lies on disk: weights and loops in one file, the data state beside it, an earlier pair behind."""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO
from torch import Tensor

from bapo_lightning.errors import InputError

LAST, PREVIOUS = "last.ckpt", "previous.ckpt"
DATA_KEY = "ReplayDataModule"
"""Where Lightning puts the state of the DataModule: the class's name."""
_DATA_FILES = "data-*.safetensors"
_UNFINISHED = ".unfinished-"


class RunCheckpointIO(TorchCheckpointIO):
    """Writes checkpoints so that a process killed at any moment leaves a whole one.

    The data state (buffer, responses under way) goes into a safetensors file beside the checkpoint, named by its
    content, so that it is written once however many checkpoints of a phase share it. The checkpoint holds its name,
    size and hash. Both are written under another name, flushed to disk and renamed, the data first. The ``last.ckpt``
    that a new one replaces stays as ``previous.ckpt``.

    Addresses with a scheme (``s3://…``) and checkpoints without data state are left to Lightning.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        """Write a checkpoint and its data file; see the class.

        Raises:
            InputError: The disk is full or cannot be written to; the earlier checkpoints are whole.
        """
        if "://" in str(path) or DATA_KEY not in checkpoint:
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        target = Path(path)
        tensors: dict[str, Tensor] = {}
        skeleton = _take_out(checkpoint[DATA_KEY], "data", tensors)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            manifest = _write_data(target.parent, tensors)
            beside = {"file": manifest, "state": skeleton}
            _write(target, lambda file: torch.save({**checkpoint, DATA_KEY: beside}, file), keep_previous=True)
        except (OSError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and "PytorchStreamWriter" not in str(error):
                raise
            raise InputError(
                f"the checkpoint {target} cannot be written: {error}. The earlier checkpoints beside it are whole; "
                "make room and go on with --ckpt_path last"
            ) from error
        _remove_unused(target.parent)

    def load_checkpoint(self, path: Any, map_location: Any = "cpu", weights_only: bool | None = None) -> dict[str, Any]:
        """Read a checkpoint and its data file.

        Raises:
            InputError: The data file is missing or is not the one that was written.
        """
        checkpoint: dict[str, Any] = super().load_checkpoint(path, map_location, weights_only)
        if is_beside(checkpoint.get(DATA_KEY)):
            beside = checkpoint[DATA_KEY]
            checkpoint[DATA_KEY] = _put_back(beside["state"], _read_data(Path(path), beside["file"]))
        return checkpoint

    def remove_checkpoint(self, path: Any) -> None:
        """Remove a checkpoint, and its data file where no other checkpoint needs it."""
        super().remove_checkpoint(path)
        if "://" not in str(path):
            _remove_unused(Path(path).parent)


def check_data_file(path: Path, checkpoint: dict[str, Any]) -> None:
    """Make sure that the data file of a checkpoint is there and whole.

    Args:
        path: The checkpoint.
        checkpoint: What it holds.

    Raises:
        InputError: It is not.
    """
    if is_beside(checkpoint.get(DATA_KEY)):
        _read_bytes(path, checkpoint[DATA_KEY]["file"])


def is_beside(state: Any) -> bool:
    """Whether a data state is not there but in a file beside its checkpoint."""
    return isinstance(state, dict) and state.keys() == {"file", "state"}


def _take_out(value: Any, place: str, tensors: dict[str, Tensor]) -> Any:
    """Replace tensors, and lists of texts or records, by the names under which they go into the data file."""
    if isinstance(value, Tensor):
        tensors[place] = value.detach().cpu().contiguous()
        return {"__tensor__": place}
    if isinstance(value, list) and value and all(isinstance(item, str | dict) for item in value):
        text = json.dumps(value).encode()
        tensors[place] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        return {"__json__": place}
    if isinstance(value, dict):
        return {key: _take_out(item, f"{place}.{key}", tensors) for key, item in value.items()}
    return value


def _put_back(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Undo `_take_out`."""
    if not isinstance(value, dict):
        return value
    if value.keys() == {"__tensor__"}:
        return tensors[value["__tensor__"]]
    if value.keys() == {"__json__"}:
        return json.loads(tensors[value["__json__"]].numpy().tobytes())
    return {key: _put_back(item, tensors) for key, item in value.items()}


def _write_data(folder: Path, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Write the data file, unless one of the same content is there; its name, size and hash."""
    from safetensors.torch import save

    content = save(tensors)
    sha256 = hashlib.sha256(content).hexdigest()
    target = folder / f"data-{sha256[:16]}.safetensors"
    if not target.exists() or target.stat().st_size != len(content):
        _write(target, lambda file: file.write(content))
    return {"name": target.name, "sha256": sha256, "bytes": len(content)}


def _read_data(checkpoint: Path, manifest: dict[str, Any]) -> dict[str, Tensor]:
    from safetensors.torch import load

    return load(_read_bytes(checkpoint, manifest))


def _read_bytes(checkpoint: Path, manifest: dict[str, Any]) -> bytes:
    path = checkpoint.parent / manifest["name"]
    try:
        content: bytes = path.read_bytes()
    except OSError as error:
        raise InputError(
            f"the data file {path} of the checkpoint {checkpoint} cannot be read: {error.strerror or error}; copy and "
            "move the two together"
        ) from error
    if len(content) != manifest["bytes"] or hashlib.sha256(content).hexdigest() != manifest["sha256"]:
        raise InputError(
            f"the data file {path} of the checkpoint {checkpoint} is damaged: it has {len(content)} bytes of "
            f"{manifest['bytes']}, and its content is not what was written"
        )
    return content


def _write(target: Path, write: Callable[[Any], Any], *, keep_previous: bool = False) -> None:
    """Write a file in one step: there is the old one or the new one at any time, also after a power cut."""
    unfinished = target.with_name(f"{_UNFINISHED}{os.getpid()}-{target.name}")
    try:
        with unfinished.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        if keep_previous and target.name == LAST and target.exists():
            _keep_as_previous(target)
        unfinished.replace(target)
        _sync_folder(target.parent)
    finally:
        unfinished.unlink(missing_ok=True)


def _keep_as_previous(last: Path) -> None:
    """Give ``last.ckpt`` its second name, in one step."""
    link = last.with_name(f"{_UNFINISHED}{PREVIOUS}")
    link.unlink(missing_ok=True)
    try:
        link.hardlink_to(last)
    except OSError:
        # A file system without links: there is no last checkpoint for a moment, but always the previous one.
        last.replace(last.with_name(PREVIOUS))
        return
    link.replace(last.with_name(PREVIOUS))


def _remove_unused(folder: Path) -> None:
    """Remove data files that no checkpoint of the folder names; in doubt nothing is removed."""
    used = set()
    for path in folder.glob("*.ckpt"):
        if path.is_dir() or path.name.startswith(_UNFINISHED):
            continue
        try:
            state = torch.load(path, map_location="cpu", mmap=True, weights_only=True).get(DATA_KEY)
        except Exception:  # noqa: BLE001 - whatever it is, it may need any of them
            return
        if is_beside(state):
            used.add(state["file"]["name"])
    for path in folder.glob(_DATA_FILES):
        if path.name not in used:
            path.unlink(missing_ok=True)
    for path in folder.glob(f"{_UNFINISHED}*"):
        # Of a process that was killed while it wrote: a run is the only writer of its folder.
        path.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
