"""What every clipping strategy is: two calls."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from torch import Tensor

from bapo_lightning.clipping.records import ClipBounds, Surrogate
from bapo_lightning.clipping.shares import measure_shares


class ClippingStrategy(ABC):
    """Decides which tokens of an update keep their gradient.

    A strategy is a plain object without tensors or state from one update to the next, so it can be pickled,
    written to YAML and shared by ranks.
    """

    needs_statistics: bool = True
    """Whether what `bounds` returns, shares apart, depends on the log-ratios (or on the entropy).

    If not, a trainer needs no forward pass over the update before the first backward: it calls `bounds` with
    log-ratios of zero, and may call it again with the real ones, for the shares.
    """

    needs_entropy: bool = False
    """Whether `bounds` takes ``entropy`` [B, T], in nats: that of the distribution each token was drawn from."""

    needs_proximal: bool = False
    """Whether `bounds` takes ``proximal_log_probs`` [B, T], in nats: log π of the weights at the phase's start."""

    weighs_shares: bool = True
    """Whether the shares it reports weight tokens by π_rollout, as Eq. 8 of BAPO does. Curves are comparable if so."""

    source_aggregation: ClassVar[str | None] = None
    """The aggregation that the source's formula contains, where the formula is not the same under another one."""

    @abstractmethod
    def bounds(
        self,
        log_ratio: Tensor,
        advantages: Tensor,
        mask: Tensor,
        rollout_log_probs: Tensor | None = None,
    ) -> ClipBounds:
        """Find the window of one update. Called once per optimizer step, with the whole update.

        Under ``torch.distributed`` the sums go over all ranks, so every rank must call, a rank without a single
        response too.

        Args:
            log_ratio: [B, T] nats; log π_θ − log π_rollout. No gradient is taken.
            advantages: [B, T].
            mask: [B, T] bool; True for tokens in the loss. Anything may stand under False, NaN included.
            rollout_log_probs: [B, T] nats; log π_rollout.

        Returns:
            The bounds, equal on all ranks.

        Raises:
            InputError: Shapes differ, or an unmasked value is NaN or infinite.
        """

    @abstractmethod
    def surrogate(self, log_ratio: Tensor, advantages: Tensor, bounds: ClipBounds) -> Surrogate:
        """Compute the objective of every token. Called once per micro-batch.

        Args:
            log_ratio: [B, T] nats; differentiable. The caller drops masked tokens afterwards.
            advantages: [B, T].
            bounds: What `bounds` returned for the update, cut to these responses (`ClipBounds.rows`).

        Returns:
            The objective, not aggregated, and the clip masks.
        """

    def with_shares(
        self,
        bounds: ClipBounds,
        log_ratio: Tensor,
        advantages: Tensor,
        mask: Tensor,
        rollout_log_probs: Tensor | None = None,
    ) -> ClipBounds:
        """Fill in the shares of positive tokens that `surrogate` gives at these bounds, over all ranks.

        For strategies that do not measure them on the way: the last line of their `bounds`. One all-reduce. Tokens
        are weighted by π_rollout where it is given (see ``weighs_shares``).

        Args:
            bounds: The window.
            log_ratio: [B, T] nats.
            advantages: [B, T].
            mask: [B, T] bool.
            rollout_log_probs: [B, T] nats.

        Returns:
            The same bounds with ``measure``, the shares and ``empty``.

        Raises:
            InputError: Shapes differ, or an unmasked value is NaN or infinite.
        """
        weighting = rollout_log_probs if self.weighs_shares else None
        return measure_shares(self.surrogate, bounds, log_ratio, advantages, mask, weighting)

    def __repr__(self) -> str:
        arguments = (f"{name}={value!r}" for name, value in vars(self).items() if not name.startswith("_"))
        return f"{type(self).__name__}({', '.join(arguments)})"


def call_bounds(
    strategy: ClippingStrategy,
    log_ratio: Tensor,
    advantages: Tensor,
    mask: Tensor,
    rollout_log_probs: Tensor | None = None,
    *,
    entropy: Tensor | None = None,
    proximal_log_probs: Tensor | None = None,
) -> ClipBounds:
    """Call a strategy's `bounds` with what it needs, so that most strategies need not know of the rest.

    Args:
        strategy: Any strategy.
        log_ratio: [B, T] nats.
        advantages: [B, T].
        mask: [B, T] bool.
        rollout_log_probs: [B, T] nats.
        entropy: [B, T] nats; passed to strategies with ``needs_entropy``.
        proximal_log_probs: [B, T] nats; passed to strategies with ``needs_proximal``.

    Returns:
        The bounds.
    """
    further: dict[str, Any] = {}
    if strategy.needs_entropy:
        further["entropy"] = entropy
    if strategy.needs_proximal:
        further["proximal_log_probs"] = proximal_log_probs
    return strategy.bounds(log_ratio, advantages, mask, rollout_log_probs, **further)
