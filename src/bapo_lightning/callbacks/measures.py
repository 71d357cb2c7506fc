"""What an update was like, as sums and counts over its tokens. Meaning, unit and normaliser: docs/metrics.md."""

import math

import torch
from torch import Tensor

from bapo_lightning.objective import kl_penalty, masked_sum
from bapo_lightning.types import MetricSum
from bapo_lightning.update import UpdateRecord


def update_sums(update: UpdateRecord) -> dict[str, MetricSum]:
    """Sums over this rank's tokens in the loss; add them over ranks before dividing.

    Args:
        update: The update of this rank.

    Returns:
        Tag → (sum, count). The same tags whatever the data, so that ranks can add them.
    """
    batch, mask = update.batch, update.batch.loss_mask
    positive, negative = mask & (batch.advantages > 0), mask & (batch.advantages < 0)
    ratio = update.log_ratio.clamp(max=20.0).exp()
    age = (update.version - batch.policy_versions).float()
    probability = batch.rollout_log_probs.exp()

    def share(part: Tensor, whole: Tensor) -> MetricSum:
        return MetricSum((part & whole).sum(), whole.sum())

    sums = {
        "policy/entropy": masked_sum(update.entropy, mask),
        "policy/entropy_positive": masked_sum(update.entropy, positive),
        "policy/entropy_negative": masked_sum(update.entropy, negative),
        "policy/kl": masked_sum(kl_penalty(batch.rollout_log_probs, update.log_probs, "k3"), mask),
        "policy/probability_clipped_high": masked_sum(probability, mask & update.clipped_high),
        "policy/probability_clipped_low": masked_sum(probability, mask & update.clipped_low),
        "ratio/mean": masked_sum(ratio, mask),
        "clip/fraction_low": share(update.clipped_low, mask),
        "clip/fraction_high": share(update.clipped_high, mask),
        "clip/fraction_dual": share(update.clipped_dual, mask),
        "clip/fraction_dropped": share(update.dropped, mask),
        "clip/fraction_capped": share(update.capped, mask),
        "clip/fraction_low_of_negative": share(update.clipped_low, negative),
        "clip/fraction_high_of_positive": share(update.clipped_high, positive),
        "clip/bound_low": bound_sum(update.bounds.low, mask),
        "clip/bound_high": bound_sum(update.bounds.high, mask),
        "balance/token_share": share(positive, positive | negative),
        "staleness/mean": masked_sum(age, mask),
        "advantage/mean_absolute": masked_sum(batch.advantages.abs(), mask),
        "optim/loss": MetricSum(update.loss, 1),
    }
    lengths = batch.response_mask.sum(1).float()
    for name, tokens in (("positive", positive), ("negative", negative)):
        rows = tokens.any(1)
        sums[f"balance/length_{name}"] = MetricSum(lengths[rows].sum(), rows.sum())
    if update.reference_log_probs is not None:
        penalty = kl_penalty(update.log_probs, update.reference_log_probs, "k3")
        sums["policy/kl_reference"] = masked_sum(penalty, mask)
    return sums


def update_values(update: UpdateRecord) -> dict[str, float]:
    """Numbers that every rank has alike: bounds search and optimizer."""
    bounds = update.bounds
    balance = {
        "clip/measure": bounds.measure,
        "balance/value_share": bounds.value_share,
        "balance/gradient_share": bounds.gradient_share,
        "balance/value_share_before": bounds.value_share_before,
        "balance/gradient_share_before": bounds.gradient_share_before,
    }
    return {
        # An update without advantages has no balance; a share of 1 would only look like one. What a strategy does not
        # measure is NaN.
        **{tag: value for tag, value in balance.items() if not (bounds.empty or math.isnan(value))},
        "clip/search_steps": float(bounds.steps),
        "clip/saturated": float(bounds.saturated),
        "clip/reachable": float(bounds.reachable),
        "optim/grad_norm": update.grad_norm,
        "optim/lr": update.learning_rate,
        "optim/skipped": float(update.skipped),
    }


def percentiles(values: Tensor, name: str) -> dict[str, float]:
    """5th, 50th and 95th percentile and the maximum of values [N]; nothing for none."""
    if values.numel() == 0:
        return {}
    points = torch.quantile(values, torch.tensor([0.05, 0.5, 0.95])).tolist()
    return {
        **{f"{name}/{label}": point for label, point in zip(("p05", "p50", "p95"), points, strict=True)},
        f"{name}/max": float(values.max()),
    }


def bound_sum(bound: float | Tensor, mask: Tensor) -> MetricSum:
    """A bound per token is averaged over tokens; one for the update is itself; none has no curve."""
    if isinstance(bound, Tensor):
        return masked_sum(bound.expand(mask.shape), mask)
    return MetricSum(0.0, 0) if math.isinf(bound) else MetricSum(bound, 1)
