"""Rewards compared with those of the same prompt."""

import warnings
from typing import Literal, get_args

import torch
from torch import Tensor

from bapo_lightning.advantages.base import AdvantageEstimator
from bapo_lightning.errors import InputError

Scale = Literal["std", "none", "batch_reward_std", "batch_advantage_std"]


class GroupAdvantage(AdvantageEstimator):
    """(reward − group mean) / group std (GRPO, arXiv 2402.03300, sec. 4.1.2). Defaults are the paper's.

    The standard deviation is unbiased (``ddof=1``) and nothing is added to it. A group whose largest reward
    equals its smallest gives exactly 0; any other is bounded by (n − 1)/√n for n rewards, so none can blow
    up.

    Args:
        scale: ``std`` divides by the standard deviation of the group; ``none`` does not, so that easy and
            hard prompts keep their weight (Dr. GRPO, arXiv 2503.20783); ``batch_reward_std`` divides by the
            deviation of all rewards of the phase (LitePPO, arXiv 2508.08221); ``batch_advantage_std`` by that of
            all differences from their group's mean (REINFORCE++ with baseline, arXiv 2501.03262, response by
            response: their mean is 0 already). Batch deviations leave prompts their weight, too, and depend on
            which prompts a phase has.
        leave_one_out: Whether the mean leaves out the response itself (RLOO, arXiv 2402.14740), which
            multiplies every advantage by n/(n − 1). The deviation stays that of the whole group.

    Raises:
        InputError: Unknown scale.
    """

    def __init__(self, scale: Scale = "std", leave_one_out: bool = False) -> None:
        if scale not in get_args(Scale):
            raise InputError(f"scale must be one of {', '.join(get_args(Scale))}, got {scale!r}")
        self.scale: Scale = scale
        self.leave_one_out = leave_one_out

    def __call__(self, rewards: Tensor, group_ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """Compute the advantages; see `AdvantageEstimator.__call__`. Arithmetic is in float64 on the CPU.

        A group with a single reward has nothing to compare it with: its advantage is 0, and a warning says
        so.

        Raises:
            InputError: A reward is infinite.
        """
        groups = _Groups(rewards, group_ids, mask)
        if bool((groups.count == 1).any()):
            every = bool((groups.count <= 1).all())
            warnings.warn(
                f"{'every group has' if every else 'some groups have'} a single reward: it has nothing to be "
                "compared with and gets advantage 0. Sample several responses per prompt.",
                stacklevel=2,
            )
        count = groups.count.clamp(min=1)
        mean = groups.sum(groups.values) / count
        deviation = torch.where(groups.present, groups.values - mean[groups.index], 0.0)
        advantages = deviation
        if self.leave_one_out:
            advantages = advantages * (count / (count - 1).clamp(min=1))[groups.index]
        if self.scale == "std":
            std = (groups.sum(deviation.square()) / (count - 1).clamp(min=1)).sqrt()
            advantages = advantages / torch.where(std > 0, std, 1.0)[groups.index]
        elif self.scale != "none":
            kept = rewards.detach().to("cpu", torch.float64) if self.scale == "batch_reward_std" else advantages
            kept = kept[groups.present]
            std = kept.std() if len(kept) > 1 else kept.new_zeros(())
            advantages = advantages / torch.where(std > 0, std, 1.0)
        dtype = rewards.dtype if rewards.is_floating_point() else torch.float32
        return advantages.to(device=rewards.device, dtype=dtype)


def uniform_groups(rewards: Tensor, group_ids: Tensor, mask: Tensor | None = None) -> Tensor:
    """Find responses of groups that teach nothing: the largest reward equals the smallest, or there is none.

    Args:
        rewards: [N]; NaN where missing.
        group_ids: [N] int64.
        mask: [N] bool; False where missing.

    Returns:
        [N] bool, on the device of ``rewards``.

    Raises:
        InputError: A reward is infinite.
    """
    groups = _Groups(rewards, group_ids, mask)
    return groups.is_uniform[groups.index].to(rewards.device)


class _Groups:
    """Rewards by group.

    [N]: ``present``; ``values``, above the smallest of the group; ``index``, the group of a response.
    [groups]: ``count`` of rewards; ``is_uniform``.
    """

    def __init__(self, rewards: Tensor, group_ids: Tensor, mask: Tensor | None) -> None:
        rewards = rewards.detach().to("cpu", torch.float64)
        self.present = ~rewards.isnan()
        if mask is not None:
            self.present &= mask.to("cpu", torch.bool)
        infinite = (self.present & rewards.isinf()).nonzero()
        if len(infinite):
            first = int(infinite[0])
            raise InputError(
                f"rewards[{first}] is {float(rewards[first])}: a reward must be finite, or NaN where it is missing"
            )
        ids, self.index = torch.unique(group_ids.to("cpu"), return_inverse=True)
        self._num_groups = len(ids)
        self.count = self.sum(self.present.double())
        largest = self._extreme(torch.where(self.present, rewards, -torch.inf), "amax")
        smallest = self._extreme(torch.where(self.present, rewards, torch.inf), "amin")
        self.is_uniform = largest <= smallest
        # Above the smallest of the group: equal rewards are exactly 0, also after the mean, and rewards that
        # almost agree keep the digits in which they differ.
        self.values = torch.where(self.present, rewards - smallest[self.index], 0.0)

    def sum(self, values: Tensor) -> Tensor:
        return torch.zeros(self._num_groups, dtype=torch.float64).index_add_(0, self.index, values)

    def _extreme(self, values: Tensor, reduce: str) -> Tensor:
        start = torch.zeros(self._num_groups, dtype=torch.float64)
        return start.scatter_reduce_(0, self.index, values, reduce, include_self=False)
