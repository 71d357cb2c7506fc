"""Rollouts in Parquet files: one row a response, readable with pandas, makeable by anyone.

The columns are described in docs/rollout_files.md.
"""

import difflib
import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from bapo_lightning.errors import InputError
from bapo_lightning.replay.groups import Group, group_trajectories
from bapo_lightning.types import Completion, Prompt, Trajectory

REQUIRED = (
    "group_id",
    "prompt_ids",
    "token_ids",
    "log_probs",
    "policy_versions",
    "reward",
    "temperature",
    "max_new_tokens",
)
OPTIONAL = (
    "sample_index",
    "prompt_id",
    "messages",
    "answer",
    "source",
    "text",
    "reward_status",
    "reward_parts",
    "finish_reason",
    "sampled_version",
)
_LARGEST_POSITIVE_LOG_PROB = 1e-5
"""Rounding may put the log of a probability of 1 a little above 0."""


@dataclass(frozen=True)
class FrozenRollouts:
    """What the files of a folder hold."""

    groups: tuple[Group, ...]
    """In the order of the files, members in order of sample index."""

    temperature: float
    """At which all of them were sampled."""

    max_new_tokens: int
    """Token limit of a response."""

    sha256: str
    """Hash of the files: two with one hash are the same data."""


def write_rollouts(path: Path, trajectories: Iterable[Trajectory], *, temperature: float, max_new_tokens: int) -> None:
    """Write whole groups into one Parquet file, in one step.

    Args:
        path: The file; its folder exists.
        trajectories: Finished, with or without rewards. Advantages are not written: whoever trains on the rewards of
            whole groups computes them.
        temperature: At which they were sampled.
        max_new_tokens: Limit that they were sampled under.

    Raises:
        InputError: pyarrow is missing, or the file cannot be written.
    """
    pyarrow, parquet = _import_pyarrow()
    rows = [_row(t, temperature, max_new_tokens) for group in group_trajectories(trajectories) for t in group]
    log_probs = torch.tensor([p for row in rows for p in row["log_probs"]], dtype=torch.float64)
    exact = torch.equal(log_probs.float().double(), log_probs)
    ids, texts = pyarrow.list_(pyarrow.int32()), pyarrow.string()
    schema = pyarrow.schema(
        {
            "group_id": pyarrow.int64(),
            "sample_index": pyarrow.int32(),
            "prompt_id": texts,
            "prompt_ids": ids,
            "token_ids": ids,
            "log_probs": pyarrow.list_(pyarrow.float32() if exact else pyarrow.float64()),
            "policy_versions": ids,
            "sampled_version": pyarrow.int64(),
            "finish_reason": texts,
            "reward": pyarrow.float64(),
            "reward_status": texts,
            "reward_parts": texts,
            "text": texts,
            "messages": texts,
            "answer": texts,
            "source": texts,
            "temperature": pyarrow.float64(),
            "max_new_tokens": pyarrow.int64(),
        }
    )
    unfinished = path.with_name(f".unfinished-{path.name}")
    try:
        parquet.write_table(pyarrow.Table.from_pylist(rows, schema=schema), unfinished)
        os.replace(unfinished, path)
    except (OSError, TypeError, ValueError, pyarrow.ArrowException) as error:
        raise InputError(f"cannot write rollouts to {path}: {error}") from error
    finally:
        unfinished.unlink(missing_ok=True)


def read_rollouts(path: Path) -> FrozenRollouts:
    """Read a Parquet file, or all of a folder in order of their names.

    Args:
        path: The file or folder.

    Returns:
        Groups, whole, in order of first appearance.

    Raises:
        InputError: A file or row cannot be used; the message names it. Rows are counted from 0 in their file.
    """
    trajectories: list[Trajectory] = []
    places: dict[tuple[int, int], str] = {}
    common: dict[str, tuple[float, str]] = {}
    digest = hashlib.sha256()
    for file in _files(path):
        members: dict[int, int] = {}
        for number, row in enumerate(_rows(file, digest)):
            where = f"{file}, row {number}"
            trajectory = _trajectory(row, where, members, common)
            place = (trajectory.group_id, trajectory.sample_index)
            if place in places:
                raise InputError(f"{where}: sample {place[1]} of group {place[0]} came in {places[place]} already")
            places[place] = where
            trajectories.append(trajectory)
    groups = _whole_groups(trajectories, places)
    return FrozenRollouts(
        groups=tuple(groups),
        temperature=common["temperature"][0],
        max_new_tokens=int(common["max_new_tokens"][0]),
        sha256=digest.hexdigest(),
    )


