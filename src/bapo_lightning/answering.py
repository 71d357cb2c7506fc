"""Answers to benchmark problems and to prompts: sampled, decoded and, where there is a gold answer, scored."""

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from bapo_lightning.rewards import Reward
from bapo_lightning.rollout import RolloutEngine
from bapo_lightning.seeding import derive_seed
from bapo_lightning.tasks import encode_prompt
from bapo_lightning.types import Completion, GenerationRequest, Prompt, SamplingSettings, Score


@dataclass(frozen=True)
class AnswerRequest:
    """One response to be sampled outside training."""

    prompt: Prompt
    sample_index: int
    """Position among the k samples of its problem."""

    sampling: SamplingSettings
    """May truncate the distribution or be greedy, unlike a training rollout."""


@dataclass(frozen=True)
class Answer:
    """A response with its verdict."""

    request: AnswerRequest
    completion: Completion
    text: str
    score: Score

    def as_record(self) -> dict[str, object]:
        """Plain values for a JSON line."""
        return {
            "prompt_id": self.request.prompt.id,
            "sample": self.request.sample_index,
            "response": self.text,
            "extracted": self.score.extracted,
            "answer": self.request.prompt.answer,
            "status": self.score.status,
            "length": len(self.completion.token_ids),
            "finish_reason": self.completion.finish_reason,
        }

    @property
    def key(self) -> tuple[str, int]:
        """Problem and sample: no two answers of an evaluation share it."""
        return self.request.prompt.id, self.request.sample_index

    def pack(self) -> dict[str, Any]:
        """All but the request's settings, as plain values that JSON gives back exactly."""
        return {
            "key": list(self.key),
            "completion": vars(self.completion),
            "text": self.text,
            "value": None if self.score.is_missing else self.score.value,
            "status": self.score.status,
            "extracted": self.score.extracted,
        }

    @classmethod
    def unpack(cls, packed: dict[str, Any], requests: Mapping[tuple[str, int], AnswerRequest]) -> "Answer":
        """Undo `pack`.

        Args:
            packed: What `pack` returned.
            requests: The requests of the evaluation, by problem and sample.

        Raises:
            KeyError: Something is lacking, or no request has its key.
        """
        completion = packed["completion"]
        value = packed["value"]
        return cls(
            request=requests[packed["key"][0], packed["key"][1]],
            completion=Completion(
                token_ids=tuple(completion["token_ids"]),
                log_probs=tuple(completion["log_probs"]),
                policy_versions=tuple(completion["policy_versions"]),
                finish_reason=completion["finish_reason"],
            ),
            text=packed["text"],
            score=Score(math.nan if value is None else value, packed["status"], packed["extracted"]),
        )


def answer(
    requests: Sequence[AnswerRequest],
    *,
    engine: RolloutEngine,
    reward: Reward,
    seed: int,
    precision: AbstractContextManager[None] | None = None,
) -> list[Answer]:
    """Sample and score one response a request.

    The stream of a response is named by (seed, problem, sample) and not by the update, so two checkpoints answer with
    the same draws and differ by their weights alone.

    Args:
        requests: Problems, all with the same sampling settings.
        engine: Its weights are up to date.
        reward: Scores the decoded text against the gold.
        seed: The seed of the run.
        precision: The Trainer's precision context.

    Returns:
        Answers in the order of the requests.
    """
    if not requests:
        return []
    policy = engine.policy
    completions = engine.generate(
        [
            GenerationRequest(
                prompt_ids=encode_prompt(policy.tokenizer, request.prompt),
                seed=derive_seed(seed, "answer", request.prompt.id, request.sample_index),
                key=f"{request.prompt.id}/{request.sample_index}",
            )
            for request in requests
        ],
        requests[0].sampling,
        precision,
    )
    texts = [policy.decode(completion) for completion in completions]
    scores = reward.score(
        texts, [request.prompt.answer for request in requests], [c.finish_reason for c in completions]
    )
    return [Answer(*parts) for parts in zip(requests, completions, texts, scores, strict=True)]
