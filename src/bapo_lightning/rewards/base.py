"""The interface of every reward."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from bapo_lightning.errors import InputError
from bapo_lightning.types import Score, Trajectory


class Reward(ABC):
    """Scores responses against gold answers, each response for itself.

    A subclass implements `score`, and `close` when it holds processes or files. It must be usable from any
    thread and must survive pickling before its first call.
    """

    @abstractmethod
    def score(
        self,
        responses: Sequence[str | None],
        answers: Sequence[str | list[str]],
        finish_reasons: Sequence[str] | None = None,
    ) -> list[Score]:
        """Score a batch.

        Args:
            responses: Decoded responses; None stands for a response that does not exist.
            answers: The gold of each response; a list holds alternatives, any of which is right.
            finish_reasons: ``stop`` or ``length`` for each response; None when unknown.

        Returns:
            One `Score` per response, in order. A value that could not be computed is NaN.

        Raises:
            InputError: The sequences differ in length.
        """

    def score_trajectories(self, trajectories: Sequence[Trajectory]) -> list[Score]:
        """Score the finished responses of training; a reward that counts tokens or reads prompts overrides this.

        Args:
            trajectories: Any number.

        Returns:
            One `Score` each, in order.
        """
        return self.score(
            [t.text for t in trajectories],
            [t.prompt.answer for t in trajectories],
            [t.completion.finish_reason for t in trajectories],
        )

    def settings(self) -> dict[str, Any]:
        """How answers are found and judged, as plain values that are written beside benchmark scores."""
        return {"class": f"{type(self).__module__}.{type(self).__qualname__}"}

    def close(self) -> None:
        """Release what the reward holds. It may be used again afterwards."""


def check_lengths(
    responses: Sequence[str | None],
    answers: Sequence[str | list[str]],
    finish_reasons: Sequence[str] | None,
) -> None:
    """Refuse arguments of `Reward.score` that do not belong together.

    Raises:
        InputError: A bare string instead of a sequence, or different lengths.
    """
    for name, value in (("responses", responses), ("answers", answers), ("finish_reasons", finish_reasons)):
        if isinstance(value, str):
            raise InputError(f"{name} must be a list with one entry per response, got the string {value[:40]!r}")
        if value is not None and len(value) != len(responses):
            raise InputError(f"{name} has {len(value)} entries for {len(responses)} responses; give one for each")
