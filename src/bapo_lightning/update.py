"""What one update works with and leaves behind, for callbacks to look at."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bapo_lightning.clipping import ClipBounds, ClippingStrategy, Surrogate, call_bounds, measure_shares
from bapo_lightning.micro_batches import MicroBatch
from bapo_lightning.models import TokenScores
from bapo_lightning.objective import log_ratio
from bapo_lightning.types import TokenBatch


@dataclass(frozen=True)
class PartResult:
    """What one micro-batch's forward pass gave, without its graph."""

    loss: Tensor
    """Scalar; this part's share of the loss of the rank."""

    log_probs: Tensor
    """[b, t] nats."""

    entropy: Tensor
    """[b, t] nats."""

    bounds: ClipBounds
    """The window it was given, cut to these responses."""

    surrogate: Surrogate
    """Objective and clip masks, [b, t]."""

    reference_log_probs: Tensor | None
    """[b, t] nats, where a KL term is on."""

    @classmethod
    def of(
        cls,
        loss: Tensor,
        scores: TokenScores,
        bounds: ClipBounds,
        surrogate: Surrogate,
        reference_log_probs: Tensor | None,
    ) -> "PartResult":
        """Detach everything, so that the graph's memory is free."""
        return cls(
            loss=loss.detach(),
            log_probs=scores.log_probs.detach(),
            entropy=scores.entropy.detach(),
            bounds=bounds,
            surrogate=surrogate.detach(),
            reference_log_probs=reference_log_probs,
        )


@dataclass(frozen=True)
class UpdateRecord:
    """One update of this rank, token by token. Shapes [B, T] are those of ``batch``; nothing carries a gradient."""

    batch: TokenBatch
    """The responses."""

    bounds: ClipBounds
    """The window of the update, the same on all ranks; with a search per micro-batch, a bound for each token."""

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

    dropped: Tensor
    """[B, T] bool; left out by a token selector or a mask."""

    capped: Tensor
    """[B, T] bool; the weight was cut, the gradient kept."""

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
    def clipped(self) -> Tensor:
        """[B, T] bool; without a gradient, for any reason."""
        return self.clipped_low | self.clipped_high | self.clipped_dual | self.dropped

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


def find_bounds(strategy: ClippingStrategy, batch: TokenBatch, log_probs: Tensor, entropy: Tensor) -> ClipBounds:
    """Ask a strategy for the window of a batch. Collective: every rank calls it.

    Args:
        strategy: The one that is trained with, or another one to compare with.
        batch: B responses, perhaps none.
        log_probs: [B, T] nats, log π_θ; no gradient is taken.
        entropy: [B, T] nats.

    Returns:
        The window.

    Raises:
        InputError: A value is NaN or infinite, or the strategy needs what the batch does not have.
    """
    return call_bounds(
        strategy,
        log_ratio(log_probs.detach(), batch.rollout_log_probs),
        batch.advantages,
        batch.loss_mask,
        batch.rollout_log_probs,
        entropy=entropy.detach(),
        proximal_log_probs=batch.proximal_log_probs,
    )


def report_micro_batch_bounds(
    strategy: ClippingStrategy, batch: TokenBatch, micro_batches: Sequence[MicroBatch], parts: Sequence[PartResult]
) -> ClipBounds:
    """Describe an update whose micro-batches had windows of their own. Collective: every rank calls it.

    Args:
        strategy: Found the windows.
        batch: The update.
        micro_batches: How it was cut.
        parts: What each of them gave.

    Returns:
        The window that each token met, and the shares of the whole update under them.
    """

    def joined_surrogate(log_ratios: Tensor, advantages: Tensor, _: ClipBounds) -> Surrogate:
        objectives = torch.zeros_like(log_ratios)
        for cut, part in zip(micro_batches, parts, strict=True):
            rows = slice(cut.start, cut.stop), slice(None, cut.width)
            objectives[rows] = strategy.surrogate(log_ratios[rows], advantages[rows], part.bounds).objective
        unused = torch.zeros_like(batch.loss_mask)
        return Surrogate(objectives, unused, unused)

    windows = [part.bounds for part in parts]
    sizes = [cut.stop - cut.start for cut in micro_batches]
    log_probs = join_rows([part.log_probs for part in parts], batch.response_mask)
    found = measure_shares(
        joined_surrogate,
        ClipBounds.of_micro_batches(windows, sizes, like=batch.response_mask),
        log_ratio(log_probs, batch.rollout_log_probs),
        batch.advantages,
        batch.loss_mask,
        batch.rollout_log_probs if strategy.weighs_shares else None,
    )
    # There is no start that the searches had in common.
    return replace(found, value_share_before=math.nan, gradient_share_before=math.nan)


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
        dropped=join([p.surrogate.dropped for p in parts]),
        capped=join([p.surrogate.capped for p in parts]),
        reference_log_probs=join(references) if references else None,
        loss=float(sum(p.loss for p in parts)),
        grad_norm=grad_norm,
        learning_rate=learning_rate,
        version=version,
        skipped=skipped,
    )
