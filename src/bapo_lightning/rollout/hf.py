"""Rollouts with transformers' ``generate``, in the training process and on the training weights."""

import copy
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch

from bapo_lightning.errors import InputError
from bapo_lightning.models import Policy
from bapo_lightning.rollout.engine import RolloutEngine
from bapo_lightning.rollout.sampler import RowStream, SeededSampler
from bapo_lightning.types import Completion, FinishReason, GenerationRequest, SamplingSettings


class HFEngine(RolloutEngine):
    """Samples from the policy itself, so there are no weights to send. Works wherever transformers does.

    Beside a training that goes on (``data.rollout.overlap``) it samples from a copy of the policy instead.

    Args:
        max_batch_size: Responses sampled together, ≥ 1. More is faster until memory ends.

    Raises:
        InputError: ``max_batch_size`` is below 1.
    """

    def __init__(self, max_batch_size: int = 64) -> None:
        super().__init__()
        if max_batch_size < 1:
            raise InputError(f"data.engine.max_batch_size must be at least 1, got {max_batch_size}")
        self.max_batch_size = max_batch_size

    def attach(self, policy: Policy, *, beside_training: bool = False) -> None:
        """Take the policy, or a copy of it; see `RolloutEngine.attach`."""
        self._trained = policy
        # A copy keeps `requires_grad`, though nothing is learnt there: torch picks kernels by it, and they round apart.
        super().attach(copy.deepcopy(policy) if beside_training else policy)

    @torch.no_grad()
    def load_weights(self) -> None:
        """Bring a copy to the policy's weights; without one they are the same. No cache is kept between calls."""
        if self.policy is not self._trained:
            own, trained = self.policy.state_dict(), self._trained.state_dict()
            for name, value in trained.items():
                own[name].copy_(value)

    def generate(
        self,
        requests: Sequence[GenerationRequest],
        sampling: SamplingSettings,
        precision: AbstractContextManager[None] | None = None,
    ) -> list[Completion]:
        """Sample one completion a request; see `RolloutEngine.generate`."""
        # Prompts of like length share a batch, so that little is spent on padding.
        order = sorted(range(len(requests)), key=lambda i: len(requests[i].prompt_ids + requests[i].response_ids))
        completions: dict[int, Completion] = {}
        model = self.policy.model
        was_training = model.training
        model.eval()
        try:
            with torch.no_grad(), precision or nullcontext():
                for start in range(0, len(order), self.max_batch_size):
                    chosen = order[start : start + self.max_batch_size]
                    batch = self._generate_batch([requests[i] for i in chosen], sampling)
                    completions.update(zip(chosen, batch, strict=True))
        finally:
            model.train(was_training)
        return [completions[i] for i in range(len(requests))]

    def _generate_batch(self, requests: Sequence[GenerationRequest], sampling: SamplingSettings) -> list[Completion]:
        from transformers import GenerationConfig, LogitsProcessorList

        policy = self.policy
        device = next(policy.model.parameters()).device
        contexts = [request.prompt_ids + request.response_ids for request in requests]
        limits = [request.max_new_tokens or sampling.max_new_tokens for request in requests]
        width = max(map(len, contexts))
        input_ids = torch.full((len(requests), width), policy.pad_id)
        attention_mask = torch.zeros((len(requests), width), dtype=torch.int64)
        for row, context in enumerate(contexts):
            input_ids[row, width - len(context) :] = torch.tensor(context)
            attention_mask[row, width - len(context) :] = 1

        streams = [RowStream(request.seed, len(request.response_ids)) for request in requests]
        sampler = SeededSampler(streams, sampling, max(limits), self.cancelled)
        policy.model.generate(
            input_ids=input_ids.to(device),
            attention_mask=attention_mask.to(device),
            generation_config=GenerationConfig(  # type: ignore[no-untyped-call]
                max_new_tokens=max(limits),
                do_sample=False,
                eos_token_id=list(policy.stop_ids),
                pad_token_id=policy.pad_id,
            ),
            logits_processor=LogitsProcessorList([sampler]),
        )
        tokens = torch.stack(sampler.tokens, dim=1).tolist()
        log_probs = torch.stack(sampler.log_probs, dim=1).tolist()
        return [
            _completion(ids[:limit], values, frozenset(policy.stop_ids), self.version)
            for ids, values, limit in zip(tokens, log_probs, limits, strict=True)
        ]


def _completion(ids: list[int], log_probs: list[float], stop_ids: frozenset[int], version: int) -> Completion:
    """Cut a row where its first stop id was drawn; what `generate` drew for a finished row is not part of it."""
    length = next((i + 1 for i, token in enumerate(ids) if token in stop_ids), None)
    reason: FinishReason = "length" if length is None else "stop"
    return Completion(
        token_ids=tuple(ids[:length]),
        log_probs=tuple(log_probs[: len(ids[:length])]),
        policy_versions=(version,) * len(ids[:length]),
        finish_reason=reason,
    )
