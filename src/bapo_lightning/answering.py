"""Answers to benchmark problems and to prompts: sampled, decoded and, where there is a gold answer, scored."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

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
