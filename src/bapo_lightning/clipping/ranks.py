"""Sums and values over all ranks. Without ``torch.distributed`` there is one rank."""

import torch
import torch.distributed as dist
from torch import Tensor


def has_ranks() -> bool:
    """Whether there is more than one rank."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def sum_over_ranks(sums: Tensor) -> Tensor:
    """Add up a vector of every rank, in one all-reduce.

    Args:
        sums: [N]; overwritten.

    Returns:
        The same tensor, equal on all ranks.
    """
    if has_ranks():
        dist.all_reduce(sums)
    return sums


def gather_over_ranks(values: Tensor) -> Tensor:
    """Put the values of every rank under each other, in two collectives: how many, and which.

    Args:
        values: [n, …]; n may differ between ranks and be 0.

    Returns:
        [N, …], in the order of the ranks, equal on all of them.
    """
    if not has_ranks():
        return values
    counts = torch.zeros(dist.get_world_size(), dtype=torch.int64, device=values.device)
    counts[dist.get_rank()] = len(values)
    dist.all_reduce(counts)
    sizes = counts.tolist()
    padded = values.new_zeros((max(sizes), *values.shape[1:]))
    padded[: len(values)] = values
    gathered = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(gathered, padded)
    return torch.cat([part[:size] for part, size in zip(gathered, sizes, strict=True)])
