"""A benchmark: problems with their answers, and how often and how each problem is sampled."""

import hashlib
import json
import logging
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from bapo_lightning.errors import InputError
from bapo_lightning.records import file_sha256, read_field, read_jsonl
from bapo_lightning.tables import read_hub, read_parquet
from bapo_lightning.types import Message, Prompt, SamplingSettings

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BenchmarkData:
    """What a benchmark's table holds."""

    problems: tuple[Prompt, ...]
    """Each problem once, in the order of the table."""

    repeated_rows: int
    """Rows that only repeated a problem seen before, in the whole table."""

    sha256: str
    """Hash of the file's bytes; for a data set from the hub, of all its problems and answers."""


class Benchmark:
    """Problems of a table, each sampled k times.

    A table may hold every problem several times (AIME is often spread that way); repeats are recognised by the
    text of the problem, used once, and reported. It is read at first use.

    Args:
        path: A file with the ending ``.jsonl`` (one problem a line) or ``.parquet``; anything else is a hub id
            (``math-ai/aime25``) or a folder of data files.
        name: Name in metrics and results, ``val/<name>/avg@<k>``; by default the last part of the path, without its
            ending.
        k: Samples per problem, at least 1.
        pass_at: The k of pass@k and pass^k, each 1 … ``k``; by default ``k`` alone.
        temperature: Softmax temperature, >= 0; 0 decodes greedily and allows k = 1 only.
        top_p: Nucleus mass in (0, 1]; 1 samples from the whole distribution.
        top_k: Keep the k most probable tokens; 0 keeps all.
        min_p: Keep tokens with at least this share of the highest probability; 0 keeps all.
        max_new_tokens: Token limit of one response, > 0.
        prompt_field: Field of the problem's text.
        answer_field: Field of the gold answer: a text, a number, or a list holding one of them.
        instruction: Text appended to every problem after a line break; nothing by default.
        system_prompt: A system message put before every problem; none by default.
        as_chat: Present a problem as chat messages; False gives plain text, for models without a chat
            template.
        limit: Use the first so many problems; all by default.
        split: Split of a data set from the hub.
        config: Configuration of a data set from the hub, where it has several.
        revision: Branch, tag or commit of a data set from the hub.

    Raises:
        InputError: A value is out of its range; greedy decoding with k > 1; a split for a file.
    """

    def __init__(
        self,
        path: str,
        name: str | None = None,
        k: int = 16,
        pass_at: list[int] | None = None,
        temperature: float = 0.6,
        top_p: float = 1.0,
        top_k: int = 0,
        min_p: float = 0.0,
        max_new_tokens: int = 8192,
        prompt_field: str = "problem",
        answer_field: str = "answer",
        instruction: str = "",
        system_prompt: str | None = None,
        as_chat: bool = True,
        limit: int | None = None,
        split: str = "test",
        config: str | None = None,
        revision: str | None = None,
    ) -> None:
        self.path = path
        self._kind = {".jsonl": "jsonl", ".parquet": "parquet"}.get(Path(path).suffix, "hub")
        # A hub id may hold dots (``org/model-v1.5``) that begin no ending.
        own_name = Path(path).name if self._kind == "hub" else Path(path).stem
        self.name = own_name if name is None else name
        self.k = k
        self.pass_at = sorted({k} if pass_at is None else set(pass_at))
        self.split = split
        self.config = config
        self.revision = revision
        self.prompt_field = prompt_field
        self.answer_field = answer_field
        self.instruction = instruction
        self.system_prompt = system_prompt
        self.as_chat = as_chat
        self.limit = limit
        if not re.fullmatch(r"[\w.+-]+", self.name):
            raise InputError(f"name of a benchmark: only letters, digits and _ . + - are allowed, got {self.name!r}")
        if k < 1:
            raise InputError(f"benchmark {self.name}: k must be at least 1, got {k}")
        if impossible := [number for number in self.pass_at if not 1 <= number <= k]:
            raise InputError(
                f"benchmark {self.name}: pass_at must lie in 1 … k = {k}, got {impossible[0]}; of {k} samples no more "
                "can be drawn"
            )
        if limit is not None and limit < 1:
            raise InputError(f"benchmark {self.name}: limit must be at least 1, or null for all, got {limit}")
        if system_prompt is not None and not as_chat:
            raise InputError(f"benchmark {self.name}: system_prompt needs as_chat: true")
        try:
            self.sampling = SamplingSettings(max_new_tokens, temperature, top_p, top_k, min_p)
        except InputError as error:
            raise InputError(f"benchmark {self.name}: {error}") from error
        if temperature == 0 and k > 1:
            raise InputError(
                f"benchmark {self.name}: temperature 0 gives {k} times the same response; use k: 1 or a temperature > 0"
            )

    @cached_property
    def data(self) -> BenchmarkData:
        """The table's problems, repeats and hash.

        Raises:
            InputError: The table is missing, empty or broken, lacks a field, or gives a problem two answers;
                the message names the place.
        """
        seen: dict[str, tuple[str, str]] = {}
        problems: list[Prompt] = []
        content = hashlib.sha256()
        num_rows = 0
        for where, row in self._rows():
            num_rows += 1
            text, answer = self._text_of(row, where), self._answer_of(row, where)
            content.update(json.dumps([text, answer]).encode() + b"\n")
            if text not in seen:
                seen[text] = (answer, where)
                problems.append(Prompt(f"{self.name}/{len(problems)}", self._messages(text), answer, source=where))
            elif seen[text][0] != answer:
                raise InputError(
                    f"{where}: repeats the problem of {seen[text][1]} with another answer, {answer!r} instead of "
                    f"{seen[text][0]!r}; one of them is wrong"
                )
        repeated_rows = num_rows - len(problems)
        if repeated_rows:
            _log.warning(
                "%s repeats its problems: %d rows hold %d problems; each is used once and sampled k=%d times",
                *(self.path, num_rows, len(problems), self.k),
            )
        sha256 = content.hexdigest() if self._kind == "hub" else file_sha256(self.path)
        return BenchmarkData(tuple(problems[: self.limit]), repeated_rows, sha256)

    def _rows(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Where a row stands, and the row."""
        if self._kind == "jsonl":
            return ((f"{self.path}:{line}", row) for line, row in read_jsonl(self.path))
        if self._kind == "parquet":
            return read_parquet(Path(self.path))
        return self._hub_rows()

    def _hub_rows(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        try:
            yield from read_hub(self.path, self.split, self.config, self.revision)
        except InputError as error:
            raise InputError(f"benchmark {self.name}: {error}") from error

    def problems(self) -> list[Prompt]:
        """The problems, each once, in the order of the table; see `data` for what is raised."""
        return list(self.data.problems)

    def items(self, rank: int = 0, world_size: int = 1) -> list[tuple[Prompt, int]]:
        """Deal the work to ranks: whole problems in turn, without padding.

        Args:
            rank: This rank, 0 … world_size - 1.
            world_size: Number of ranks.

        Returns:
            (problem, sample index 0 … k-1) of this rank, a problem's samples side by side; empty when there
            are fewer problems than ranks. Together the ranks hold each pair exactly once.
        """
        return [(prompt, index) for prompt in self.data.problems[rank::world_size] for index in range(self.k)]

    def settings(self) -> dict[str, Any]:
        """What decides a score besides the weights and the file, as plain values for a results file."""
        return {
            **vars(self.sampling),
            "k": self.k,
            "pass_at": self.pass_at,
            "prompt_field": self.prompt_field,
            "answer_field": self.answer_field,
            "instruction": self.instruction,
            "system_prompt": self.system_prompt,
            "as_chat": self.as_chat,
            "limit": self.limit,
            **({"split": self.split, "config": self.config, "revision": self.revision} if self._kind == "hub" else {}),
        }

    def _text_of(self, row: Mapping[str, Any], where: str) -> str:
        text = read_field(row, self.prompt_field, where)
        if not isinstance(text, str) or not text.strip():
            raise InputError(f"{where}: field '{self.prompt_field}' must be a non-empty text, got {text!r}")
        return text.strip()

    def _answer_of(self, row: Mapping[str, Any], where: str) -> str:
        value = read_field(row, self.answer_field, where)
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        if isinstance(value, float) and value.is_integer():
            value = int(value)  # tables that once had a gap turn integers into floats
        answer = str(value).strip()
        finite = not isinstance(value, float) or math.isfinite(value)
        if isinstance(value, bool) or not isinstance(value, str | int | float) or not answer or not finite:
            raise InputError(
                f"{where}: field '{self.answer_field}' must be a text, a number, or a list holding "
                f"one of them, got {row[self.answer_field]!r}"
            )
        return answer

    def _messages(self, text: str) -> tuple[Message, ...] | str:
        content = f"{text}\n{self.instruction}" if self.instruction else text
        if not self.as_chat:
            return content
        system = () if self.system_prompt is None else ({"role": "system", "content": self.system_prompt},)
        return (*system, {"role": "user", "content": content})
