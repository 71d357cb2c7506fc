"""From a row of any table to a prompt: which fields hold what, and how a gold answer may be written."""

import ast
import json
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

from bapo_lightning.errors import InputError
from bapo_lightning.records import read_field
from bapo_lightning.tasks.source import PromptSource
from bapo_lightning.types import Message, Prompt


class RowPrompts(PromptSource):
    """Prompts from rows; a subclass says where the rows come from.

    Args:
        prompt_field: Field of the problem: a text, or a list of chat messages with ``role`` and ``content``. A dotted
            path looks inside nested fields: ``reward_model.ground_truth``.
        answer_field: Field of the gold answer: a text, a number, or a list (also written as text, ``["70"]``) of one.
        id_field: Field that names the row; the file's name and the row's number by default.
        instruction: Text put after a problem that is a text, with a line break between.
        system_prompt: A system message put before every problem that does not bring one.
        as_chat: Ask in chat messages; False gives plain text, for models without a chat template.
        limit: Use the first so many rows, ≥ 1; all by default.

    Raises:
        InputError: ``limit`` is below 1, or settings contradict each other.
    """

    def __init__(
        self,
        prompt_field: str = "problem",
        answer_field: str = "answer",
        id_field: str | None = None,
        instruction: str = "",
        system_prompt: str | None = None,
        as_chat: bool = True,
        limit: int | None = None,
    ) -> None:
        if limit is not None and limit < 1:
            raise InputError(f"limit must be at least 1, or null for all rows, got {limit}")
        if system_prompt is not None and not as_chat:
            raise InputError("system_prompt needs as_chat: true")
        self.prompt_field = prompt_field
        self.answer_field = answer_field
        self.id_field = id_field
        self.instruction = instruction
        self.system_prompt = system_prompt
        self.as_chat = as_chat
        self.limit = limit

    @abstractmethod
    def rows(self) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
        """Give the rows in order: where each stands (for messages), its default id, and its fields."""

    def load(self) -> list[Prompt]:
        """Read the rows; see `PromptSource.load`."""
        prompts: list[Prompt] = []
        seen: dict[str, str] = {}
        for where, default_id, row in self.rows():
            prompt_id = default_id if self.id_field is None else str(field_at(row, self.id_field, where))
            if prompt_id in seen:
                raise InputError(f"{where}: id {prompt_id!r} was used by {seen[prompt_id]} already")
            seen[prompt_id] = where
            messages = self._messages(field_at(row, self.prompt_field, where), where)
            answer = gold_text(field_at(row, self.answer_field, where), f"{where}: field '{self.answer_field}'")
            prompts.append(Prompt(prompt_id, messages, answer, source=where))
            if len(prompts) == self.limit:
                break
        return prompts

    def _messages(self, value: Any, where: str) -> tuple[Message, ...] | str:
        key = f"{where}: field '{self.prompt_field}'"
        if isinstance(value, str):
            if not value.strip():
                raise InputError(f"{key} is empty")
            text = f"{value}\n{self.instruction}" if self.instruction else value
            messages: list[Message] = [{"role": "user", "content": text}]
        else:
            messages = _chat_messages(value, key)
            text = "\n".join(message["content"] for message in messages)
        if not self.as_chat:
            return text
        if self.system_prompt is not None and messages[0]["role"] != "system":
            messages.insert(0, {"role": "system", "content": self.system_prompt})
        return tuple(messages)


def field_at(row: Mapping[str, Any], path: str, where: str) -> Any:
    """Look up a field, inside nested fields where the path has dots.

    Raises:
        InputError: There is no such field, or it is null; the message names place, field and the fields there are.
    """
    if path in row:
        return read_field(row, path, where)
    value: Any = row
    parts = path.split(".")
    for depth, part in enumerate(parts):
        if not isinstance(value, Mapping):
            raise InputError(f"{where}: field '{'.'.join(parts[:depth])}' holds no fields, so there is no '{path}'")
        value = read_field(value, part, where)
    return value


def gold_text(value: Any, key: str) -> str:
    """Read a gold answer as text.

    Args:
        value: A text, a number, a list of one of them, or a text that writes such a list.
        key: Place and field, for the message.

    Returns:
        The answer, not empty.

    Raises:
        InputError: There is no answer, or more than one.
    """
    if isinstance(value, str):
        value = _unwrapped_text(value.strip())
    if hasattr(value, "tolist"):  # NumPy arrays and scalars, as Parquet readers give them
        value = value.tolist()
    if isinstance(value, list | tuple):
        if len(value) != 1:
            raise InputError(f"{key} must hold one gold answer, got {len(value)}: {value!r}")
        return gold_text(value[0], key)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, str | int | float) or value != value:
        raise InputError(f"{key} must be a text, a number, or a list of one, got {value!r}")
    if not str(value).strip():
        raise InputError(f"{key} is empty; every prompt needs its gold answer")
    return str(value).strip()


def _unwrapped_text(text: str) -> Any:
    """The list that a text writes, as JSON or as Python does; any other text as it is."""
    if not (text.startswith("[") and text.endswith("]")):
        return text
    for parse in (json.loads, ast.literal_eval):
        try:
            value = parse(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
        # Intervals such as [1, 2] are answers, and so are lists of anything but texts.
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return value
    return text


def _chat_messages(value: Any, key: str) -> list[Message]:
    if hasattr(value, "tolist"):
        value = value.tolist()
    if not isinstance(value, list) or not value:
        raise InputError(f"{key} must be a text or a list of chat messages, got {type(value).__name__}")
    messages: list[Message] = []
    for message in value:
        if not isinstance(message, Mapping) or not {"role", "content"} <= message.keys():
            raise InputError(f"{key}: a chat message needs 'role' and 'content', got {message!r}")
        messages.append({"role": str(message["role"]), "content": str(message["content"])})
    return messages
