"""A tiny task and reward that need nothing but digits, for tests of the loop."""

from collections.abc import Sequence

from torch import Tensor

from bapo_lightning.clipping import ClipBounds, ClippingStrategy, Surrogate
from bapo_lightning.rewards import Reward
from bapo_lightning.tasks import PromptSource
from bapo_lightning.types import Prompt, Score


class CountingTask(PromptSource):
    """Prompts ``i+1=`` for i below ``num_prompts``."""

    def __init__(self, num_prompts: int = 12) -> None:
        self.num_prompts = num_prompts

    def load(self) -> list[Prompt]:
        return [Prompt(f"count/{i}", f"{i}+1=", str(i + 1)) for i in range(self.num_prompts)]


class EvenLength(Reward):
    """1 for a text of even length, so that a random model gets both kinds; missing where ``missing`` is in the text."""

    def __init__(self, missing: str = "") -> None:
        self.missing = missing

    def score(
        self,
        responses: Sequence[str | None],
        answers: Sequence[str | list[str]],
        finish_reasons: Sequence[str] | None = None,
    ) -> list[Score]:
        return [self._one(response or "") for response in responses]

    def _one(self, text: str) -> Score:
        if self.missing and self.missing in text:
            return Score(float("nan"), "error")
        return Score(1.0, "correct", text) if len(text) % 2 == 0 else Score(0.0, "wrong", text)


class WeightedREINFORCE(ClippingStrategy):
    """A strategy of a user's own: nothing is clipped, and the advantage is scaled."""

    needs_statistics = False

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale

    def bounds(
        self, log_ratio: Tensor, advantages: Tensor, mask: Tensor, rollout_log_probs: Tensor | None = None
    ) -> ClipBounds:
        return ClipBounds(low=0.0, high=float("inf"))

    def surrogate(self, log_ratio: Tensor, advantages: Tensor, bounds: ClipBounds) -> Surrogate:
        nothing = advantages > float("inf")
        return Surrogate(self.scale * log_ratio.exp() * advantages, nothing, nothing)


class NeverScored(Reward):
    """A reward that can never be computed."""

    def score(
        self,
        responses: Sequence[str | None],
        answers: Sequence[str | list[str]],
        finish_reasons: Sequence[str] | None = None,
    ) -> list[Score]:
        return [Score(float("nan"), "timeout") for _ in responses]


class OneForAll(Reward):
    """A faulty reward: one score for the whole batch."""

    def score(
        self,
        responses: Sequence[str | None],
        answers: Sequence[str | list[str]],
        finish_reasons: Sequence[str] | None = None,
    ) -> list[Score]:
        return [Score(1.0, "correct")]
