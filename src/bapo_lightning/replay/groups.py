"""Groups: the responses to one prompt in one phase, which always travel together."""

from collections.abc import Iterable, Sequence

from bapo_lightning.types import Trajectory

Group = tuple[Trajectory, ...]
"""Trajectories of one ``group_id``, in order of sample index."""


def group_trajectories(trajectories: Iterable[Trajectory]) -> list[Group]:
    """Gather trajectories by ``group_id``; members need not be neighbours.

    Args:
        trajectories: Any number, in any order.

    Returns:
        Groups in order of first appearance, members in order of sample index.

    Raises:
        ValueError: Members of a group have different prompts or equal sample indices, or a completion's ids,
            log-probs and versions differ in length.
    """
    members: dict[int, list[Trajectory]] = {}
    for trajectory in trajectories:
        members.setdefault(trajectory.group_id, []).append(trajectory)
    for group in members.values():
        _check(group)
    return [tuple(sorted(group, key=lambda t: t.sample_index)) for group in members.values()]


def is_uniform(group: Sequence[Trajectory]) -> bool:
    """Whether all rewards of a group are equal, so that it has no advantage to teach.

    Missing rewards are left out; a group with fewer than two rewards is uniform.
    """
    return len({t.reward for t in group if t.reward is not None}) < 2


def _check(group: list[Trajectory]) -> None:
    first = group[0]
    where = f"group {first.group_id}"
    indices = [t.sample_index for t in group]
    if len(set(indices)) < len(indices):
        raise ValueError(f"{where} has sample indices {sorted(indices)}; each may come once")
    for t in group:
        if t.prompt != first.prompt or t.prompt_ids != first.prompt_ids:
            raise ValueError(f"{where} mixes prompts {first.prompt.id!r} and {t.prompt.id!r}")
        completion = t.completion
        lengths = (len(completion.token_ids), len(completion.log_probs), len(completion.policy_versions))
        if len(set(lengths)) > 1:
            raise ValueError(
                f"{where}, sample {t.sample_index}: {lengths[0]} token ids, {lengths[1]} log-probs and "
                f"{lengths[2]} policy versions; there must be as many of each"
            )
