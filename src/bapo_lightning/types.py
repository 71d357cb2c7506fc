"""The records that travel through the flow, from a prompt to one optimizer step. All are immutable.

Letters in shapes: B responses, T response tokens (padded), P prompt tokens (padded), N tokens or items.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, TypeVar

import torch
from torch import Tensor

from bapo_lightning.errors import InputError

FinishReason = Literal["stop", "length", "budget"]
"""``stop``: a stop id was sampled (it is the last id of the response); ``length``: the token limit came first;
``budget``: neither yet: the token budget of a phase was used up, and the response goes on in a later one."""

Message = Mapping[str, str]
"""One chat message: ``{"role": "user", "content": "…"}``."""


@dataclass(frozen=True)
class Prompt:
    """A problem as the data set gives it."""

    id: str
    """Unique in its source and stable between runs."""

    messages: tuple[Message, ...] | str
    """Chat messages, or plain text for models without a chat template."""

    answer: str
    """The gold answer, as text."""

    source: str = ""
    """Where the prompt came from, for example a file and line."""


@dataclass(frozen=True)
class SamplingSettings:
    """How an engine samples.

    Raises:
        InputError: A value is out of its range.
    """

    max_new_tokens: int = 1024
    """Token limit of one response, stop id included; > 0."""

    temperature: float = 1.0
    """Softmax temperature, > 0. Greedy decoding is ``temperature=0`` and allowed in evaluation only."""

    top_p: float = 1.0
    """Nucleus mass in (0, 1]. Training rollouts refuse anything below 1: the ratio would be wrong."""

    top_k: int = 0
    """Keep the k most probable tokens; 0 keeps all. Training rollouts refuse anything else."""

    min_p: float = 0.0
    """Keep tokens with at least this share of the highest probability; 0 keeps all. Refused in training."""

    def __post_init__(self) -> None:
        if self.max_new_tokens <= 0:
            raise InputError(f"max_new_tokens must be at least 1, got {self.max_new_tokens}")
        if not 0.0 <= self.temperature < float("inf"):
            raise InputError(f"temperature must be a finite number >= 0, got {self.temperature}")
        if not 0.0 < self.top_p <= 1.0:
            raise InputError(f"top_p must lie in (0, 1], got {self.top_p}")
        if self.top_k < 0:
            raise InputError(f"top_k must be 0 (off) or positive, got {self.top_k}")
        if not 0.0 <= self.min_p < 1.0:
            raise InputError(f"min_p must lie in [0, 1), got {self.min_p}")

    def require_full_distribution(self, key: str) -> None:
        """Refuse settings under which sampled log-probs are not the policy's (training rollouts).

        Args:
            key: The config key that holds these settings; it opens the message.

        Raises:
            InputError: Truncated sampling or greedy decoding.
        """
        if self.temperature <= 0.0:
            raise InputError(f"{key}.temperature must be > 0 for training rollouts, got {self.temperature}")
        if self.top_p < 1.0 or self.top_k > 0 or self.min_p > 0.0:
            raise InputError(
                f"{key}: top_p, top_k and min_p truncate the distribution, so the importance ratio of a training "
                f"rollout would be wrong; got top_p={self.top_p}, top_k={self.top_k}, min_p={self.min_p}. "
                "Use top_p=1, top_k=0, min_p=0 here; evaluation may truncate."
            )


@dataclass(frozen=True)
class GenerationRequest:
    """One response to be sampled."""

    prompt_ids: tuple[int, ...]
    """Token ids of the rendered prompt, special tokens included."""

    seed: int
    """Seeds this response's own random stream."""

    key: str = ""
    """Names the response, ``prompt id/sample index``; `ScriptedEngine` looks its answers up by it."""

    response_ids: tuple[int, ...] = ()
    """Ids of this response that were sampled in earlier phases; sampling goes on after them."""

    max_new_tokens: int | None = None
    """Most ids to sample now, > 0; None is the limit of the sampling settings."""


@dataclass(frozen=True)
class Completion:
    """What an engine sampled for one request. All lists have the length of ``token_ids``."""

    token_ids: tuple[int, ...]
    """Sampled ids, the stop id included when one was sampled."""

    log_probs: tuple[float, ...]
    """Behaviour log-probs in nats of the sampled ids at the sampling temperature, float32."""

    policy_versions: tuple[int, ...]
    """Number of policy updates behind the weights that sampled each token."""

    finish_reason: FinishReason
    """Why sampling ended."""

    def __add__(self, later: "Completion") -> "Completion":
        """This completion and what was sampled after it; every token keeps its log-prob and version."""
        return Completion(
            token_ids=self.token_ids + later.token_ids,
            log_probs=self.log_probs + later.log_probs,
            policy_versions=self.policy_versions + later.policy_versions,
            finish_reason=later.finish_reason,
        )