def _row(t: Trajectory, temperature: float, max_new_tokens: int) -> dict[str, Any]:
    messages = t.prompt.messages
    return {
        "group_id": t.group_id,
        "sample_index": t.sample_index,
        "prompt_id": t.prompt.id,
        "prompt_ids": t.prompt_ids,
        "token_ids": t.completion.token_ids,
        "log_probs": t.completion.log_probs,
        "policy_versions": t.completion.policy_versions,
        "sampled_version": t.sampled_version,
        "finish_reason": t.completion.finish_reason,
        "reward": t.reward,
        "reward_status": t.reward_status,
        "reward_parts": json.dumps(dict(t.reward_parts)),
        # Half a surrogate pair, which UTF-8 cannot hold, becomes a question mark; the ids are what is trained on.
        "text": t.text.encode("utf-8", "replace").decode("utf-8"),
        "messages": json.dumps(messages if isinstance(messages, str) else [dict(m) for m in messages]),
        "answer": t.prompt.answer,
        "source": t.prompt.source,
        "temperature": temperature,
        "max_new_tokens": max_new_tokens,
    }


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        files = sorted(file for file in path.glob("*.parquet") if file.is_file() and not file.name.startswith("."))
        if not files:
            raise InputError(f"data.rollouts: there is no .parquet file in {path}")
        return files
    if not path.is_file():
        raise InputError(f"data.rollouts: {path} does not exist")
    return [path]


def _rows(file: Path, digest: Any) -> list[dict[str, Any]]:
    """The rows of a file, after a look at its columns; its bytes go into the digest."""
    pyarrow, parquet = _import_pyarrow()
    try:
        content = file.read_bytes()
        # Not `read_table`, which would take key=value parts of the path for columns.
        with parquet.ParquetFile(pyarrow.BufferReader(content)) as opened:
            table = opened.read()
        names: list[str] = table.column_names
    except (OSError, ValueError, pyarrow.ArrowException) as error:  # ValueError: names that are not UTF-8
        raise InputError(f"{file} cannot be read as Parquet: {(str(error).splitlines() or [''])[0]}") from error
    digest.update(content)
    for name in REQUIRED:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"; is {near[0]!r} meant?" if near else f"; it has {', '.join(names)}"
            raise InputError(f"{file} has no column {name!r}{hint}")
    if table.num_rows == 0:
        raise InputError(f"{file} has no rows")
    known = [name for name in (*REQUIRED, *OPTIONAL) if name in names]
    columns: list[list[Any]] = []
    for name in known:
        if names.count(name) > 1:
            raise InputError(f"{file} has {names.count(name)} columns {name!r}; one is enough")
        try:
            columns.append(table.column(name).to_pylist())
        except (ValueError, OverflowError, pyarrow.ArrowException) as error:  # text that is not UTF-8, for one
            raise InputError(f"{file}: column {name!r} cannot be read: {error}") from error
    return [dict(zip(known, values, strict=True)) for values in zip(*columns, strict=True)]


def _trajectory(
    row: Mapping[str, Any], where: str, members: dict[int, int], common: dict[str, tuple[float, str]]
) -> Trajectory:
    """Check one row and make a trajectory of it.

    Args:
        row: Column → value.
        where: File and row.
        members: How many rows of each group came before, in this file; changed.
        common: What is equal in all rows, with the row that said it first; changed.
    """
    temperature, limit = _number(row, "temperature", where), _integer(row, "max_new_tokens", where, least=1)
    if not 0.0 < temperature < math.inf:
        raise InputError(f"{where}: temperature must be a finite number > 0, got {temperature}")
    for name, value in (("temperature", temperature), ("max_new_tokens", limit)):
        first, first_row = common.setdefault(name, (value, where))
        if value != first:
            raise InputError(f"{where}: {name} is {value}, but {first} in {first_row}; all rows must have the same")
    group_id = _integer(row, "group_id", where)
    prompt_ids = _integers(row, "prompt_ids", where, "a token id")
    token_ids = _integers(row, "token_ids", where, "a token id")
    versions = _integers(row, "policy_versions", where, "a known version")
    log_probs = _column(row, "log_probs", where)
    for position, value in enumerate(log_probs):
        if not isinstance(value, float | int) or not -math.inf < value <= _LARGEST_POSITIVE_LOG_PROB:
            raise InputError(f"{where}: log_probs[{position}] must be a finite number of nats <= 0, got {value}")
    if not len(token_ids) == len(log_probs) == len(versions):
        raise InputError(
            f"{where}: {len(token_ids)} token_ids, {len(log_probs)} log_probs and {len(versions)} policy_versions; "
            "there must be as many of each"
        )
    if not prompt_ids:
        raise InputError(f"{where}: prompt_ids is empty")
    if len(token_ids) > limit:
        raise InputError(f"{where}: the response has {len(token_ids)} tokens, more than max_new_tokens = {limit}")
    reason: Any = row.get("finish_reason")
    if reason is None:
        reason = "length" if len(token_ids) == limit else "stop"
    if reason not in ("stop", "length"):
        raise InputError(f"{where}: finish_reason must be 'stop' or 'length', got {reason!r}")
    members[group_id] = members.get(group_id, 0) + 1
    reward = row["reward"]
    if reward is not None and not isinstance(reward, float | int):
        raise InputError(f"{where}: reward must be a number, or null where it is missing, got {reward!r}")
    if reward is not None and math.isinf(reward):
        raise InputError(f"{where}: reward must be finite, got {reward}")
    return Trajectory(
        prompt=Prompt(
            id=_text(row, "prompt_id", where, f"group {group_id}"),
            messages=_messages(row, where),
            answer=_text(row, "answer", where),
            source=_text(row, "source", where, where),
        ),
        prompt_ids=prompt_ids,
        completion=Completion(token_ids, tuple(map(float, log_probs)), versions, reason),
        group_id=group_id,
        sample_index=_integer(row, "sample_index", where, least=0, otherwise=members[group_id] - 1),
        sampled_version=_integer(row, "sampled_version", where, least=0, otherwise=min(versions, default=0)),
        text=_text(row, "text", where),
        reward=None if reward is None or math.isnan(reward) else float(reward),
        reward_status=_text(row, "reward_status", where),
        reward_parts=_parts(row, where),
    )


