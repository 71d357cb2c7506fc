"""What an update was like by the age of its tokens: how far off-policy is old data, and does it still teach?"""

import torch
from torch import Tensor

from bapo_lightning.objective import kl_penalty, masked_sum
from bapo_lightning.types import MetricSum
from bapo_lightning.update import UpdateRecord

AGE_BINS: dict[str, tuple[int, int | None]] = {
    "0": (0, 0),
    "1": (1, 1),
    "2-3": (2, 3),
    "4-7": (4, 7),
    "8-15": (8, 15),
    "16-31": (16, 31),
    "32+": (32, None),
}
"""Label → first and last age, in policy updates between the weights that sampled a token and those being updated."""


def age_sums(update: UpdateRecord) -> dict[str, MetricSum]:
    """Sums over this rank's tokens in the loss, by age; add them over ranks before dividing.

    Args:
        update: The update of this rank.

    Returns:
        Tag → (sum, count). The same tags whatever the data, so that ranks can add them. ``ratio_square`` is for
        `effective_sizes`.
    """
    batch, mask = update.batch, update.batch.loss_mask
    age = update.version - batch.policy_versions
    ratio = update.log_ratio.clamp(max=20.0).exp()
    divergence = kl_penalty(batch.rollout_log_probs, update.log_probs, "k3")
    pull = torch.where(update.clipped, 0.0, ratio * batch.advantages.abs() * batch.rollout_log_probs.exp())
    positive = batch.advantages > 0

    def total(values: Tensor, part: Tensor) -> Tensor:
        return torch.where(part, values, 0.0).sum()

    sums: dict[str, MetricSum] = {}
    for label, (first, last) in AGE_BINS.items():
        part = mask & (age >= first)
        if last is not None:
            part = part & (age <= last)
        sums |= {
            f"age/{label}/token_share": MetricSum(part.sum(), mask.sum()),
            f"age/{label}/ratio": masked_sum(ratio, part),
            f"age/{label}/ratio_square": masked_sum(ratio.square(), part),
            f"age/{label}/fraction_clipped": MetricSum((update.clipped & part).sum(), part.sum()),
            f"age/{label}/kl": masked_sum(divergence, part),
            f"age/{label}/gradient_share": MetricSum(total(pull, part & positive), total(pull, part)),
        }
    return sums


def effective_sizes(means: dict[str, float]) -> dict[str, float]:
    """Turn the means of `age_sums` into effective sample sizes, (mean r)²/mean r², as a share of the tokens.

    Args:
        means: Tag → mean over all ranks; tags of ages without tokens are missing.

    Returns:
        The same tags with ``effective_size`` in place of ``ratio_square``, and without ages that have no tokens.
    """
    result = {tag: mean for tag, mean in means.items() if not tag.endswith("/ratio_square")}
    for label in AGE_BINS:
        square = means.get(f"age/{label}/ratio_square")
        if square is None:
            result.pop(f"age/{label}/token_share", None)
        elif square > 0:
            result[f"age/{label}/effective_size"] = means[f"age/{label}/ratio"] ** 2 / square
    return result
