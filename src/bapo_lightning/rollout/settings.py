"""How a rollout phase samples."""

from dataclasses import dataclass
from typing import Literal, get_args

from bapo_lightning.errors import InputError

TrainedTokens = Literal["all", "current_version"]


@dataclass(frozen=True)
class RolloutSettings:
    """How a rollout phase samples.

    Raises:
        InputError: A value is out of its range.
    """

    token_budget: int | None = None
    """Most tokens that one phase samples of a response, ≥ 1 and less than ``data.sampling.max_new_tokens``; None is no
    budget. A response that reaches it goes on in the next phase, with the weights of that phase (partial rollout,
    arXiv 2510.18927, sec. 5.3); its group is trained on once all its responses are finished."""

    train_on: TrainedTokens = "all"
    """Which tokens of a response that several phases sampled enter the loss: ``all``, each with the ratio to the
    weights that sampled it, or those of the ``current_version`` only, the one that finished its group."""

    overlap: bool = False
    """Sample the groups of later phases in a background thread while the present one is trained. They are sampled by
    the weights that the present phase began with, so ``data.lag`` is at least the updates of one phase."""

    def __post_init__(self) -> None:
        if self.token_budget is not None and self.token_budget < 1:
            raise InputError(f"data.rollout.token_budget must be at least 1 token or null, got {self.token_budget}")
        if self.train_on not in get_args(TrainedTokens):
            raise InputError(
                f"data.rollout.train_on must be one of {', '.join(get_args(TrainedTokens))}, got {self.train_on!r}"
            )
