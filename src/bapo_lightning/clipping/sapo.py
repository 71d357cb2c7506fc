"""A soft gate instead of a bound."""

import torch
from torch import Tensor

from bapo_lightning.clipping.inputs import require_number
from bapo_lightning.clipping.open_window import OpenWindowStrategy
from bapo_lightning.clipping.records import ClipBounds, Surrogate
from bapo_lightning.clipping.surrogate import at_least_float32, capped_ratio, objective_with_derivative


class SAPO(OpenWindowStrategy):
    """Soft adaptive policy optimization: a sigmoid fades a token out as its ratio leaves 1, on both sides.

    Formula: (4/τ)·σ(τ(r − 1))·A, with τ by the sign of A. At r = 1 its gradient is A.
    Source: SAPO, arXiv 2511.20347. Defaults are the paper's; negative tokens fade a little faster.
    Helps: no edge at which a token loses everything at once.
    Refuses: a temperature that is not positive. Nothing is clipped, except where the gate underflows to exactly 0
    (ratios of some hundred), which is reported as clipped.

    Args:
        tau_positive: Sharpness of the gate for A > 0, > 0.
        tau_negative: Sharpness of the gate for A < 0, > 0.

    Raises:
        InputError: An argument is not positive.
    """

    def __init__(self, tau_positive: float = 1.0, tau_negative: float = 1.05) -> None:
        self.tau_positive = require_number("tau_positive", tau_positive, above=0.0)
        self.tau_negative = require_number("tau_negative", tau_negative, above=0.0)

    def surrogate(self, log_ratio: Tensor, advantages: Tensor, bounds: ClipBounds) -> Surrogate:
        """(4/τ)·σ(τ(r − 1))·A."""
        log_ratio = at_least_float32(log_ratio)
        advantages = advantages.to(log_ratio.dtype)
        ratio = capped_ratio(log_ratio.detach())
        # Typed: two plain numbers would meet in torch's default type, which is bf16 in a bf16 run.
        tau = torch.where(advantages > 0, ratio.new_tensor(self.tau_positive), ratio.new_tensor(self.tau_negative))
        gate = torch.sigmoid(tau * (ratio - 1.0))
        # σ(−x) instead of 1 − σ(x): the difference is 0 long before the slope is.
        slope = 4.0 * gate * torch.sigmoid(tau * (1.0 - ratio)) * ratio
        silent = slope * advantages == 0
        return Surrogate(
            objective_with_derivative(log_ratio, 4.0 / tau * gate * advantages, slope * advantages),
            clipped_low=silent & (advantages < 0) & (ratio < 1.0),
            clipped_high=silent & (advantages > 0),
            clipped_dual=silent & (advantages < 0) & (ratio >= 1.0),
        )
