"""Prompts from the Hugging Face Hub."""

from collections.abc import Iterator, Mapping
from typing import Any

from bapo_lightning.errors import InputError
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
        try:
            from datasets import load_dataset
            from datasets.exceptions import DatasetsError
        except ImportError as error:
            raise InputError("data sets from the hub need datasets: pip install 'bapo-lightning[data]'") from error
        name = f"{self.repo}[{self.split}]"
        try:
            data = load_dataset(self.repo, self.config, split=self.split, revision=self.revision)
        except (OSError, ValueError, DatasetsError) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise InputError(f"data.task.repo: cannot load {name}: {reason}") from error
        if len(data) == 0:
            raise InputError(f"data.task.repo: {name} has no rows")
        for number, row in enumerate(data):
            yield f"{name}, row {number}", f"{self.repo.rstrip('/').rpartition('/')[2]}/{number}", row
