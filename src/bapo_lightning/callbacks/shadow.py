"""What other clipping strategies would have done with an update."""

from collections.abc import Sequence

import torch
from torch import Tensor

from bapo_lightning.callbacks.measures import bound_sum
from bapo_lightning.clipping import ClippingStrategy
from bapo_lightning.errors import InputError
from bapo_lightning.types import MetricSum
from bapo_lightning.update import UpdateRecord, find_bounds


def name_shadows(strategies: Sequence[ClippingStrategy]) -> dict[str, ClippingStrategy]:
    """Name strategies by their class, numbered from the second one of a class on (``FixedClip_2``)."""
    named: dict[str, ClippingStrategy] = {}
    for strategy in strategies:
        name = kind = type(strategy).__name__
        number = 1
        while name in named:
            number += 1
            name = f"{kind}_{number}"
        named[name] = strategy
    return named


def require_same_inputs(shadows: dict[str, ClippingStrategy], trained: ClippingStrategy) -> None:
    """Refuse shadows that would cost a forward pass.

    Raises:
        InputError: A shadow needs log-probs of the proximal policy, and the trained strategy does not.
    """
    for name, strategy in shadows.items():
        if strategy.needs_proximal and not trained.needs_proximal:
            raise InputError(
                f"EntropyClipMonitor.shadow: {name} needs log-probs of the weights at the phase's start, a forward "
                f"pass that {type(trained).__name__} does not make; train with a strategy that needs them too, or "
                "leave this shadow out"
            )


def shadow_metrics(
    name: str, strategy: ClippingStrategy, update: UpdateRecord
) -> tuple[dict[str, MetricSum], dict[str, float]]:
    """Let a strategy judge an update that another one trained on, from the same log-probs. Collective.

    Args:
        name: What it is called in the tags.
        strategy: The shadow.
        update: The update of this rank.

    Returns:
        Sums over this rank's tokens; and numbers that every rank has alike.
    """
    batch, mask = update.batch, update.batch.loss_mask
    bounds = find_bounds(strategy, batch, update.log_probs, update.entropy)
    with torch.no_grad():
        judged = strategy.surrogate(update.log_ratio, batch.advantages, bounds)

    def share(part: Tensor) -> MetricSum:
        return MetricSum((part & mask).sum(), mask.sum())

    sums = {
        "fraction_low": share(judged.clipped_low),
        "fraction_high": share(judged.clipped_high),
        "fraction_clipped": share(judged.clipped),
        "disagreement": share(judged.clipped ^ update.clipped),
        "bound_low": bound_sum(bounds.low, mask),
        "bound_high": bound_sum(bounds.high, mask),
    }
    values = {} if bounds.empty else {"value_share": bounds.value_share, "gradient_share": bounds.gradient_share}
    return (
        {f"shadow/{name}/{tag}": total for tag, total in sums.items()},
        {f"shadow/{name}/{tag}": value for tag, value in values.items()},
    )
