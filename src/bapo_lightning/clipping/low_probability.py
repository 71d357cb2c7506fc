"""Quieting improbable tokens."""

from bapo_lightning.clipping.around import UpdateTokens
from bapo_lightning.clipping.base import ClippingStrategy
from bapo_lightning.clipping.clip_higher import ClipHigher
from bapo_lightning.clipping.reweighted import ReweightedStrategy, TokenWeights
from bapo_lightning.errors import InputError


class LowProbabilityDamping(ReweightedStrategy):
    """Advantage reweighting: the less probable a token was, the less it counts.

    Formula: the inner objective times alpha·π_rollout + (1 − alpha).
    Source: arXiv 2505.12929 ("advantage reweighting"). Defaults are those of its script: alpha 0.2, window
    [0.8, 1.24].
    Helps: gradients of improbable tokens are the largest and drown the others.
    Refuses: an alpha outside [0, 1]; to run without behaviour log-probs.

    Args:
        inner: What clips; null is ``ClipHigher(low=0.8, high=1.24)``, as in the source's script.
        alpha: How much depends on the probability, in [0, 1]; 0 is the inner strategy alone.

    Raises:
        InputError: ``alpha`` is out of its range.
    """

    def __init__(self, inner: ClippingStrategy | None = None, alpha: float = 0.2) -> None:
        super().__init__(ClipHigher(low=0.8, high=1.24) if inner is None else inner)
        if not 0.0 <= alpha <= 1.0:
            raise InputError(f"alpha must lie in [0, 1], got {alpha}")
        self.alpha = float(alpha)

    def weights(self, tokens: UpdateTokens) -> TokenWeights:
        """alpha·π_rollout + (1 − alpha)."""
        probability = tokens.require("rollout_log_probs", self).exp()
        return TokenWeights(weight=self.alpha * probability + (1.0 - self.alpha))
