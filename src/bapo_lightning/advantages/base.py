"""What every advantage estimator is: one call."""

from abc import ABC, abstractmethod

from torch import Tensor


class AdvantageEstimator(ABC):
    """Turns the rewards of a rollout phase into advantages. A plain object without state."""

    @abstractmethod
    def __call__(self, rewards: Tensor, group_ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """Compute the advantage of every response. All responses of a group must be in one call.

        Args:
            rewards: [N]; NaN where a reward is missing.
            group_ids: [N] int64; equal for the responses to one prompt, in any order.
            mask: [N] bool; False where a reward is missing, whatever stands in ``rewards``. None: only NaN
                is.

        Returns:
            [N], in the floating type and on the device of ``rewards``; 0 where the reward is missing. A
            missing reward has no part in the statistics of the others.
        """

    def __repr__(self) -> str:
        arguments = (f"{name}={value!r}" for name, value in vars(self).items() if not name.startswith("_"))
        return f"{type(self).__name__}({', '.join(arguments)})"
