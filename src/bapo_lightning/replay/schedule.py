"""Which groups make which update: E seeded permutations of a phase, cut into updates, shared among ranks."""

from collections.abc import Sequence

import torch

from bapo_lightning.errors import InputError
from bapo_lightning.seeding import generator


def update_order(num_groups: int, groups_per_update: int, inner_epochs: int, seed: int, phase: int) -> list[list[int]]:
    """Order of the updates of one rollout phase.

    Args:
        num_groups: Groups in the phase, all ranks together; ``data.groups_per_phase``.
        groups_per_update: Groups in one update, all ranks together; ``data.groups_per_update``.
        inner_epochs: How often each group is trained on, E >= 1; ``data.inner_epochs``. The last update of the
            phase trains on data that is ``E * num_groups / groups_per_update - 1`` updates old.
        seed: Seed of the run.
        phase: Number of the phase; every phase and inner epoch is shuffled by itself.

    Returns:
        ``E * num_groups / groups_per_update`` updates, each a list of group positions 0 … num_groups-1. Every
        stretch of ``num_groups / groups_per_update`` updates holds each group once. Equal arguments give equal
        orders on every rank and machine.

    Raises:
        InputError: A number is less than 1, or the phase is no whole number of updates.
    """
    for key, value in (
        ("data.groups_per_phase", num_groups),
        ("data.groups_per_update", groups_per_update),
        ("data.inner_epochs", inner_epochs),
    ):
        if value < 1:
            raise InputError(f"{key} must be at least 1, got {value}")
    if num_groups % groups_per_update:
        raise InputError(
            f"data.groups_per_phase ({num_groups}) must be a multiple of data.groups_per_update "
            f"({groups_per_update}): a phase is a whole number of updates"
        )
    order: list[list[int]] = []
    for epoch in range(inner_epochs):
        stream = generator(seed, "update_order", phase, epoch)
        shuffled = torch.randperm(num_groups, generator=stream).tolist()
        order += [shuffled[i : i + groups_per_update] for i in range(0, num_groups, groups_per_update)]
    return order


def rank_share(update: Sequence[int], rank: int, world_size: int, num_tokens: Sequence[int] | None = None) -> list[int]:
    """Groups of one update that a rank trains on; groups stay whole, and ranks get equally many.

    Args:
        update: Group positions of the update, all ranks together.
        rank: This rank, 0 … world_size-1.
        world_size: Number of ranks.
        num_tokens: Tokens of every group of the phase, by position. With them the largest group goes to the rank that
            has the fewest tokens so far, and so on, so that no rank waits long for another; without, ranks take slices.

    Returns:
        This rank's positions, in the order of the update; the shares of all ranks together are the update.

    Raises:
        InputError: The groups cannot be shared equally.
    """
    if len(update) % world_size:
        raise InputError(
            f"data.groups_per_update ({len(update)}) must be a multiple of the number of ranks ({world_size}): "
            "a group stays on one rank"
        )
    share = len(update) // world_size
    if num_tokens is None:
        return list(update[rank * share : (rank + 1) * share])
    owner: dict[int, int] = {}
    tokens, counts = [0] * world_size, [0] * world_size
    for group in sorted(update, key=lambda position: (-num_tokens[position], position)):
        # An index breaks ties, so that all ranks come to the same shares.
        to = min((r for r in range(world_size) if counts[r] < share), key=lambda r: (tokens[r], r))
        owner[group] = to
        tokens[to] += num_tokens[group]
        counts[to] += 1
    return [group for group in update if owner[group] == rank]