def _whole_groups(trajectories: Sequence[Trajectory], places: Mapping[tuple[int, int], str]) -> list[Group]:
    first: dict[int, Trajectory] = {}
    sizes: dict[int, int] = {}
    for t in trajectories:
        where = places[t.group_id, t.sample_index]
        leader = first.setdefault(t.group_id, t)
        sizes[t.group_id] = sizes.get(t.group_id, 0) + 1
        if t.prompt_ids != leader.prompt_ids:
            raise InputError(
                f"{where}: prompt_ids are not those of {places[leader.group_id, leader.sample_index]}, but both rows "
                f"are of group {t.group_id}"
            )
    for group_id, size in sizes.items():
        if size == 1:
            where = places[group_id, first[group_id].sample_index]
            raise InputError(f"{where}: group {group_id} has this response only; a group of one has no baseline")
    # The prompt of a group is told by its first row.
    return group_trajectories(replace(t, prompt=first[t.group_id].prompt) for t in trajectories)


def _column(row: Mapping[str, Any], name: str, where: str) -> list[Any]:
    value = row[name]
    if value is None:
        raise InputError(f"{where}: {name} is missing")
    if not isinstance(value, list):
        raise InputError(f"{where}: {name} must be a list, got {value!r}")
    return value


def _integers(row: Mapping[str, Any], name: str, where: str, what: str) -> tuple[int, ...]:
    values = _column(row, name, where)
    for position, value in enumerate(values):
        # `type`, as True is an int too; the bound is that of the int32 that checkpoints keep.
        if type(value) is not int or not 0 <= value < 2**31:
            raise InputError(f"{where}: {name}[{position}] must be {what}, an integer >= 0 below 2**31, got {value}")
    return tuple(values)


def _number(row: Mapping[str, Any], name: str, where: str) -> float:
    value = row[name]
    if not isinstance(value, float | int):
        raise InputError(f"{where}: {name} must be a number, got {value!r}")
    return value


def _integer(row: Mapping[str, Any], name: str, where: str, least: int = -(2**63), otherwise: int | None = None) -> int:
    """A whole number; as a float too, since pandas turns a column of integers with gaps into floats."""
    value: Any = row.get(name)
    if value is None and otherwise is not None:
        return otherwise
    if type(value) not in (int, float) or not least <= value < 2**63 or value != int(value):
        bound = f" >= {least}" if least >= 0 else ""
        raise InputError(f"{where}: {name} must be an integer{bound}, got {value!r}")
    return int(value)


def _text(row: Mapping[str, Any], name: str, where: str, otherwise: str = "") -> str:
    value = row.get(name)
    if value is not None and not isinstance(value, str):
        raise InputError(f"{where}: {name} must be text, got {value!r}")
    return otherwise if value is None else value


def _messages(row: Mapping[str, Any], where: str) -> Any:
    """Plain text, or the chat messages that a JSON list holds."""
    text = _text(row, "messages", where)
    try:
        value = json.loads(text) if text else ""
    except (ValueError, RecursionError):  # no JSON that anyone meant
        return text
    if isinstance(value, list):
        if not all(isinstance(m, dict) for m in value):
            raise InputError(f"{where}: messages must be JSON of a list of chat messages, or of a text")
        return tuple(value)
    return value if isinstance(value, str) else text


def _parts(row: Mapping[str, Any], where: str) -> dict[str, float | None]:
    """The parts of the reward, from JSON."""
    text = _text(row, "reward_parts", where)
    try:
        parts = json.loads(text) if text else {}
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: reward_parts is not JSON: {error}") from error
    if not isinstance(parts, dict):
        raise InputError(f"{where}: reward_parts must be JSON of names and numbers, got {text[:80]}")
    for name, value in parts.items():
        if isinstance(value, bool) or not isinstance(value, float | int | None) or not math.isfinite(value or 0):
            raise InputError(f"{where}: reward_parts[{name!r}] must be a finite number or null, got {value!r}")
    return {name: None if value is None else float(value) for name, value in parts.items()}


def _import_pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise InputError("Parquet files need pyarrow: pip install 'bapo-lightning[data]'") from error
    return pyarrow, parquet
