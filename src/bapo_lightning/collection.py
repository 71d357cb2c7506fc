"""One rollout phase: prompts in, scored groups out, the same on every rank."""

from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from bapo_lightning.advantages import AdvantageEstimator
from bapo_lightning.deck import EncodedPrompt
from bapo_lightning.errors import InputError
from bapo_lightning.replay import Group
from bapo_lightning.rewards import Reward
from bapo_lightning.rollout import RolloutEngine
from bapo_lightning.seeding import derive_seed
from bapo_lightning.types import Completion, GenerationRequest, SamplingSettings, Trajectory


def open_group(encoded: EncodedPrompt, group_id: int, group_size: int, version: int) -> Group:
    """A group of which nothing is sampled yet.

    Args:
        encoded: Its prompt.
        group_id: Unique in a run.
        group_size: Responses.
        version: Policy updates behind the weights that will sample its first tokens.
    """
    nothing = Completion((), (), (), "budget")
    return tuple(
        Trajectory(encoded.prompt, encoded.ids, nothing, group_id, sample, sampled_version=version)
        for sample in range(group_size)
    )


def go_on(
    responses: Sequence[Trajectory],
    *,
    engine: RolloutEngine,
    sampling: SamplingSettings,
    token_budget: int | None,
    seed: int,
    precision: AbstractContextManager[None] | None = None,
) -> list[Trajectory]:
    """Sample on each response, from where it stands, with the weights of the engine.

    Each response has a stream of its own, named by (seed, prompt, group, sample): two ranks never sample alike, and
    neither the rank nor the cut into phases changes what is drawn.

    Args:
        responses: Those of this rank; none finished.
        engine: Samples; its weights are up to date.
        sampling: Temperature, and the limit of a whole response.
        token_budget: Most tokens of a response now; None is no bound.
        seed: The seed of the run.
        precision: The Trainer's precision context.

    Returns:
        The responses in order, grown; a finished one is decoded and its reward still missing.
    """
    limits = [sampling.max_new_tokens - len(response.completion.token_ids) for response in responses]
    # A limit that was lowered since may be behind some already; those end where they are.
    waiting = [(r, limit) for r, limit in zip(responses, limits, strict=True) if limit > 0]
    requests = [
        GenerationRequest(
            prompt_ids=response.prompt_ids,
            seed=derive_seed(seed, "rollout", response.prompt.id, response.group_id, response.sample_index),
            response_ids=response.completion.token_ids,
            max_new_tokens=limit if token_budget is None else min(limit, token_budget),
            key=f"{response.prompt.id}/{response.sample_index}",
        )
        for response, limit in waiting
    ]
    sampled = iter(engine.generate(requests, sampling, precision) if requests else [])
    grown: list[Trajectory] = []
    for response, limit in zip(responses, limits, strict=True):
        later = next(sampled) if limit > 0 else Completion((), (), (), "length")
        if not len(later.token_ids) == len(later.log_probs) == len(later.policy_versions):
            raise RuntimeError(
                f"{type(engine).__name__} returned {len(later.token_ids)} ids, {len(later.log_probs)} log-probs and "
                f"{len(later.policy_versions)} versions for group {response.group_id}, sample {response.sample_index}; "
                "they must be as many"
            )
        if (
            later.finish_reason == "length"
            and token_budget is not None
            and token_budget == len(later.token_ids) < limit
        ):
            later = replace(later, finish_reason="budget")
        completion = response.completion + later
        text = "" if later.finish_reason == "budget" else engine.policy.decode(completion)
        grown.append(replace(response, completion=completion, text=text))
    return grown


