"""Settings of the DataModule that cannot be met together, each with what would be right."""

from bapo_lightning.errors import InputError
from bapo_lightning.replay import ReplayBuffer
from bapo_lightning.rollout import RolloutSettings
from bapo_lightning.types import SamplingSettings


def check_budget(rollout: RolloutSettings, sampling: SamplingSettings) -> None:
    """Refuse a token budget that no response can reach.

    Raises:
        InputError: It is not less than the limit of a whole response.
    """
    if rollout.token_budget is not None and rollout.token_budget >= sampling.max_new_tokens:
        raise InputError(
            f"data.rollout.token_budget = {rollout.token_budget} is not less than data.sampling.max_new_tokens = "
            f"{sampling.max_new_tokens}, so no response would ever reach it; lower it, or set it to null"
        )


def check_counts(*, group_size: int, groups_per_phase: int, inner_epochs: int, max_generations: int) -> None:
    """Refuse counts that leave nothing to do.

    Raises:
        InputError: One is too small.
    """
    if group_size < 2:
        raise InputError(
            f"data.group_size must be at least 2, got {group_size}: a group of one has no baseline, so every advantage "
            "would be 0"
        )
    for name, value in (
        ("groups_per_phase", groups_per_phase),
        ("inner_epochs", inner_epochs),
        ("max_generations", max_generations),
    ):
        if value < 1:
            raise InputError(f"data.{name} must be at least 1, got {value}")


def checked_lag(lag: int | None, updates_per_phase: int, overlap: bool) -> int:
    """The lag in policy updates.

    Args:
        lag: As typed; None is the least possible.
        updates_per_phase: Updates of a full phase.
        overlap: Whether groups are sampled beside the training of the phase before.

    Raises:
        InputError: No phase boundary lies that far back, or sampling beside training needs more.
    """
    least = updates_per_phase if overlap else 0
    if lag is None:
        return least
    if lag < 0 or lag % updates_per_phase:
        raise InputError(
            f"data.lag must be a multiple of the {updates_per_phase} updates in a phase (data.groups_per_phase / "
            f"data.groups_per_update × data.inner_epochs), since sampling happens between phases; got {lag}"
        )
    if lag < least:
        raise InputError(
            f"data.lag is {lag}, but data.rollout.overlap samples the groups of a phase while the one before is "
            f"trained, so with the weights of {least} updates earlier. Set data.lag to {least} or a multiple of it, or "
            "leave it out"
        )
    return lag


def check_frozen(rollouts: str | None, rollout: RolloutSettings, lag: int | None, max_generations: int) -> None:
    """Refuse settings of sampling beside rollouts that are frozen.

    Raises:
        InputError: One is set.
    """
    if rollouts is None:
        return
    for key, is_set in (
        ("rollout.token_budget", rollout.token_budget is not None),
        ("rollout.overlap", rollout.overlap),
        ("lag", bool(lag)),
        ("max_generations", max_generations > 1),
    ):
        if is_set:
            raise InputError(
                f"data.{key} is about sampling, but data.rollouts = {rollouts!r} are sampled; leave it out"
            )


def check_buffer(
    buffer: ReplayBuffer,
    *,
    replays: bool,
    groups_per_phase: int,
    lag: int,
    updates_per_phase: int,
    max_generations: int,
    token_budget: int | None,
) -> None:
    """Refuse limits of the buffer that the other settings cannot meet.

    Args:
        buffer: The buffer.
        replays: Whether groups stay in it for later phases.
        groups_per_phase: Groups of a full phase.
        lag: In policy updates.
        updates_per_phase: Updates of a full phase.
        max_generations: How often a phase may start groups.
        token_budget: Most tokens of a response in a phase, or None.

    Raises:
        InputError: See the messages.
    """
    if max_generations > 1 and not buffer.drop_uniform:
        raise InputError(
            f"data.max_generations = {max_generations} fills a phase up in place of groups that teach nothing, but "
            "data.buffer.drop_uniform is false, so none is left out; set it to true"
        )
    oldest_needed = lag + updates_per_phase - 1
    if buffer.max_staleness is not None and buffer.max_staleness < oldest_needed:
        raise InputError(
            f"data.buffer.max_staleness is {buffer.max_staleness}, but the last of the {updates_per_phase} updates of "
            f"a phase is {oldest_needed} updates away from its own rollouts; raise it to at least {oldest_needed}, or "
            "lower data.lag, data.inner_epochs or data.groups_per_phase"
        )
    if buffer.capacity is None:
        return
    # The groups of a phase leave when the next one begins, and by then its own are there.
    phases = 1 if replays else lag // updates_per_phase + 2
    if buffer.capacity < phases * groups_per_phase:
        raise InputError(
            f"data.buffer.capacity is {buffer.capacity} groups, less than the {phases * groups_per_phase} held at a "
            f"time: data.groups_per_phase = {groups_per_phase} for each of {phases} phases"
        )
    if token_budget is not None and not replays:
        raise InputError(
            "data.buffer.capacity must be null with data.rollout.token_budget and data.lag: groups leave the buffer "
            "once they are trained on, and until then none may be pushed out"
        )
