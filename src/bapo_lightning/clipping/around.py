"""What strategies share that stand around another one."""

from dataclasses import dataclass

import torch
from torch import Tensor

from bapo_lightning.clipping.base import ClippingStrategy
from bapo_lightning.clipping.inputs import require_given, require_shapes
from bapo_lightning.clipping.surrogate import at_least_float32


@dataclass(frozen=True)
class UpdateTokens:
    """All that `ClippingStrategy.bounds` may be given about an update; [B, T] each."""

    log_ratio: Tensor
    """Nats, float32 or wider; log π_θ − log π_rollout, without a graph."""

    advantages: Tensor
    """A of each token."""

    mask: Tensor
    """Bool; True for tokens in the loss. Anything may stand under False, NaN included."""

    rollout_log_probs: Tensor | None = None
    """Nats."""

    entropy: Tensor | None = None
    """Nats."""

    proximal_log_probs: Tensor | None = None
    """Nats."""

    def __post_init__(self) -> None:
        require_shapes(**vars(self))
        object.__setattr__(self, "log_ratio", at_least_float32(self.log_ratio.detach()))
        object.__setattr__(self, "mask", self.mask.bool())

    def require(self, name: str, who: object) -> Tensor:
        """Get an input that not every trainer gives.

        Args:
            name: Which one.
            who: The strategy that needs it.

        Returns:
            It, in the type of ``log_ratio``, 0 where masked.

        Raises:
            InputError: It was not given.
        """
        tensor = require_given(vars(self)[name], name, type(who).__name__)
        return torch.where(self.mask, tensor.detach().to(self.log_ratio.dtype), 0.0)


class AroundStrategy(ClippingStrategy):
    """A strategy with another one inside. It needs what the inner one needs, unless a subclass says more.

    Args:
        inner: Any strategy, another one of this kind too.
    """

    def __init__(self, inner: ClippingStrategy) -> None:
        self.inner = inner

    @property
    def needs_statistics(self) -> bool:  # type: ignore[override]
        """As the inner strategy."""
        return self.inner.needs_statistics

    @property
    def needs_entropy(self) -> bool:  # type: ignore[override]
        """As the inner strategy."""
        return self.inner.needs_entropy

    @property
    def needs_proximal(self) -> bool:  # type: ignore[override]
        """As the inner strategy."""
        return self.inner.needs_proximal

    @property
    def weighs_shares(self) -> bool:  # type: ignore[override]
        """As the inner strategy."""
        return self.inner.weighs_shares

    @property
    def source_aggregation(self) -> str | None:  # type: ignore[override]
        """As the inner strategy."""
        return self.inner.source_aggregation
