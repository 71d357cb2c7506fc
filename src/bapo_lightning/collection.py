"""One rollout phase: prompts in, scored groups out, the same on every rank."""

from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist

from bapo_lightning.advantages import AdvantageEstimator
from bapo_lightning.deck import EncodedPrompt
from bapo_lightning.errors import InputError
from bapo_lightning.rewards import Reward
from bapo_lightning.rollout import RolloutEngine
from bapo_lightning.seeding import derive_seed
from bapo_lightning.types import GenerationRequest, SamplingSettings, Trajectory


@dataclass(frozen=True)
class GroupRequest:
    """One group to be sampled."""

    encoded: EncodedPrompt
    group_id: int
    """Unique in a run."""


def sample_groups(
    groups: Sequence[GroupRequest],
    *,
    group_size: int,
    engine: RolloutEngine,
    sampling: SamplingSettings,
    seed: int,
    phase: int,
    precision: AbstractContextManager[None] | None = None,
) -> list[Trajectory]:
    """Sample ``group_size`` responses to each prompt, unscored.

    Each response has a stream of its own, named by (seed, phase, prompt, group, sample): two ranks never sample alike,
    and which rank samples a group does not change its text.

    Args:
        groups: The groups of this rank.
        group_size: Responses a prompt.
        engine: Samples; its weights are up to date.
        sampling: Temperature and limits.
        seed: The seed of the run.
        phase: Rollout phase, from 0.
        precision: The Trainer's precision context.

    Returns:
        Trajectories, group by group; the reward is still missing.
    """
    requests = [
        GenerationRequest(
            prompt_ids=group.encoded.ids,
            seed=derive_seed(seed, "rollout", phase, group.encoded.prompt.id, group.group_id, sample),
            key=f"{group.encoded.prompt.id}/{sample}",
        )
        for group in groups
        for sample in range(group_size)
    ]
    completions = engine.generate(requests, sampling, precision)
    for request, completion in zip(requests, completions, strict=True):
        if not len(completion.token_ids) == len(completion.log_probs) == len(completion.policy_versions):
            raise RuntimeError(
                f"{type(engine).__name__} returned {len(completion.token_ids)} ids, {len(completion.log_probs)} "
                f"log-probs and {len(completion.policy_versions)} versions for {request.key!r}; they must be as many"
            )
    owners = [(group, sample) for group in groups for sample in range(group_size)]
    return [
        Trajectory(
            prompt=group.encoded.prompt,
            prompt_ids=group.encoded.ids,
            completion=completion,
            group_id=group.group_id,
            sample_index=sample,
            sampled_version=engine.version,
            text=engine.policy.decode(completion),
        )
        for (group, sample), completion in zip(owners, completions, strict=True)
    ]


def score(trajectories: Sequence[Trajectory], reward: Reward) -> list[Trajectory]:
    """Give every trajectory its reward and status; a missing reward stays None."""
    scores = reward.score(
        [t.text for t in trajectories],
        [t.prompt.answer for t in trajectories],
        [t.completion.finish_reason for t in trajectories],
    )
    if len(scores) != len(trajectories):
        raise InputError(
            f"data.reward: {type(reward).__name__} returned {len(scores)} scores for {len(trajectories)} responses; "
            "it must return one for each, in order"
        )
    return [
        replace(trajectory, reward=None if verdict.is_missing else verdict.value, reward_status=verdict.status)
        for trajectory, verdict in zip(trajectories, scores, strict=True)
    ]


def gather(local: Sequence[Trajectory]) -> list[Trajectory]:
    """Collect the trajectories of all ranks on every rank, ordered by group and sample.

    With all groups everywhere, updates and checkpoints do not depend on which rank sampled what.
    """
    trajectories = list(local)
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        parts: list[list[Trajectory]] = [[] for _ in range(dist.get_world_size())]
        dist.all_gather_object(parts, trajectories)
        trajectories = [trajectory for part in parts for trajectory in part]
    return sorted(trajectories, key=lambda t: (t.group_id, t.sample_index))


def assign_advantages(
    trajectories: Sequence[Trajectory], estimator: AdvantageEstimator, phase: int
) -> list[Trajectory]:
    """Compute advantages from the rewards of whole groups.

    Args:
        trajectories: All trajectories of a phase.
        estimator: Turns rewards and groups into advantages; missing rewards are left out.
        phase: For the message.

    Returns:
        The trajectories with their advantages; one without a reward has 0.

    Raises:
        InputError: No reward of the phase could be computed.
    """
    known = torch.tensor([t.reward is not None for t in trajectories])
    if not bool(known.any()):
        statuses = Counter(t.reward_status for t in trajectories)
        counts = ", ".join(f"{status} {count}" for status, count in statuses.most_common())
        raise InputError(
            f"data.reward: not one of the {len(trajectories)} rewards of rollout phase {phase} could be computed "
            f"({counts}), so there is nothing to learn from; check the gold answers and the reward's limits"
        )
    rewards = torch.tensor([0.0 if t.reward is None else t.reward for t in trajectories], dtype=torch.float64)
    group_ids = torch.tensor([t.group_id for t in trajectories])
    advantages = estimator(rewards, group_ids, known).tolist()
    return [t.with_advantage(a) for t, a in zip(trajectories, advantages, strict=True)]


def rollout_metrics(trajectories: Sequence[Trajectory], group_size: int) -> dict[str, float]:
    """Describe a phase. All means are over all ranks' responses.

    Args:
        trajectories: All trajectories of the phase, on every rank the same.
        group_size: Responses a prompt.

    Returns:
        Tag → value; a tag without a value (every reward missing, say) is left out.
    """
    count = len(trajectories)
    lengths = [len(t.completion.token_ids) for t in trajectories]
    rewards = [t.reward for t in trajectories if t.reward is not None]
    by_group: dict[int, set[float]] = {}
    for t in trajectories:
        if t.reward is not None:
            by_group.setdefault(t.group_id, set()).add(t.reward)
    metrics = {
        "rollout/length": sum(lengths) / count,
        "rollout/truncated": sum(t.completion.finish_reason == "length" for t in trajectories) / count,
        "rollout/success": sum(t.reward_status == "correct" for t in trajectories) / count,
        "rollout/missing_rewards": float(count - len(rewards)),
        "rollout/uniform_groups": sum(len(values) <= 1 for values in by_group.values()) * group_size / count,
    }
    if rewards:
        metrics["rollout/reward"] = sum(rewards) / len(rewards)
    for status, number in Counter(t.reward_status for t in trajectories).items():
        metrics[f"rollout/status_{status}"] = number / count
    for name, solved in (("success", True), ("failure", False)):
        chosen = [n for n, t in zip(lengths, trajectories, strict=True) if (t.reward_status == "correct") is solved]
        if chosen:
            metrics[f"rollout/length_{name}"] = sum(chosen) / len(chosen)
    return metrics
