"""Pure tensor functions between log-probs and the loss. No state, no ranks, no models.

- ``ratio.py``: log π_θ − log π_rollout, and how many tokens' worth of signal the ratios leave
- ``aggregation.py``: from a value per token to one number, with a denominator known for the whole update
- ``kl.py``: estimators of the divergence from a reference policy
- ``entropy.py``: entropy of next-token distributions

What belongs here is a formula of tensors ``[B, T]`` that more than one strategy or module needs. To add one:
a function in the file of its subject (or a new file), its entry in ``__all__``, a test with numbers worked
out by hand. Whatever stands under a mask, NaN included, must reach neither value nor gradient.
"""

from bapo_lightning.objective.aggregation import (
    AggregationMode,
    aggregate,
    aggregation_denominator,
    masked_mean,
    masked_sum,
)
from bapo_lightning.objective.entropy import entropy_from_logits
from bapo_lightning.objective.kl import KLEstimator, kl_penalty
from bapo_lightning.objective.ratio import effective_sample_size, log_ratio

__all__ = [
    "AggregationMode",
    "KLEstimator",
    "aggregate",
    "aggregation_denominator",
    "effective_sample_size",
    "entropy_from_logits",
    "kl_penalty",
    "log_ratio",
    "masked_mean",
    "masked_sum",
]