def score(trajectories: Sequence[Trajectory], reward: Reward) -> list[Trajectory]:
    """Give every trajectory its reward and status; a missing reward stays None."""
    scores = reward.score_trajectories(trajectories)
    if len(scores) != len(trajectories):
        raise InputError(
            f"data.reward: {type(reward).__name__} returned {len(scores)} scores for {len(trajectories)} responses; "
            "it must return one for each, in order"
        )
    return [
        replace(
            trajectory,
            reward=None if verdict.is_missing else verdict.value,
            reward_status=verdict.status,
            reward_parts=verdict.parts,
        )
        for trajectory, verdict in zip(trajectories, scores, strict=True)
    ]


def gather(local: Sequence[Trajectory], process_group: Any = None) -> list[Trajectory]:
    """Collect the trajectories of all ranks on every rank, ordered by group and sample.

    With all groups everywhere, updates and checkpoints do not depend on which rank sampled what.

    Args:
        local: Those of this rank.
        process_group: The group to talk in; None is the one that training uses.
    """
    trajectories = list(local)
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        parts: list[list[Trajectory]] = [[] for _ in range(dist.get_world_size())]
        dist.all_gather_object(parts, trajectories, group=process_group)
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
        lacking = Counter(name for t in trajectories for name, value in t.reward_parts.items() if value is None)
        counts += "".join(f"; {name} missing {count}" for name, count in lacking.most_common())
        raise InputError(
            f"data.reward: not one of the {len(trajectories)} rewards of rollout phase {phase} could be computed "
            f"({counts}), so there is nothing to learn from; check the gold answers and the reward's limits"
        )
    rewards = torch.tensor([0.0 if t.reward is None else t.reward for t in trajectories], dtype=torch.float64)
    group_ids = torch.tensor([t.group_id for t in trajectories])
    advantages = estimator(rewards, group_ids, known).tolist()
    return [t.with_advantage(a) for t, a in zip(trajectories, advantages, strict=True)]


def rollout_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Describe the responses that a phase finished. All means are over all ranks' responses.

    Args:
        trajectories: Whole groups, on every rank the same.

    Returns:
        Tag → value; a tag without a value (every reward missing, say) is left out.
    """
    count = len(trajectories)
    if count == 0:
        return {}
    lengths = [len(t.completion.token_ids) for t in trajectories]
    rewards = [t.reward for t in trajectories if t.reward is not None]
    by_group: dict[int, set[float]] = {t.group_id: set() for t in trajectories}
    for t in trajectories:
        if t.reward is not None:
            by_group[t.group_id].add(t.reward)
    metrics = {
        "rollout/length": sum(lengths) / count,
        "rollout/truncated": sum(t.completion.finish_reason == "length" for t in trajectories) / count,
        "rollout/missing_rewards": float(count - len(rewards)),
        "rollout/uniform_groups": sum(len(values) <= 1 for values in by_group.values()) / len(by_group),
    }
    versions = [len(set(t.completion.policy_versions)) for t in trajectories if t.completion.token_ids]
    if versions:
        metrics["rollout/versions"] = sum(versions) / len(versions)
    if rewards:
        metrics["rollout/reward"] = sum(rewards) / len(rewards)
    # Rollout files may come without verdicts: then there is no success, rather than none.
    judged = [t for t in trajectories if t.reward_status]
    if judged:
        metrics["rollout/success"] = sum(t.reward_status == "correct" for t in judged) / len(judged)
    for status, number in Counter(t.reward_status for t in judged).items():
        metrics[f"rollout/status_{status}"] = number / len(judged)
    for name in dict.fromkeys(name for t in trajectories for name in t.reward_parts):
        values = [t.reward_parts.get(name) for t in trajectories if name in t.reward_parts]
        known = [value for value in values if value is not None]
        metrics[f"reward/{name}_missing"] = float(len(values) - len(known))
        if known:
            metrics[f"reward/{name}"] = sum(known) / len(known)
    for name, solved in (("success", True), ("failure", False)):
        chosen = [len(t.completion.token_ids) for t in judged if (t.reward_status == "correct") is solved]
        if chosen:
            metrics[f"rollout/length_{name}"] = sum(chosen) / len(chosen)
    return metrics
