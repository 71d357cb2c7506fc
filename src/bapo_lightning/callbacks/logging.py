"""One x-axis for every curve: the number of optimizer updates that were done."""

import math
from collections.abc import Mapping
from pathlib import Path

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter

from bapo_lightning.types import MetricSum


def log_at_update(trainer: Trainer, metrics: Mapping[str, float]) -> None:
    """Write metrics at x = number of updates done.

    Lightning's own ``self.log`` would write the n-th update at x = n - 1, and spend longer on fifty tags than a small
    model on its update. The newest values are also put where ``ModelCheckpoint(monitor=…)`` and ``EarlyStopping`` look
    for them. A metric that is not finite is not written but counted: ``nonfinite/<tag>`` is 1 at that update.

    Args:
        trainer: The trainer; its loggers write on rank 0.
        metrics: Tag → value, already reduced over ranks.
    """
    written = {tag: value for tag, value in metrics.items() if math.isfinite(value)}
    written |= {f"nonfinite/{tag}": 1.0 for tag in metrics.keys() - written.keys()}
    for logger in trainer.loggers:
        logger.log_metrics(written, step=trainer.global_step)
    trainer.callback_metrics.update({tag: torch.tensor(value) for tag, value in written.items()})


def reduce_sums(trainer: Trainer, sums: Mapping[str, MetricSum]) -> dict[str, float]:
    """Add (sum, count) pairs over ranks in one reduction, and divide.

    Args:
        trainer: Knows the ranks.
        sums: Tag → this rank's sum and count; the same tags on every rank.

    Returns:
        Tag → mean; tags whose count is 0 on all ranks are left out.
    """
    tags = sorted(sums)
    if not tags:
        return {}
    device = trainer.strategy.root_device
    dtype = torch.float32 if device.type == "mps" else torch.float64
    numbers = [number for tag in tags for number in (sums[tag].total, sums[tag].count)]
    # Plain numbers travel together, and tensors stay on the device: reading each would make the host wait each time.
    plain = torch.tensor([0.0 if isinstance(n, Tensor) else float(n) for n in numbers], dtype=dtype).to(device)
    local = torch.stack(
        [n.detach().to(device, dtype) if isinstance(n, Tensor) else plain[i] for i, n in enumerate(numbers)]
    ).view(len(tags), 2)
    totals = trainer.strategy.reduce(local, reduce_op="sum").tolist()
    return {tag: total / count for tag, (total, count) in zip(tags, totals, strict=True) if count > 0}


def gather_values(trainer: Trainer, values: Tensor, limit: int) -> Tensor:
    """Collect up to ``limit`` values of every rank, evenly spaced, for percentiles and histograms.

    Args:
        trainer: Knows the ranks.
        values: [N]; this rank's values. NaN and infinities are left out.
        limit: Values a rank, > 0.

    Returns:
        [M] float32 on the CPU, the same on every rank; empty when no rank had a finite value.
    """
    values = values.detach().float()
    values = values[values.isfinite()]
    if values.numel() > limit:
        values = values[torch.linspace(0, values.numel() - 1, limit, device=values.device).long()]
    padded = torch.full((limit,), float("nan"), device=values.device)
    padded[: values.numel()] = values
    gathered = trainer.strategy.all_gather(padded).flatten().cpu()
    return gathered[gathered.isfinite()]


def run_folder(trainer: Trainer) -> Path | None:
    """Where this run writes, or None without a logger that has a folder.

    ``trainer.log_dir`` is a collective: read on rank 0 alone it hangs. This is not; only rank 0 is sure to be right.
    """
    folders = (getattr(logger, "log_dir", None) for logger in trainer.loggers)
    return next((Path(folder) for folder in folders if folder is not None), None)


def tensorboard_writer(trainer: Trainer) -> SummaryWriter | None:
    """The TensorBoard writer, if the run has one and this is rank 0."""
    if not trainer.is_global_zero:
        return None
    for logger in trainer.loggers:
        if isinstance(logger, TensorBoardLogger):
            return logger.experiment  # type: ignore[no-any-return]
    return None
