"""The frozen model that a KL term compares the policy with."""

import copy

import torch
from torch import Tensor, nn

from bapo_lightning.models.policy import Policy
from bapo_lightning.types import TokenBatch


class Reference(nn.Module):
    """Scores tokens under the weights that training started from.

    Args:
        policy: With LoRA the policy itself is used, its adapters switched off, at no extra memory. Otherwise its
            weights are copied now, and frozen.
    """

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.frozen: Policy | None = None
        # In a list, so that the policy is not registered a second time as a submodule.
        self._adapted = [policy] if policy.has_adapters else []
        if not policy.has_adapters:
            self.frozen = copy.deepcopy(policy)
            self.frozen.requires_grad_(False)

    @torch.no_grad()
    def log_probs(self, batch: TokenBatch) -> Tensor:
        """Log-probs of the sampled tokens.

        Args:
            batch: B responses of at most T tokens.

        Returns:
            [B, T] float32, nats; 0 under padding.
        """
        if self.frozen is not None:
            return self.frozen.score(batch).log_probs
        policy = self._adapted[0]
        with policy.adapters_off():
            return policy.score(batch).log_probs


def make_reference(policy: Policy, *, needed: bool) -> Reference | None:
    """The reference of a policy, or None when nothing uses one (no memory is spent then)."""
    return Reference(policy) if needed else None
