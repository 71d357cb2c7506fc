"""The forward passes that give a clipping strategy the log-probs of a whole update before its first backward pass."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal

import psutil
import torch
from torch import Tensor

from bapo_lightning.micro_batches import MicroBatch
from bapo_lightning.models import Policy, TokenScores

StatisticsPass = Literal["auto", "keep_graphs", "extra_forward"]
"""``keep_graphs``: one forward pass a micro-batch, whose graphs wait for the bounds: no extra time, more memory.
``extra_forward``: a forward pass without gradient first, and then another one: more time, no extra memory. ``auto``
measures the first graph and keeps all of them if they fit into half of the memory that is free."""

_SHARE_OF_FREE_MEMORY = 0.5


def score_before_bounds(
    policy: Policy,
    parts: Sequence[MicroBatch],
    mode: StatisticsPass,
    agree: Callable[[bool], bool],
) -> tuple[list[TokenScores], bool]:
    """Score every micro-batch of an update.

    Args:
        policy: The policy.
        parts: At least one.
        mode: What is spent, time or memory.
        agree: Turns this rank's wish to keep graphs into one that all ranks have: a sharded model must run the same
            number of passes everywhere.

    Returns:
        Scores of each part; and whether they carry the graph that is to be trained on.
    """
    if mode == "keep_graphs":
        return [policy.score(part.batch) for part in parts], True
    if mode == "auto":
        weights = {tensor.untyped_storage().data_ptr() for tensor in policy.state_dict(keep_vars=True).values()}
        with GraphSize(weights) as graph:
            first = policy.score(parts[0].batch)
        wanted = graph.num_bytes * _num_tokens(parts) / max(_num_tokens(parts[:1]), 1)
        if agree(wanted <= _SHARE_OF_FREE_MEMORY * free_bytes(first.log_probs.device)):
            return [first, *(policy.score(part.batch) for part in parts[1:])], True
        scores, rest = [TokenScores(first.log_probs.detach(), first.entropy.detach())], parts[1:]
        del first
    else:
        scores, rest = [], parts
    with torch.no_grad():
        scores += [policy.score(part.batch) for part in rest]
    # Autocast keeps the copies it made without gradient and would hand them to the passes that need one.
    torch.clear_autocast_cache()
    return scores, False


class GraphSize(AbstractContextManager["GraphSize"]):
    """Counts the bytes that autograd saves inside the block, each storage once.

    Args:
        known: Addresses of storages that are there anyway, such as the weights'.
    """

    def __init__(self, known: set[int]) -> None:
        self.num_bytes = 0
        self._seen = set(known)
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._count, lambda tensor: tensor)

    def _count(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._seen:
            self._seen.add(storage.data_ptr())
            self.num_bytes += storage.nbytes()
        # Detached: an output that its own node keeps would keep the node, too.
        return tensor.detach()

    def __enter__(self) -> "GraphSize":
        self._hooks.__enter__()
        return self

    def __exit__(self, *details: Any) -> None:
        self._hooks.__exit__(*details)


def free_bytes(device: torch.device) -> int:
    """Memory that new tensors on a device may take."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(psutil.virtual_memory().available)


def _num_tokens(parts: Sequence[MicroBatch]) -> int:
    """Positions that the model computes, padding included."""
    return sum(part.batch.num_responses * int(part.batch.lengths.max()) for part in parts if part.batch.num_responses)
