"""What every rollout engine does."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager

from bapo_lightning.models import Policy
from bapo_lightning.types import Completion, GenerationRequest, SamplingSettings


class RolloutEngine(ABC):
    """Samples responses from the policy, under weights whose version it knows."""

    def __init__(self) -> None:
        self._policy: Policy | None = None
        self._version = -1
        self.cancelled = threading.Event()
        """Set when a run ends while the engine samples in the background: `generate` then stops where it can."""

    def attach(self, policy: Policy, *, beside_training: bool = False) -> None:
        """Give the engine the policy to sample from, once, before the first `sync_weights`.

        Args:
            policy: The policy that is trained.
            beside_training: `generate` will run in another thread while the policy is trained, so an engine that would
                read the policy's own weights must take a copy.
        """
        self._policy = policy

    @property
    def policy(self) -> Policy:
        """The policy whose weights, tokenizer and stop ids the engine uses."""
        if self._policy is None:
            raise RuntimeError(f"{type(self).__name__} was not attached to a policy")
        return self._policy

    @property
    def version(self) -> int:
        """Policy updates behind the engine's weights; -1 before the first `sync_weights`."""
        return self._version

    def sync_weights(self, version: int) -> None:
        """Bring the engine to the policy's present weights.

        Args:
            version: Policy updates behind those weights. The engine's `version` is set to it only after the weights
                have arrived.
        """
        self.load_weights()
        self._version = version

    @abstractmethod
    def load_weights(self) -> None:
        """Take over the policy's present weights, and forget every cached prefix of older ones."""

    @abstractmethod
    def generate(
        self,
        requests: Sequence[GenerationRequest],
        sampling: SamplingSettings,
        precision: AbstractContextManager[None] | None = None,
    ) -> list[Completion]:
        """Sample one completion a request.

        Args:
            requests: What to sample; each carries its own seed, so that neither the batch it is sampled in nor the
                rank that samples it changes the result.
            sampling: Temperature and limits, common to all requests.
            precision: The Trainer's precision context, so that engines inside the process compute as training does.

        Returns:
            Completions in the order of the requests, stamped with `version`: only what is sampled now, after a
            request's ``response_ids``. The finish reason is ``stop`` or, where the request's limit came first,
            ``length``.
        """
