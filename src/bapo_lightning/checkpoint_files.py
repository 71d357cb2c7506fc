"""How a checkpoint lies on disk: weights and loops in one file, the data state beside it, an earlier pair behind."""

import hashlib
import json
import os
import zipfile
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
_CHUNK = 2**24


class RunCheckpointIO(TorchCheckpointIO):
    """Writes checkpoints so that a process killed at any moment leaves a whole one.

    The data state (buffer, responses under way) goes into a safetensors file beside the checkpoint, named by its
    content, so that it is written once however many checkpoints of a phase share it. The checkpoint holds its name,
    size and hash. Both are written under another name, flushed to disk and renamed, the data first. The ``last.ckpt``
    that a new one replaces stays as ``previous.ckpt``, unless it is damaged.

    Addresses with a scheme (``s3://…``) and checkpoints without data state are left to Lightning.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        """Write a checkpoint and its data file; see the class.

        Raises:
            InputError: The disk is full or cannot be written to; the earlier checkpoints are whole.
        """
        if "://" in str(path) or DATA_KEY not in checkpoint or storage_options is not None:
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        target = Path(path)
        tensors: dict[str, Tensor] = {}
        skeleton = _take_out(checkpoint[DATA_KEY], "data", tensors)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            manifest = _write_data(target.parent, tensors)
            beside = {"file": manifest, "state": skeleton}
            _write(target, lambda file: torch.save({**checkpoint, DATA_KEY: beside}, file))
        except (OSError, RuntimeError) as error:
            reason = _disk_error(error)
            if reason is None:
                raise
            raise InputError(
                f"the checkpoint {target} cannot be written: {reason}. The earlier checkpoints beside it are as they "
                "were; make room and go on with --ckpt_path last"
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


def check_content(path: Path, checkpoint: dict[str, Any]) -> None:
    """Make sure that every byte of a checkpoint and its data file is the one that was written.

    Args:
        path: The checkpoint, a file that torch could open.
        checkpoint: What it holds.

    Raises:
        InputError: The data file is missing, or a check sum is wrong.
    """
    # torch notices a file that was cut short, but compares no check sums: it would load a page of zeros as weights.
    try:
        with zipfile.ZipFile(path) as archive:
            bad = archive.testzip()
    except (OSError, zipfile.BadZipFile) as error:
        bad = str(error)
    if bad is not None:
        raise InputError(f"ckpt_path: {str(path)!r} is damaged: the check sum of {bad} is wrong")
    if is_beside(checkpoint.get(DATA_KEY)):
        _read_bytes(path, checkpoint[DATA_KEY]["file"])


def is_beside(state: Any) -> bool:
    """Whether a data state is not there but in a file beside its checkpoint."""
    return isinstance(state, dict) and state.keys() == {"file", "state"}


def _take_out(value: Any, place: str, tensors: dict[str, Tensor]) -> Any:
    """Replace tensors, and lists of texts or records, by the names under which they go into the data file."""
    # Numbered, since {"a": {"b": …}} and {"a.b": …} are the same place, as are the keys 1 and "1".
    name = f"{len(tensors):04d}.{place}"
    if isinstance(value, Tensor):
        # A copy, as safetensors refuses tensors that share memory.
        tensors[name] = value.detach().cpu().clone(memory_format=torch.contiguous_format)
        return {"__tensor__": name}
    if isinstance(value, list) and (text := _as_json(value)) is not None:
        tensors[name] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        return {"__json__": name}
    if isinstance(value, dict):
        return {key: _take_out(item, f"{place}.{key}", tensors) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)([_take_out(item, place, tensors) for item in value])
    return value


def _as_json(values: list[Any]) -> bytes | None:
    """A list of texts or records as JSON; None for anything that would not come back as it is."""
    if not values or not all(isinstance(item, str | dict) for item in values):
        return None
    try:
        text = json.dumps(values)
    except (TypeError, ValueError):
        return None
    # Keys that are numbers come back as texts, and tuples as lists.
    return text.encode() if json.loads(text) == values else None


def _put_back(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Undo `_take_out`."""
    if isinstance(value, list | tuple):
        return type(value)([_put_back(item, tensors) for item in value])
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
    if not _holds(target, content):
        _write(target, lambda file: file.write(content))
    return {"name": target.name, "sha256": sha256, "bytes": len(content)}


