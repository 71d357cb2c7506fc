"""The interface of what is added to the verdict on an answer: one number a response."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from bapo_lightning.types import Trajectory


class RewardTerm(ABC):
    """One named part of a `CombinedReward`.

    A subclass implements `values`, and `close` when it holds connections or processes. It sees each response for
    itself: with partial rollouts and several ranks the members of a group may come in different calls. It must be
    usable from any thread and survive pickling before its first call.
    """

    @abstractmethod
    def values(self, trajectories: Sequence[Trajectory]) -> list[float]:
        """Value of each response, before its weight.

        Args:
            trajectories: Finished responses with their text, tokens, prompt and finish reason; ``reward_status`` is
                the verdict on their answer.

        Returns:
            One finite number each, in order; NaN where it could not be computed (missing, never 0).
        """

    def close(self) -> None:
        """Release what the term holds. It may be used again afterwards."""


def prompt_text(trajectory: Trajectory) -> str:
    """What was asked, as plain text: the contents of the messages, one after the other."""
    messages = trajectory.prompt.messages
    return messages if isinstance(messages, str) else "\n".join(message["content"] for message in messages)
