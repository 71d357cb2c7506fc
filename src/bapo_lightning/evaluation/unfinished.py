"""Answers of an evaluation that is under way, on disk, so that one that was stopped goes on where it was."""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from bapo_lightning.errors import InputError

_log = logging.getLogger(__name__)


class UnfinishedAnswers:
    """One folder with a JSON Lines file a rank.

    The folder's name is a hash of all that decides an answer: an evaluation with other weights, another prompt or
    another seed finds nothing there. Ranks may be more or fewer when it goes on.

    Args:
        root: Folder of all evaluations under way.
        identity: Plain values that decide the answers.
    """

    def __init__(self, root: Path, identity: dict[str, Any]) -> None:
        text = json.dumps(identity, sort_keys=True, default=str)
        self.folder = root / hashlib.sha256(text.encode()).hexdigest()[:16]

    def load(self) -> list[dict[str, Any]]:
        """The records kept so far, of all ranks, without a line that a kill cut off: its answer is sampled again."""
        return [record for file in sorted(self.folder.glob("rank_*.jsonl")) for record in _records(file)]

    def append(self, records: Iterable[dict[str, Any]], rank: int) -> None:
        """Add records of one rank.

        Raises:
            InputError: They cannot be written.
        """
        lines = "".join(json.dumps(record) + "\n" for record in records)
        path = self.folder / f"rank_{rank:05d}.jsonl"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with path.open("ab") as file:
                # What a kill cut off must not swallow the first line that follows.
                file.write((b"\n" if file.tell() and not _ends_with_newline(path) else b"") + lines.encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise InputError(f"{path} cannot be written: {error.strerror}") from error

    def remove(self) -> None:
        """Forget all records: the evaluation is done."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.folder.parent.is_dir() and not any(self.folder.parent.iterdir()):
            self.folder.parent.rmdir()


def _records(path: Path) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            record = json.loads(line)
        except ValueError:
            if line.strip():
                _log.warning("%s:%d was cut off; that answer is sampled again", path, number)
            continue
        yield record


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