def _holds(path: Path, content: bytes) -> bool:
    """Whether a file is there and whole; it is read, since a name does not show that a disk has lost a page."""
    if not path.exists() or path.stat().st_size != len(content):
        return False
    with path.open("rb") as file:
        return all(file.read(_CHUNK) == content[i : i + _CHUNK] for i in range(0, len(content), _CHUNK))


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


def _write(target: Path, write: Callable[[Any], Any]) -> None:
    """Write a file in one step: there is the old one or the new one at any time, also after a power cut."""
    unfinished = target.with_name(f"{_UNFINISHED}{os.getpid()}-{target.name}")
    second_name = target.with_name(f"{_UNFINISHED}{os.getpid()}-{PREVIOUS}")
    try:
        with unfinished.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        if target.name == LAST and _seems_whole(target):
            _replace_last(target, unfinished, second_name)
        else:
            unfinished.replace(target)
        _sync_folder(target.parent)
    finally:
        unfinished.unlink(missing_ok=True)
        second_name.unlink(missing_ok=True)


def _replace_last(last: Path, unfinished: Path, second_name: Path) -> None:
    """Put the new checkpoint in the place of the last one, which becomes the previous one."""
    try:
        second_name.unlink(missing_ok=True)
        second_name.hardlink_to(last)
    except OSError:
        # A file system without links: there is no last checkpoint for a moment, but always the previous one.
        last.replace(last.with_name(PREVIOUS))
        unfinished.replace(last)
        return
    # In this order a whole pair is there throughout, whatever state the previous one is in.
    unfinished.replace(last)
    second_name.replace(last.with_name(PREVIOUS))


def _seems_whole(path: Path) -> bool:
    """Whether a checkpoint opens and its data file has the right size: a torn one must not become the previous one."""
    try:
        manifest = _manifest(path)
        return manifest is None or (path.parent / manifest["name"]).stat().st_size == manifest["bytes"]
    except Exception:  # noqa: BLE001 - torch.load raises anything on a torn file
        return False


def _manifest(path: Path) -> dict[str, Any] | None:
    """Name, size and hash of a checkpoint's data file; None for a checkpoint that has none."""
    state = torch.load(path, map_location="cpu", mmap=True, weights_only=True).get(DATA_KEY)
    manifest: dict[str, Any] | None = state["file"] if is_beside(state) else None
    return manifest


def _remove_unused(folder: Path) -> None:
    """Remove unfinished files, and data files that no checkpoint of the folder names; in doubt no data file."""
    for path in folder.glob(f"{_UNFINISHED}*"):
        # Of a process that was killed while it wrote: a run is the only writer of its folder.
        path.unlink(missing_ok=True)
    used = set()
    for path in folder.glob("*.ckpt"):
        if path.is_dir() or path.name.startswith(_UNFINISHED):
            continue
        try:
            manifest = _manifest(path)
        except Exception:  # noqa: BLE001 - whatever it is, it may need any of them
            return
        if manifest is not None:
            used.add(manifest["name"])
    for path in folder.glob(_DATA_FILES):
        if path.name not in used:
            path.unlink(missing_ok=True)


def _disk_error(error: BaseException | None) -> str | None:
    """What the disk said, also where torch, closing its archive, raised an error of its own over it."""
    while error is not None:
        if isinstance(error, OSError):
            return str(error)
        if "PytorchStreamWriter failed" in str(error):
            return str(error).splitlines()[0]
        error = error.__cause__ or error.__context__
    return None


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
