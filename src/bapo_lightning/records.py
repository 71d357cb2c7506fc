"""Reading JSON Lines files: every mistake in them is reported with its file and line."""

import difflib
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bapo_lightning.errors import InputError


def read_jsonl(path: str | Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Read a JSON Lines file row by row. Blank lines are skipped but counted.

    Args:
        path: A UTF-8 file with one JSON object a line.

    Yields:
        The line number, from 1, and the object of that line.

    Raises:
        InputError: The file is missing, unreadable or without rows, or a line is not UTF-8, not JSON or not
            an object; the message names file and line.
    """
    path = Path(path)
    num_rows = 0
    try:
        # Bytes, because text mode would also break lines at a lone carriage return inside a row.
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip() and line.strip() != b"\xef\xbb\xbf":
                    num_rows += 1
                    yield number, _parse(line, f"{path}:{number}")
    except OSError as error:
        raise InputError(_unreadable(path, error)) from error
    if num_rows == 0:
        raise InputError(f"{path} has no rows; expected one JSON object a line")


def read_field(row: Mapping[str, Any], field: str, where: str) -> Any:
    """Look a field up in a row.

    Args:
        row: The row.
        field: Name of the field.
        where: File and line, for the message.

    Returns:
        The value; never None.

    Raises:
        InputError: There is no such field, or it is null; the message names the nearest fields.
    """
    if field not in row:
        near = difflib.get_close_matches(field, [str(name) for name in row], n=1)
        hint = f"did you mean '{near[0]}'? " if near else ""
        raise InputError(f"{where}: no field '{field}'; {hint}the row has {', '.join(map(repr, row)) or 'no fields'}")
    if row[field] is None:
        raise InputError(f"{where}: field '{field}' is null")
    return row[field]


def file_sha256(path: str | Path) -> str:
    """Hash a file's bytes.

    Args:
        path: The file.

    Returns:
        64 hexadecimal digits.

    Raises:
        InputError: The file cannot be read.
    """
    try:
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(_unreadable(Path(path), error)) from error


def _parse(line: bytes, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: not UTF-8 text (byte {error.start + 1} of the line)") from error
    except json.JSONDecodeError as error:
        raise InputError(f"{where}: not valid JSON: {error.msg} at column {error.colno}") from error
    except (ValueError, RecursionError) as error:  # a number of too many digits, or too many nested brackets
        raise InputError(f"{where}: JSON that cannot be read: {error}") from error
    if not isinstance(row, dict):
        raise InputError(f"{where}: expected a JSON object, got {type(row).__name__}")
    return row


def _unreadable(path: Path, error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return f"{path} does not exist"
    return f"{path} cannot be read: {error.strerror or error}"
