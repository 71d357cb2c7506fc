"""What is checked and put right in a checkpoint before a run goes on from it."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor


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
