"""All answers of a finished benchmark, as JSON lines to read and as a Parquet table to analyse."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

from bapo_lightning.answering import Answer
from bapo_lightning.errors import InputError


def write_answers(folder: Path, name: str, answers: Sequence[Answer]) -> None:
    """Write ``name.jsonl`` and ``name.parquet`` with one row an answer, each in one step.

    The columns are described in docs/evaluation.md.

    Args:
        folder: Made if missing.
        name: File name without its ending.
        answers: In any order; written by problem and sample.

    Raises:
        InputError: A file cannot be written.
    """
    import pyarrow
    from pyarrow import parquet

    rows = [answer.as_record() for answer in answers]
    texts, whole = pyarrow.string(), pyarrow.int64()
    schema = pyarrow.schema(
        {
            "prompt_id": texts,
            "sample": whole,
            "response": texts,
            "extracted": texts,
            "answer": texts,
            "status": texts,
            "length": whole,
            "finish_reason": texts,
        }
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        unfinished = folder / f".{name}"
        unfinished.write_text(lines, encoding="utf-8", errors="replace")
        os.replace(unfinished, folder / f"{name}.jsonl")
        table = pyarrow.Table.from_pylist([{k: _storable(v) for k, v in row.items()} for row in rows], schema=schema)
        parquet.write_table(table, unfinished)
        os.replace(unfinished, folder / f"{name}.parquet")
    except OSError as error:
        raise InputError(f"answers cannot be written to {folder}: {error.strerror or error}") from error


def _storable(value: object) -> object:
    """Half a surrogate pair, which UTF-8 cannot hold, becomes a question mark."""
    return value.encode("utf-8", "replace").decode("utf-8") if isinstance(value, str) else value
