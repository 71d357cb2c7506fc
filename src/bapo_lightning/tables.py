"""Rows of Parquet files and of data sets on the Hugging Face Hub, each with the place it stands at."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bapo_lightning.errors import InputError


def read_parquet(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Read a Parquet file row by row.

    Args:
        path: The file.

    Yields:
        Where a row stands, for messages (rows are numbered from 0), and the row.

    Raises:
        InputError: pyarrow is missing, or the file is missing, empty or no Parquet.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise InputError("Parquet files need pyarrow: pip install 'bapo-lightning[data]'") from error
    if not path.is_file():
        raise InputError(f"{path} does not exist")
    try:
        table = parquet.read_table(path)
    except (OSError, pyarrow.ArrowException) as error:
        raise InputError(f"{path} cannot be read as Parquet: {str(error).splitlines()[0]}") from error
    if table.num_rows == 0:
        raise InputError(f"{path} has no rows")
    rows = (row for batch in table.to_batches() for row in batch.to_pylist())
    for number, row in enumerate(rows):
        yield f"{path}, row {number}", row


def read_hub(
    repo: str, split: str, config: str | None = None, revision: str | None = None
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Read a data set that ``datasets.load_dataset`` opens.

    Args:
        repo: Hub id, or a local folder of data files.
        split: Name of the split.
        config: Name of the configuration, where it has several.
        revision: Branch, tag or commit.

    Yields:
        Where a row stands, for messages (rows are numbered from 0), and the row.

    Raises:
        InputError: datasets is missing, or the data set cannot be opened or is empty.
    """
    try:
        from datasets import load_dataset
        from datasets.exceptions import DatasetsError
    except ImportError as error:
        raise InputError("data sets from the hub need datasets: pip install 'bapo-lightning[data]'") from error
    name = f"{repo}[{split}]"
    try:
        data = load_dataset(repo, config, split=split, revision=revision)
    except (OSError, ValueError, DatasetsError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(f"cannot load {name}: {reason}") from error
    if len(data) == 0:
        raise InputError(f"{name} has no rows")
    for number, row in enumerate(data):
        yield f"{name}, row {number}", row
