"""Estimators of KL(π_θ ‖ π_ref) from log-probs of sampled tokens (Schulman 2020, joschu.net/blog)."""

from typing import Literal, get_args

from torch import Tensor

from bapo_lightning.errors import InputError
from bapo_lightning.objective.ratio import log_ratio

KLEstimator = Literal["k1", "k2", "k3"]

_MAX_EXPONENT = 20.0


def kl_penalty(
    log_probs: Tensor,
    reference_log_probs: Tensor,
    estimator: KLEstimator = "k1",
    mask: Tensor | None = None,
) -> Tensor:
    """Penalty per token. With d = log π_ref − log π_θ: k1 is −d, k2 is d²/2, k3 is exp(d) − d − 1.

    Value and gradient are finite for every finite d: beyond d = 20 the exponential of k3 goes on as its
    tangent, so it still rises and still pulls the policy towards the reference.

    Args:
        log_probs: [B, T] nats, log π_θ; differentiable.
        reference_log_probs: [B, T] nats, log π_ref; a constant.
        estimator: ``k1`` is unbiased and may be negative; ``k2`` is biased, >= 0; ``k3`` is unbiased, >= 0.
        mask: [B, T] bool; True for tokens that count. Elsewhere the penalty and its gradient are 0, whatever
            stands there, NaN included. None: every token counts.

    Returns:
        [B, T] nats, float32; float64 if both inputs are.

    Raises:
        InputError: Unknown estimator.
    """
    if estimator not in get_args(KLEstimator):
        raise InputError(f"estimator must be one of {', '.join(get_args(KLEstimator))}, got {estimator!r}")
    difference = -log_ratio(log_probs, reference_log_probs, mask)
    if estimator == "k1":
        return -difference
    if estimator == "k2":
        return 0.5 * difference.square()
    # Clamping the argument alone would leave a gradient of the wrong sign beyond the clamp.
    exponent = difference.clamp(max=_MAX_EXPONENT)
    return exponent.expm1() + exponent.exp() * (difference - exponent) - difference