@dataclass(frozen=True)
class Trajectory:
    """One response with everything training needs. Trajectories of a prompt form a group and travel together."""

    prompt: Prompt
    """The problem."""

    prompt_ids: tuple[int, ...]
    """Token ids of the rendered prompt."""

    completion: Completion
    """Sampled ids with behaviour log-probs and policy versions; never rewritten."""

    group_id: int
    """Equal for all responses to one prompt in one phase, unique in a run."""

    sample_index: int
    """Position in the group, 0 … group size - 1."""

    sampled_version: int
    """Policy version when sampling began; for a response without tokens it is all there is."""

    text: str = ""
    """The decoded response, for rewards and for reading; training uses the ids."""

    reward: float | None = None
    """The scalar reward, or None when it could not be computed (missing: masked, never 0)."""

    reward_status: str = ""
    """The reward's own word for it: correct, wrong, no_answer, truncated, timeout, error, bad_gold."""

    reward_parts: Mapping[str, float | None] = field(default_factory=dict)
    """Name → value before its weight, None where missing; of a reward that has several parts."""

    advantage: float = 0.0
    """Every token of the response carries it."""

    proximal_log_probs: tuple[float, ...] | None = None
    """Nats, one a token; under the weights at the start of the phase that trains on it, where a strategy asks."""

    oldest_trained_version: int = 0
    """Tokens of older policy versions stay out of the loss (partial rollouts, ``train_on: current_version``)."""

    @property
    def is_finished(self) -> bool:
        """Whether nothing more is to be sampled."""
        return self.completion.finish_reason != "budget"

    @property
    def oldest_version(self) -> int:
        """Version of the oldest token: a response is as old as its oldest token."""
        return min(self.completion.policy_versions, default=self.sampled_version)

    @property
    def is_trainable(self) -> bool:
        """Whether its tokens may enter a loss: a missing reward masks them."""
        return self.reward is not None

    def with_advantage(self, advantage: float) -> "Trajectory":
        """Copy with the advantage set."""
        return replace(self, advantage=advantage)


