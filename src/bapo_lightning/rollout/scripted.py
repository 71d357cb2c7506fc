"""An engine that returns canned answers, so that everything behind it can be tested without sampling."""

from collections.abc import Sequence
from contextlib import AbstractContextManager

from bapo_lightning.errors import InputError
from bapo_lightning.rollout.engine import RolloutEngine
from bapo_lightning.types import Completion, FinishReason, GenerationRequest, SamplingSettings


class ScriptedEngine(RolloutEngine):
    """Answers from a script and counts what was asked of it.

    Args:
        answers: Either texts, given out in turn, or a mapping from ``prompt id`` or ``prompt id/sample index`` to a
            text; the longer key wins and ``*`` answers for the rest.
        log_prob: Behaviour log-prob in nats that every token is said to have had, ≤ 0.
        append_stop_id: Whether an answer that fits ends with the stop id (finish reason ``stop``).

    Raises:
        InputError: There is no answer, or ``log_prob`` is positive.
    """

    def __init__(
        self, answers: list[str] | dict[str, str], log_prob: float = -1.0, append_stop_id: bool = True
    ) -> None:
        super().__init__()
        if not answers:
            raise InputError("data.engine.answers must hold at least one answer")
        if log_prob > 0:
            raise InputError(f"data.engine.log_prob must be <= 0, got {log_prob}")
        self.answers = answers
        self.log_prob = log_prob
        self.append_stop_id = append_stop_id
        self.num_calls = 0
        """Calls of `generate` so far."""
        self.num_requests = 0
        """Responses begun so far."""
        self._turns: dict[int, int] = {}
        self.cache_resets = 0
        """Finished weight updates so far; each forgets cached prefixes once."""

    def load_weights(self) -> None:
        """Count the update; a real engine would drop its prefix cache here."""
        self.cache_resets += 1

    def generate(
        self,
        requests: Sequence[GenerationRequest],
        sampling: SamplingSettings,
        precision: AbstractContextManager[None] | None = None,
    ) -> list[Completion]:
        """Return the scripted answers as token ids; see `RolloutEngine.generate`."""
        self.num_calls += 1
        return [self._answer(request, request.max_new_tokens or sampling.max_new_tokens) for request in requests]

    def _answer(self, request: GenerationRequest, limit: int) -> Completion:
        ids = list(self.policy.tokenizer(self._text(request), add_special_tokens=False)["input_ids"])
        if self.append_stop_id:
            ids.append(self.policy.stop_ids[0])
        ids = ids[len(request.response_ids) :]
        finished = self.append_stop_id and len(ids) <= limit
        ids = ids[:limit]
        reason: FinishReason = "stop" if finished else "length"
        return Completion(
            token_ids=tuple(ids),
            log_probs=(self.log_prob,) * len(ids),
            policy_versions=(self.version,) * len(ids),
            finish_reason=reason,
        )

    def _text(self, request: GenerationRequest) -> str:
        key = request.key
        if not request.response_ids or request.seed not in self._turns:
            self._turns[request.seed] = self.num_requests
            self.num_requests += 1
        if isinstance(self.answers, list):
            return self.answers[self._turns[request.seed] % len(self.answers)]
        for candidate in (key, key.rpartition("/")[0], "*"):
            if candidate in self.answers:
                return self.answers[candidate]
        raise InputError(f"data.engine.answers has no entry for {key!r} and none for '*'")
