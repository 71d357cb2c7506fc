"""Prompts from files: JSON Lines and Parquet."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bapo_lightning.records import read_jsonl
from bapo_lightning.tables import read_parquet
from bapo_lightning.tasks.rows import RowPrompts


class JSONLPrompts(RowPrompts):
    """Prompts from a file with one JSON object a line.

    Args:
        path: UTF-8 file; blank lines are skipped.
        **kwargs: See `RowPrompts`.

    Raises:
        InputError: See `RowPrompts`; on loading: the file is missing, empty or broken, with file and line.
    """

    def __init__(self, path: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.path = Path(path)

    def rows(self) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
        """Lines of the file, numbered from 1."""
        for line, row in read_jsonl(self.path):
            yield f"{self.path}:{line}", f"{self.path.stem}/{line}", row


class ParquetPrompts(RowPrompts):
    """Prompts from a Parquet file.

    Args:
        path: The file.
        **kwargs: See `RowPrompts`.

    Raises:
        InputError: See `RowPrompts`; on loading: the file is missing, empty or no Parquet, with file and row.
    """

    def __init__(self, path: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.path = Path(path)

    def rows(self) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
        """Rows of the file, numbered from 0."""
        for number, (where, row) in enumerate(read_parquet(self.path)):
            yield where, f"{self.path.stem}/{number}", row
