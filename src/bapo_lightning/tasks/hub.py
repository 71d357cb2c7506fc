"""Prompts from the Hugging Face Hub."""

from collections.abc import Iterator, Mapping
from typing import Any

from bapo_lightning.errors import InputError
from bapo_lightning.tables import read_hub
from bapo_lightning.tasks.rows import RowPrompts


class HubPrompts(RowPrompts):
    """Prompts from a data set that ``datasets.load_dataset`` opens: a hub id, or a local folder of data files.

    Args:
        repo: Hub id (``Skywork/Skywork-OR1-RL-Data``) or folder.
        split: Name of the split.
        config: Name of the data set's configuration, where it has several.
        revision: Branch, tag or commit; name a commit to be able to repeat a run.
        **kwargs: See `RowPrompts`.

    Raises:
        InputError: See `RowPrompts`; on loading: the data set cannot be opened or is empty.
    """

    def __init__(
        self, repo: str, split: str = "train", config: str | None = None, revision: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.repo = repo
        self.split = split
        self.config = config
        self.revision = revision

    def rows(self) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
        """Rows of the split, numbered from 0."""
        name = self.repo.rstrip("/").rpartition("/")[2]
        try:
            for number, (where, row) in enumerate(read_hub(self.repo, self.split, self.config, self.revision)):
                yield where, f"{name}/{number}", row
        except InputError as error:
            raise InputError(f"data.task.repo: {error}") from error
