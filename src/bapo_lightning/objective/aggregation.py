"""From one value per token to one number, the same however an update is cut."""

from typing import Literal, get_args

import torch
from torch import Tensor

from bapo_lightning.errors import InputError
from bapo_lightning.types import MetricSum

AggregationMode = Literal["token_mean", "sequence_mean", "constant"]
"""``token_mean``: every token weighs the same (DAPO, arXiv 2503.14476); ``sequence_mean``: every response
does (GRPO, arXiv 2402.03300); ``constant``: sum over a constant length (Dr. GRPO, arXiv 2503.20783)."""


def aggregate(
    values: Tensor,
    mask: Tensor,
    mode: AggregationMode = "token_mean",
    denominator: Tensor | float | None = None,
) -> Tensor:
    """Sum values over tokens and divide by one denominator.

    The results of the micro-batches of an update add up to that of the whole if all get its denominator (a
    response must not be cut in two). Where gradients are averaged over ranks, pass the denominator of all
    ranks divided by their number.

    Args:
        values: [B, T]; anything may stand under a masked position, NaN included.
        mask: [B, T] bool; True for tokens that count.
        mode: What is summed: values (``token_mean``, ``constant``) or means of responses (``sequence_mean``).
        denominator: >= 0, 0 counts as 1; `aggregation_denominator` of the whole update. None: that of this
            mask.

    Returns:
        A scalar, float32 or wider; 0 with zero gradients when nothing is unmasked.

    Raises:
        InputError: Unknown mode.
        ValueError: Shapes of values and mask differ.
    """
    _require_mode(mode)
    kept, mask = _kept(values, mask)
    if denominator is None:
        denominator = aggregation_denominator(mask, mode)
    if mode == "sequence_mean":
        kept = kept.sum(1) / mask.sum(1).clamp(min=1)
    divisor = denominator.to(kept) if isinstance(denominator, Tensor) else kept.new_full((), denominator)
    return kept.sum() / torch.where(divisor == 0, 1.0, divisor)


def aggregation_denominator(mask: Tensor, mode: AggregationMode = "token_mean", length: int | None = None) -> Tensor:
    """Count what `aggregate` divides by. Counts of micro-batches and of ranks add up.

    Args:
        mask: [B, T] bool; True for tokens that count.
        mode: ``token_mean`` counts tokens; ``sequence_mean`` responses with at least one token that counts;
            ``constant`` B × length, masked or not.
        length: Tokens per response for ``constant``, T by default. Give the response limit of the run where
            micro-batches are cut to their own width.

    Returns:
        A scalar, int64, on the mask's device.

    Raises:
        InputError: Unknown mode.
    """
    _require_mode(mode)
    mask = mask.bool()
    if mode == "token_mean":
        return mask.sum()
    if mode == "sequence_mean":
        return mask.any(1).sum()
    num_responses, width = mask.shape
    return torch.tensor(num_responses * (width if length is None else length), device=mask.device)


def masked_sum(values: Tensor, mask: Tensor) -> MetricSum:
    """Sum and count of a metric over unmasked tokens.

    Args:
        values: [B, T]; no gradient is kept.
        mask: [B, T] bool; True for tokens that count.

    Returns:
        Scalars on the device of ``values``; a count of 0 means that there is nothing to report.
    """
    kept, mask = _kept(values.detach(), mask)
    return MetricSum(total=kept.sum(), count=mask.sum())


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over unmasked tokens of ``values`` [B, T]; differentiable, 0 when nothing is unmasked."""
    return aggregate(values, mask, "token_mean")


def _kept(values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    if values.shape != mask.shape:
        raise ValueError(f"values {tuple(values.shape)} and mask {tuple(mask.shape)} must have one shape")
    mask = mask.bool()
    if values.dtype not in (torch.float32, torch.float64):
        values = values.float()
    return torch.where(mask, values, 0.0), mask


def _require_mode(mode: str) -> None:
    if mode not in get_args(AggregationMode):
        raise InputError(f"aggregation mode must be one of {', '.join(get_args(AggregationMode))}, got {mode!r}")