@dataclass(frozen=True)
class TokenBatch:
    """Responses of one update (or of a part of it) as tensors: prompts padded left, responses padded right."""

    prompt_ids: Tensor
    """[B, P] int64; padded on the left."""

    prompt_mask: Tensor
    """[B, P] bool; True for prompt tokens."""

    response_ids: Tensor
    """[B, T] int64; padded on the right."""

    response_mask: Tensor
    """[B, T] bool; True for sampled tokens, from lengths and never from ids."""

    loss_mask: Tensor
    """[B, T] bool; the response tokens that may enter the loss: not those of a response whose reward is missing, nor
    those of versions older than ``oldest_trained_version``."""

    rollout_log_probs: Tensor
    """[B, T] float32, nats; log-probs under the weights that sampled the token; 0 under padding."""

    policy_versions: Tensor
    """[B, T] int64; policy updates behind the weights that sampled the token."""

    advantages: Tensor
    """[B, T] float32; 0 under padding."""

    rewards: Tensor
    """[B] float32; NaN where missing."""

    temperature: float
    """The sampling temperature: log-probs of the trainer are taken at it too."""

    length_limit: int
    """Token limit of a response when these were sampled; the ``constant`` aggregation divides by it."""

    proximal_log_probs: Tensor | None = None
    """[B, T] float32, nats; log-probs under the weights at the phase's start; None where no strategy asks for them."""

    @property
    def num_responses(self) -> int:
        """B, empty responses included."""
        return self.response_ids.shape[0]

    @property
    def lengths(self) -> Tensor:
        """[B] int64; tokens of each prompt and response together."""
        return self.prompt_mask.sum(1) + self.response_mask.sum(1)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "TokenBatch":
        """Copy to a device (the spelling that Lightning's batch transfer looks for)."""
        tensors: dict[str, Any] = {
            name: value.to(device, non_blocking=non_blocking)
            for name, value in vars(self).items()
            if isinstance(value, Tensor)
        }
        return replace(self, **tensors)

    def rows(self, start: int, stop: int) -> "TokenBatch":
        """Responses ``start … stop-1`` with padding common to all of them cut off."""
        prompt_width = max([*self.prompt_mask[start:stop].sum(1).tolist(), 1])
        response_width = max([*self.response_mask[start:stop].sum(1).tolist(), 1])
        first = self.prompt_ids.shape[1] - prompt_width
        cut: dict[str, Any] = {
            name: value[start:stop, first:] if name.startswith("prompt_") else value[start:stop, :response_width]
            for name, value in vars(self).items()
            if isinstance(value, Tensor) and value.ndim == 2
        }
        return replace(self, **cut, rewards=self.rewards[start:stop])

    def take(self, order: Tensor) -> "TokenBatch":
        """The responses with these numbers, [b] int64, in that order."""
        taken: dict[str, Any] = {name: value[order] for name, value in vars(self).items() if isinstance(value, Tensor)}
        return replace(self, **taken)

    @classmethod
    def from_trajectories(
        cls, trajectories: Sequence[Trajectory], *, pad_id: int, temperature: float, length_limit: int
    ) -> "TokenBatch":
        """Pad trajectories into one batch.

        Args:
            trajectories: At least one; order is kept.
            pad_id: Any id of the vocabulary; masks never depend on it.
            temperature: Sampling temperature of these trajectories.
            length_limit: Token limit that they were sampled under.

        Returns:
            The batch, on the CPU.
        """
        rows = list(trajectories)
        num_rows = len(rows)
        prompt_width = max(max(len(t.prompt_ids) for t in rows), 1)
        response_width = max(max(len(t.completion.token_ids) for t in rows), 1)
        prompt_ids = torch.full((num_rows, prompt_width), pad_id, dtype=torch.int64)
        prompt_mask = torch.zeros((num_rows, prompt_width), dtype=torch.bool)
        response_ids = torch.full((num_rows, response_width), pad_id, dtype=torch.int64)
        response_mask = torch.zeros((num_rows, response_width), dtype=torch.bool)
        loss_mask = torch.zeros_like(response_mask)
        rollout_log_probs = torch.zeros((num_rows, response_width), dtype=torch.float32)
        policy_versions = torch.zeros((num_rows, response_width), dtype=torch.int64)
        advantages = torch.zeros((num_rows, response_width), dtype=torch.float32)
        with_proximal = all(t.proximal_log_probs is not None for t in rows)
        proximal_log_probs = torch.zeros_like(rollout_log_probs) if with_proximal else None
        rewards = torch.tensor([float("nan") if t.reward is None else t.reward for t in rows])
        for i, trajectory in enumerate(rows):
            completion, length = trajectory.completion, len(trajectory.completion.token_ids)
            prompt_ids[i, prompt_width - len(trajectory.prompt_ids) :] = torch.tensor(trajectory.prompt_ids)
            prompt_mask[i, prompt_width - len(trajectory.prompt_ids) :] = True
            response_ids[i, :length] = torch.tensor(completion.token_ids, dtype=torch.int64)
            response_mask[i, :length] = True
            if trajectory.is_trainable:
                versions = torch.tensor(completion.policy_versions, dtype=torch.int64)
                loss_mask[i, :length] = versions >= trajectory.oldest_trained_version
            rollout_log_probs[i, :length] = torch.tensor(completion.log_probs, dtype=torch.float32)
            policy_versions[i, :length] = torch.tensor(completion.policy_versions, dtype=torch.int64)
            advantages[i, :length] = trajectory.advantage
            if proximal_log_probs is not None:
                proximal_log_probs[i, :length] = torch.tensor(trajectory.proximal_log_probs, dtype=torch.float32)
        return cls(
            prompt_ids=prompt_ids,
            prompt_mask=prompt_mask,
            response_ids=response_ids,
            response_mask=response_mask,
            loss_mask=loss_mask,
            rollout_log_probs=rollout_log_probs,
            policy_versions=policy_versions,
            advantages=advantages,
            rewards=rewards,
            temperature=temperature,
            length_limit=length_limit,
            proximal_log_probs=proximal_log_probs,
        )


Content = TypeVar("Content")


class Sealed(Generic[Content]):
    """A batch as loaders hand it over: the Trainer's precision must not cast what is inside.

    Under ``bf16-true`` Lightning would lower behaviour log-probs to bf16, and ratios would be off by up to a percent.
    `PolicyModule` takes the content out when it moves the batch to its device.

    Args:
        content: The batch.
    """

    def __init__(self, content: Content) -> None:
        self.content = content


@dataclass(frozen=True)
class RolloutPhase:
    """A batch of `bapo rollout`: one phase of training rollouts is to be sampled."""

    number: int
    """From 0."""


@dataclass(frozen=True)
class MetricSum:
    """A metric as (sum, count), so that a mean over ranks or micro-batches is never a mean of means."""

    total: float | Tensor
    """Sum of the values."""

    count: float | Tensor
    """How many values; 0 means that there is nothing to report."""


@dataclass(frozen=True)
class Score:
    """The verdict on one response."""

    value: float
    """The reward; NaN when it is missing (timeout, error, bad_gold)."""

    status: str
    """correct, wrong, no_answer, truncated, timeout, error or bad_gold."""

    extracted: str | None = None
    """The answer that was found in the response, if any."""

    parts: Mapping[str, float | None] = field(default_factory=dict)
    """Name → value before its weight, None where missing; of a reward that has several parts."""

    @property
    def is_missing(self) -> bool:
        """True when no reward could be computed."""
        return self.value != self.value
