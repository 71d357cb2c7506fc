"""Trajectories as flat tensors: small in a checkpoint, safe to load with ``weights_only=True``, and exact."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from bapo_lightning.errors import InputError
from bapo_lightning.types import Completion, Prompt, Trajectory


def pack_trajectories(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """Turn N trajectories with K tokens in all into tensors and lists.

    Args:
        trajectories: Any number; order is kept, each distinct prompt is stored once.

    Returns:
        ``prompts`` (a dict each) and, per trajectory, ``prompt_index``, ``group_id``, ``sample_index``,
        ``sampled_version``, ``oldest_trained_version``, ``response_length`` and ``prompt_length`` [N] int64,
        ``reward`` and ``advantage`` [N] float64, ``has_reward`` [N] bool, lists ``finish_reason``, ``text``,
        ``reward_status`` and ``reward_parts``; per token ``token_ids`` and ``policy_versions`` [K] int32 and
        ``log_probs`` [K], float32 when no value needs more, float64 otherwise; ``prompt_ids`` int32. ``has_proximal``
        [N] bool, and ``proximal_log_probs`` of the trajectories that have them.
    """
    rows = list(trajectories)
    prompt_numbers: dict[int, int] = {}
    prompts: list[dict[str, Any]] = []
    for t in rows:
        # By identity, as prompts hold dicts; unpacking gives equal ones whichever way they are shared.
        if id(t.prompt) not in prompt_numbers:
            prompt_numbers[id(t.prompt)] = len(prompts)
            prompts.append(_pack_prompt(t.prompt))
    return {
        "prompts": prompts,
        "prompt_index": _int64([prompt_numbers[id(t.prompt)] for t in rows]),
        "group_id": _int64([t.group_id for t in rows]),
        "sample_index": _int64([t.sample_index for t in rows]),
        "sampled_version": _int64([t.sampled_version for t in rows]),
        "oldest_trained_version": _int64([t.oldest_trained_version for t in rows]),
        "prompt_length": _int64([len(t.prompt_ids) for t in rows]),
        "response_length": _int64([len(t.completion.token_ids) for t in rows]),
        "reward": torch.tensor([t.reward or 0.0 for t in rows], dtype=torch.float64),
        "has_reward": torch.tensor([t.reward is not None for t in rows], dtype=torch.bool),
        "advantage": torch.tensor([t.advantage for t in rows], dtype=torch.float64),
        "finish_reason": [t.completion.finish_reason for t in rows],
        "text": [t.text for t in rows],
        "reward_status": [t.reward_status for t in rows],
        "reward_parts": [dict(t.reward_parts) for t in rows],
        "prompt_ids": _int32([i for t in rows for i in t.prompt_ids]),
        "token_ids": _int32([i for t in rows for i in t.completion.token_ids]),
        "policy_versions": _int32([v for t in rows for v in t.completion.policy_versions]),
        "log_probs": _floats([p for t in rows for p in t.completion.log_probs]),
        "has_proximal": torch.tensor([t.proximal_log_probs is not None for t in rows], dtype=torch.bool),
        "proximal_log_probs": _floats([p for t in rows for p in t.proximal_log_probs or ()]),
    }


def unpack_trajectories(packed: dict[str, Any]) -> list[Trajectory]:
    """Undo `pack_trajectories`; the result equals what was packed.

    Args:
        packed: What `pack_trajectories` returned, perhaps saved and loaded since.

    Returns:
        The trajectories, in order.

    Raises:
        InputError: Parts are lacking or do not fit together.
    """
    try:
        _check(packed)
        prompts = [_unpack_prompt(prompt) for prompt in packed["prompts"]]
        columns = {name: v.tolist() if isinstance(v, Tensor) else v for name, v in packed.items()}
        prompt_spans = _spans(columns["prompt_length"])
        response_spans = _spans(columns["response_length"])
        proximal_spans = _spans(
            [n if has else 0 for n, has in zip(columns["response_length"], columns["has_proximal"], strict=True)]
        )
        return [
            Trajectory(
                prompt=prompts[columns["prompt_index"][i]],
                prompt_ids=tuple(columns["prompt_ids"][prompt_span]),
                completion=Completion(
                    token_ids=tuple(columns["token_ids"][span]),
                    log_probs=tuple(columns["log_probs"][span]),
                    policy_versions=tuple(columns["policy_versions"][span]),
                    finish_reason=columns["finish_reason"][i],
                ),
                group_id=columns["group_id"][i],
                sample_index=columns["sample_index"][i],
                sampled_version=columns["sampled_version"][i],
                oldest_trained_version=columns["oldest_trained_version"][i],
                text=columns["text"][i],
                reward=columns["reward"][i] if columns["has_reward"][i] else None,
                reward_status=columns["reward_status"][i],
                reward_parts=columns["reward_parts"][i],
                advantage=columns["advantage"][i],
                proximal_log_probs=(
                    tuple(columns["proximal_log_probs"][proximal_span]) if columns["has_proximal"][i] else None
                ),
            )
            for i, (prompt_span, span, proximal_span) in enumerate(
                zip(prompt_spans, response_spans, proximal_spans, strict=True)
            )
        ]
    except (KeyError, IndexError) as error:
        raise InputError(f"saved trajectories are damaged: {type(error).__name__} {error}") from error


def _check(packed: dict[str, Any]) -> None:
    num_rows = len(packed["group_id"])
    num_tokens, num_prompt_tokens = int(packed["response_length"].sum()), int(packed["prompt_length"].sum())
    num_proximal = int(packed["response_length"][packed["has_proximal"]].sum())
    wanted = {
        "proximal_log_probs": num_proximal,
        **dict.fromkeys(("token_ids", "policy_versions", "log_probs"), num_tokens),
        "prompt_ids": num_prompt_tokens,
    }
    for name, column in packed.items():
        if name != "prompts" and len(column) != wanted.get(name, num_rows):
            raise InputError(
                f"saved trajectories are damaged: {name} has {len(column)} entries instead of "
                f"{wanted.get(name, num_rows)}"
            )


def _pack_prompt(prompt: Prompt) -> dict[str, Any]:
    messages = prompt.messages if isinstance(prompt.messages, str) else [dict(m) for m in prompt.messages]
    return {"id": prompt.id, "messages": messages, "answer": prompt.answer, "source": prompt.source}


def _unpack_prompt(packed: dict[str, Any]) -> Prompt:
    messages = packed["messages"]
    if not isinstance(messages, str):
        messages = tuple(dict(message) for message in messages)
    return Prompt(packed["id"], messages, packed["answer"], packed["source"])


def _spans(lengths: list[int]) -> list[slice]:
    ends = [0]
    for length in lengths:
        ends.append(ends[-1] + length)
    return [slice(start, end) for start, end in pairwise(ends)]


def _int64(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


def _int32(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def _floats(values: list[float]) -> Tensor:
    exact = torch.tensor(values, dtype=torch.float64)
    half_size = exact.float()
    return half_size if torch.equal(half_size.double(), exact) else exact
