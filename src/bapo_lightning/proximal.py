"""Log-probs of a phase's tokens under the weights that it begins with (π_proximal).

Strategies that split the ratio there ask for them (`ClippingStrategy.needs_proximal`). They are computed once a phase,
before its first update, and travel in the checkpoint, since those weights are gone afterwards.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor

from bapo_lightning.models import Policy
from bapo_lightning.types import TokenBatch, Trajectory


@torch.no_grad()
def proximal_log_probs(
    trajectories: Sequence[Trajectory],
    policy: Policy,
    *,
    responses_at_once: int,
    temperature: float,
    device: torch.device,
    precision: AbstractContextManager[None],
) -> Tensor:
    """Score the trajectories of a phase with the present weights. Collective: ranks share the work.

    Args:
        trajectories: Those of the phase, on every rank the same; at least one.
        policy: With the weights of the phase's start.
        responses_at_once: Responses in one forward pass, over all ranks.
        temperature: The sampling temperature.
        device: Where the policy lies.
        precision: The Trainer's precision context.

    Returns:
        [K] float32 nats, on the CPU: one for each response token, trajectory by trajectory.
    """
    several = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    rank, world_size = (dist.get_rank(), dist.get_world_size()) if several else (0, 1)
    num_each = -(-len(trajectories) // world_size)
    # Every rank scores equally many, some of them twice, so that all run the same number of forward passes.
    mine = [trajectories[(rank * num_each + i) % len(trajectories)] for i in range(num_each)]
    at_once = max(responses_at_once // world_size, 1)
    scored: list[Tensor] = []
    with precision:
        for start in range(0, num_each, at_once):
            rows = mine[start : start + at_once]
            batch = TokenBatch.from_trajectories(
                rows, pad_id=policy.pad_id, temperature=temperature, length_limit=1
            ).to(device)
            log_probs = policy.score(batch).log_probs.float().cpu()
            scored += [row[: len(t.completion.token_ids)] for row, t in zip(log_probs, rows, strict=True)]
    if several:
        parts: list[list[Tensor]] = [[] for _ in range(world_size)]
        dist.all_gather_object(parts, scored)
        scored = [row for part in parts for row in part][: len(trajectories)]
    return torch.cat(scored)


def with_proximal_log_probs(groups: Sequence[Sequence[Trajectory]], log_probs: Tensor) -> list[tuple[Trajectory, ...]]:
    """Hand the log-probs of `proximal_log_probs` to the trajectories they belong to.

    Args:
        groups: The groups of the phase, in the order in which they were scored.
        log_probs: [K] nats.

    Returns:
        The same groups with ``proximal_log_probs`` set.
    """
    values, start = log_probs.tolist(), 0
    result = []
    for group in groups:
        members = []
        for trajectory in group:
            stop = start + len(trajectory.completion.token_ids)
            members.append(replace(trajectory, proximal_log_probs=tuple(values[start:stop])))
            start = stop
        result.append(tuple(members))
    return result
