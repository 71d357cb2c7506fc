"""What one update works with and leaves behind, for callbacks to look at."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bapo_lightning.clipping import ClipBounds, Surrogate
from bapo_lightning.models import TokenScores
from bapo_lightning.types import TokenBatch


@dataclass(frozen=True)
class MicroBatch:
    """Some responses of an update, cut to their own width."""

    batch: TokenBatch
    """Responses ``start … stop-1`` of the update."""

    start: int
    stop: int

    @property
    def width(self) -> int:
        """Response tokens of the longest response in it."""
        return self.batch.response_ids.shape[1]


@dataclass(frozen=True)
class PartResult:
    """What one micro-batch's forward pass gave, without its graph."""

    loss: Tensor
    """Scalar; this part's share of the loss of the rank."""

    log_probs: Tensor
    """[b, t] nats."""

    entropy: Tensor
    """[b, t] nats."""

    surrogate: Surrogate
    """Objective and clip masks, [b, t]."""

    reference_log_probs: Tensor | None
    """[b, t] nats, where a KL term is on."""

    @classmethod
    def of(
        cls, loss: Tensor, scores: TokenScores, surrogate: Surrogate, reference_log_probs: Tensor | None
    ) -> "PartResult":
        """Detach everything, so that the graph's memory is free."""
        return cls(
            loss=loss.detach(),
            log_probs=scores.log_probs.detach(),
            entropy=scores.entropy.detach(),
            surrogate=Surrogate(
                surrogate.objective.detach(),
                surrogate.clipped_low,
                surrogate.clipped_high,
                surrogate.clipped_dual,
            ),
            reference_log_probs=reference_log_probs,
        )


@dataclass(frozen=True)
class UpdateRecord:
    """One update of this rank, token by token. Shapes [B, T] are those of ``batch``; nothing carries a gradient."""

    batch: TokenBatch
    """The responses."""

    bounds: ClipBounds
    """The window of the update, the same on all ranks."""

    log_probs: Tensor
    """[B, T] nats; under the weights before the update, 0 under padding."""

    entropy: Tensor
    """[B, T] nats."""

    clipped_low: Tensor
    """[B, T] bool."""

    clipped_high: Tensor
    """[B, T] bool."""

    clipped_dual: Tensor
    """[B, T] bool."""

    reference_log_probs: Tensor | None
    """[B, T] nats, where a KL term is on."""

    loss: float
    """Loss of this rank's part; the mean over ranks is the loss of the update."""

    grad_norm: float
    """Global norm of the gradient before clipping."""

    learning_rate: float
    """Of the first parameter group, as used by this update."""

    version: int
    """Policy updates before this one."""

    skipped: bool
    """Whether no rank had a token to learn from."""

    @property
    def log_ratio(self) -> Tensor:
        """[B, T] nats; log π − log π_rollout, 0 under padding."""
        return self.log_probs - self.batch.rollout_log_probs


def join_rows(parts: Sequence[Tensor], like: Tensor) -> Tensor:
    """Put micro-batches under each other, padded to the width of the update.

    Args:
        parts: [b_i, t_i] each, in the order of the rows.
        like: [B, T]; gives width and number of rows.

    Returns:
        [B, T]; zeros (False) where a micro-batch was narrower.
    """
    joined = torch.zeros(like.shape, dtype=parts[0].dtype, device=parts[0].device)
    start = 0
    for part in parts:
        joined[start : start + part.shape[0], : part.shape[1]] = part.detach()
        start += part.shape[0]
    return joined


def record_update(
    batch: TokenBatch,
    parts: Sequence[PartResult],
    *,
    bounds: ClipBounds,
    grad_norm: float,
    learning_rate: float,
    version: int,
    skipped: bool,
) -> UpdateRecord:
    """Join the micro-batches of an update into one record."""

    def join(tensors: Sequence[Tensor]) -> Tensor:
        return join_rows(tensors, batch.response_mask)

    references = [p.reference_log_probs for p in parts if p.reference_log_probs is not None]
    return UpdateRecord(
        batch=batch,
        bounds=bounds,
        log_probs=join([p.log_probs for p in parts]),
        entropy=join([p.entropy for p in parts]),
        clipped_low=join([p.surrogate.clipped_low for p in parts]),
        clipped_high=join([p.surrogate.clipped_high for p in parts]),
        clipped_dual=join([p.surrogate.clipped_dual for p in parts]),
        reference_log_probs=join(references) if references else None,
        loss=float(sum(p.loss for p in parts)),
        grad_norm=grad_norm,
        learning_rate=learning_rate,
        version=version,
        skipped=skipped,
    )
