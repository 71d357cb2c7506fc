"""What is checked and put right in a checkpoint before a run goes on from it."""

import logging
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from bapo_lightning.checkpoint_files import is_beside
from bapo_lightning.errors import InputError

log = logging.getLogger(__name__)


def weight_differences(own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> list[str]:
    """Compare names and shapes of weights.

    Args:
        own: Those of the model.
        given: Those of the checkpoint.

    Returns:
        One sentence for each difference, none if the checkpoint fits.
    """
    differences = [f"{name} is missing" for name in sorted(own.keys() - given.keys())]
    differences += [f"{name} is not in the model" for name in sorted(given.keys() - own.keys())]
    differences += [
        f"{name} has shape {tuple(given[name].shape)}, the model wants {tuple(own[name].shape)}"
        for name in sorted(own.keys() & given.keys())
        if own[name].shape != given[name].shape
    ]
    return differences


def reopen_unfinished_phase(checkpoint: dict[str, Any]) -> None:
    """Let a run that ``max_steps`` stopped in the middle of a phase go on there.

    Lightning ends such an epoch as if it were complete, so a checkpoint written at its end would skip what is left.
    """
    loop = checkpoint.get("loops", {}).get("fit_loop")
    if loop is None:
        return
    epochs, batches = loop["epoch_progress"], loop["epoch_loop.batch_progress"]
    if not batches["is_last_batch"] and epochs["current"]["processed"] == epochs["current"]["started"] > 0:
        for progress in (epochs["current"], epochs["total"]):
            progress["processed"] -= 1
            progress["completed"] = min(progress["completed"], progress["processed"])


def close_finished_phase(checkpoint: dict[str, Any]) -> None:
    """Let a run that was saved after the last update of a phase begin with the next one.

    Saved there, and not at the end of the epoch, Lightning decides whether the phase is over by the length of the next
    one; of a longer one it would leave out the first updates.
    """
    loop = checkpoint.get("loops", {}).get("fit_loop")
    if loop is None:
        return
    epochs, batches = loop["epoch_progress"], loop["epoch_loop.batch_progress"]
    unclosed = batches["current"]["completed"] == batches["current"]["processed"] - 1
    if batches["is_last_batch"] and unclosed and epochs["current"]["processed"] == epochs["current"]["started"] - 1:
        for progress in (batches["current"], batches["total"]):
            progress["completed"] += 1
        for progress in (epochs["current"], epochs["total"]):
            progress["processed"] += 1


def check_data_state(
    state: Mapping[str, Any], *, prompts: str, prompts_key: str, accept_changed_prompts: bool, seed: int, lag: int
) -> None:
    """Refuse data state that the run would not go on with where it stopped.

    Args:
        state: State of the DataModule, from a checkpoint.
        prompts: Fingerprint of the prompts that the run has now.
        prompts_key: The config key they come from.
        accept_changed_prompts: Go on with other prompts, with a warning.
        seed: The seed of the run.
        lag: In policy updates.

    Raises:
        InputError: Something differs.
    """
    if is_beside(state):
        raise InputError(
            "ckpt_path: the data state of this checkpoint lies in a file beside it; give the Trainer "
            "plugins=[bapo_lightning.checkpoint_files.RunCheckpointIO()]"
        )
    if missing := {"phase", "dealing", "lag", "queue", "supply", "prompts", "seed"} - state.keys():
        raise InputError(
            f"ckpt_path: the data state of this checkpoint has no {', '.join(sorted(missing))}; it was made by another "
            "version of bapo_lightning and cannot be gone on from"
        )
    if state["prompts"] != prompts:
        if not accept_changed_prompts:
            raise InputError(
                f"{prompts_key}: the prompts are not those of the checkpoint, so the run cannot go on where it was: "
                "give the same data (and data.max_prompt_tokens), or go on with the new ones by "
                "data.accept_changed_prompts=true"
            )
        log.warning("the prompts are not those of the checkpoint; the run goes on with the new ones")
    if state["seed"] != seed:
        raise InputError(
            f"seed_everything is {seed}, but the checkpoint was made with {state['seed']}; a run goes on with its own "
            "seed"
        )
    if state["lag"] != lag:
        raise InputError(
            f"data.lag is {lag}, but the checkpoint was made with {state['lag']}: groups are waiting for their phases, "
            "and would be lost or come at another age; go on with the same lag"
        )
