"""Age of trajectories: policy updates between the weights that sampled a token and the weights being updated."""

from collections.abc import Sequence

from bapo_lightning.types import Trajectory


def oldest_version(trajectories: Sequence[Trajectory]) -> int:
    """Version of the oldest token of some trajectories, at least one."""
    return min(trajectory.oldest_version for trajectory in trajectories)


def newest_version(trajectories: Sequence[Trajectory]) -> int:
    """Version of the newest token of some trajectories, at least one."""
    return max(max(t.completion.policy_versions, default=t.sampled_version) for t in trajectories)


def staleness(trajectories: Sequence[Trajectory], version: int) -> int:
    """Age of the oldest token, in policy updates: a response is as old as its oldest token, a group too.

    Args:
        trajectories: At least one.
        version: Policy updates behind the weights that are about to be updated.

    Returns:
        ``version`` minus the oldest version, >= 0.

    Raises:
        ValueError: A token is newer than ``version``, so versions were not kept in step.
    """
    newest = newest_version(trajectories)
    if newest > version:
        raise ValueError(
            f"group {trajectories[0].group_id} has a token of policy version {newest}, but the trainer is at "
            f"version {version}: the buffer and the weights do not belong together"
        )
    return version - oldest_version(trajectories)
