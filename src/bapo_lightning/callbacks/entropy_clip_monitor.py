"""The curves that show why entropy rose or fell: clipping, balance, ratios, staleness."""

from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from bapo_lightning.callbacks.age import age_sums, effective_sizes
from bapo_lightning.callbacks.logging import gather_values, log_at_update, reduce_sums, tensorboard_writer
from bapo_lightning.callbacks.measures import percentiles, update_sums, update_values
from bapo_lightning.callbacks.shadow import name_shadows, require_same_inputs, shadow_metrics
from bapo_lightning.clipping import ClippingStrategy
from bapo_lightning.datamodule import ReplayDataModule
from bapo_lightning.errors import InputError
from bapo_lightning.module import PolicyModule
from bapo_lightning.update import UpdateRecord

LAYOUT = {
    "BAPO": {
        "clipping bounds c_low, 1, c_high": ["Margin", ["clip/one", "clip/bound_low", "clip/bound_high"]],
        "importance ratio p50, p05, p95": ["Margin", ["ratio/p50", "ratio/p05", "ratio/p95"]],
        "share of positive tokens: value, gradient, count": ["Multiline", ["balance/.*_share$"]],
        "clipped tokens, low and high": ["Multiline", ["clip/fraction_(low|high)$"]],
        "clipped tokens by age, in updates": ["Multiline", ["age/.*/fraction_clipped$"]],
        "effective sample size by age, in updates": ["Multiline", ["age/.*/effective_size$"]],
        "entropy by sign of the advantage": ["Multiline", ["policy/entropy.*"]],
        "response length by sign of the advantage": ["Multiline", ["balance/length_.*"]],
    }
}
"""TensorBoard's custom-scalars page. A margin chart takes value, lower and upper tag."""

SHADOW_LAYOUT = {
    "share of positive tokens, by gradient: trained and shadows": [
        "Multiline",
        ["(balance|shadow/.*)/gradient_share$"],
    ],
    "clipped tokens: shadows": ["Multiline", ["shadow/.*/fraction_clipped$"]],
}
"""Further charts where strategies are shadowed."""


class EntropyClipMonitor(Callback):
    """Logs every update: entropy, clip fractions by sign, bounds, shares, ratio percentiles, lengths, gradient norm.

    Every mean is a sum over tokens of all ranks divided by their count. See docs/metrics.md for each tag.

    Args:
        histogram_interval: Updates between histograms, ≥ 1; 0 writes none.
        max_histogram_values: Tokens of a rank that go into a histogram or percentile, ≥ 1.
        shadow: Strategies that judge every update beside the one that is trained, from the same log-probs: what they
            would clip, and which share of positive tokens they would give. No forward pass, and nothing changes.
        by_age: Whether to log ratio, clipping, divergence, share and effective sample size by the age of tokens, too.

    Raises:
        InputError: A value is out of its range.
    """

    def __init__(
        self,
        histogram_interval: int = 10,
        max_histogram_values: int = 4096,
        shadow: list[ClippingStrategy] | None = None,
        by_age: bool = True,
    ) -> None:
        if histogram_interval < 0:
            raise InputError(f"EntropyClipMonitor.histogram_interval must be >= 0, got {histogram_interval}")
        if max_histogram_values < 1:
            raise InputError(f"EntropyClipMonitor.max_histogram_values must be at least 1, got {max_histogram_values}")
        self.histogram_interval = histogram_interval
        self.max_histogram_values = max_histogram_values
        self.by_age = by_age
        self.shadows = name_shadows(shadow or [])

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Lay out the custom-scalars page."""
        assert isinstance(pl_module, PolicyModule)
        require_same_inputs(self.shadows, pl_module.clipping)
        writer = tensorboard_writer(trainer)
        if writer is not None:
            charts = LAYOUT["BAPO"] | (SHADOW_LAYOUT if self.shadows else {})
            writer.add_custom_scalars({"BAPO": charts})

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log what the rollout phase was like, at the update it precedes."""
        datamodule: Any = trainer.datamodule  # type: ignore[attr-defined]
        if isinstance(datamodule, ReplayDataModule) and datamodule.phase_metrics:
            log_at_update(trainer, {**datamodule.phase_metrics, "rollout/phase": float(trainer.current_epoch)})

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log the update that was just done."""
        assert isinstance(pl_module, PolicyModule)
        update = pl_module.last_update
        assert update is not None
        mask = update.batch.loss_mask
        ratios = gather_values(trainer, update.log_ratio[mask].exp(), self.max_histogram_values)
        sums, values = update_sums(update), update_values(update)
        for name, strategy in self.shadows.items():
            shadow_sums, shadow_values = shadow_metrics(name, strategy, update)
            sums, values = sums | shadow_sums, values | shadow_values
        if self.by_age:
            sums |= age_sums(update)
        metrics = {
            **effective_sizes(reduce_sums(trainer, sums)),
            **values,
            **percentiles(ratios, "ratio"),
            "clip/one": 1.0,
        }
        log_at_update(trainer, metrics)
        datamodule: Any = trainer.datamodule  # type: ignore[attr-defined]
        shown = {"entropy": metrics.get("policy/entropy"), "reward": datamodule.phase_metrics.get("rollout/reward")}
        for name, value in shown.items():
            if value is not None:
                pl_module.log(name, value, prog_bar=True, logger=False, on_step=True, on_epoch=False, batch_size=1)
        if self.histogram_interval and trainer.global_step % self.histogram_interval == 0:
            self._write_histograms(trainer, update, ratios)

    def _write_histograms(self, trainer: Trainer, update: UpdateRecord, ratios: Tensor) -> None:
        mask = update.batch.loss_mask
        values = {
            "histogram/ratio": ratios,
            "histogram/entropy": gather_values(trainer, update.entropy[mask], self.max_histogram_values),
            "histogram/advantage": gather_values(trainer, update.batch.advantages[mask], self.max_histogram_values),
            "histogram/age": gather_values(
                trainer, (update.version - update.batch.policy_versions[mask]).float(), self.max_histogram_values
            ),
            "histogram/length": gather_values(
                trainer, update.batch.response_mask.sum(1).float(), self.max_histogram_values
            ),
        }
        values["histogram/log_ratio"] = torch.log(ratios[ratios > 0])
        writer = tensorboard_writer(trainer)
        for tag, tensor in values.items():
            # An empty histogram would stop training.
            if writer is not None and tensor.numel() > 0:
                writer.add_histogram(tag, tensor, trainer.global_step)
