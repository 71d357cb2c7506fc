"""The LightningModule: policy, reference, clipping strategy, and one update."""

import logging
import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, get_args

import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from lightning.pytorch.strategies import ParallelStrategy
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor
from torch.distributed.tensor import DTensor

from bapo_lightning.answering_module import AnsweringModule
from bapo_lightning.clipping import BAPOClip, ClipBounds, ClippingStrategy
from bapo_lightning.errors import InputError
from bapo_lightning.micro_batches import MicroBatch, cut_by_responses, cut_by_tokens
from bapo_lightning.models import Policy, Reference, TokenScores, make_reference
from bapo_lightning.objective import (
    AggregationMode,
    KLEstimator,
    aggregate,
    aggregation_denominator,
    kl_penalty,
    log_ratio,
)
from bapo_lightning.resuming import close_finished_phase, reopen_unfinished_phase, weight_differences
from bapo_lightning.statistics_pass import StatisticsPass, score_before_bounds
from bapo_lightning.types import Sealed, TokenBatch
from bapo_lightning.update import (
    PartResult,
    UpdateRecord,
    find_bounds,
    join_rows,
    record_update,
    report_micro_batch_bounds,
)

log = logging.getLogger(__name__)

BoundsScope = Literal["update", "micro_batch"]


def _default_optimizer(params: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(params, lr=1e-6, weight_decay=0.0)


class PolicyModule(AnsweringModule):
    """Trains a policy on mini-batches of sampled tokens. One batch is one optimizer step.

    The loss and its gradient do not depend on how the batch is cut into micro-batches or ranks: every part is a sum
    over tokens divided by a denominator of the whole update.

    Args:
        policy: The model that is trained.
        clipping: Which tokens keep their gradient; None is `BAPOClip` as in the paper.
        optimizer: Builds the optimizer; None is AdamW with learning rate 1e-6 and no weight decay.
        lr_scheduler: Builds a learning-rate schedule that moves once an update; None keeps it constant.
        aggregation: ``token_mean`` (DAPO), ``sequence_mean`` (GRPO) or ``constant`` (Dr. GRPO).
        kl_coefficient: Weight of the KL penalty towards the policy at the start of the run, ≥ 0; at 0 no reference is
            loaded. The paper trains without.
        kl_estimator: ``k1``, ``k2`` or ``k3``.
        entropy_coefficient: Weight of an entropy bonus, dimensionless; 0 is none.
        max_grad_norm: Gradients are scaled down to this global norm, > 0; None leaves them.
        micro_batch_size: Responses in one forward and backward pass of a rank, ≥ 1; None takes all at once.
        micro_batch_tokens: In place of ``micro_batch_size``: tokens in one forward and backward pass of a rank, prompts
            and padding included, at least those of the longest prompt and response. Responses of like length share a
            pass, and passes are of like size.
        bounds_scope: ``update`` finds one window for the whole update, over all ranks, whatever the micro-batches.
            ``micro_batch`` finds one for each, over all ranks, as the authors' code does: the loss then depends on
            ``micro_batch_size``.
        statistics_pass: How a strategy that looks at the whole update first gets its log-probs when there are several
            micro-batches: ``keep_graphs`` (more memory), ``extra_forward`` (more time), or ``auto``, which keeps graphs
            where they fit into half of the free memory. Other strategies never pay.

    Raises:
        InputError: A value is unusable.
    """

    def __init__(
        self,
        policy: Policy,
        clipping: ClippingStrategy | None = None,
        optimizer: OptimizerCallable | None = None,
        lr_scheduler: LRSchedulerCallable | None = None,
        aggregation: AggregationMode = "token_mean",
        kl_coefficient: float = 0.0,
        kl_estimator: KLEstimator = "k3",
        entropy_coefficient: float = 0.0,
        max_grad_norm: float | None = 1.0,
        micro_batch_size: int | None = None,
        micro_batch_tokens: int | None = None,
        bounds_scope: BoundsScope = "update",
        statistics_pass: StatisticsPass = "auto",
    ) -> None:
        super().__init__()
        if kl_coefficient < 0:
            raise InputError(f"model.kl_coefficient must be >= 0, got {kl_coefficient}")
        if max_grad_norm is not None and not max_grad_norm > 0:
            raise InputError(f"model.max_grad_norm must be > 0 or null, got {max_grad_norm}")
        for name, count in (("micro_batch_size", micro_batch_size), ("micro_batch_tokens", micro_batch_tokens)):
            if count is not None and count < 1:
                raise InputError(f"model.{name} must be at least 1 or null, got {count}")
        if micro_batch_size is not None and micro_batch_tokens is not None:
            raise InputError("model.micro_batch_size and model.micro_batch_tokens both cut an update; set one of them")
        for name, value, options in (
            ("bounds_scope", bounds_scope, BoundsScope),
            ("statistics_pass", statistics_pass, StatisticsPass),
        ):
            if value not in get_args(options):
                raise InputError(f"model.{name} must be one of {', '.join(get_args(options))}, got {value!r}")
        self.automatic_optimization = False
        self.save_hyperparameters(logger=False)
        # Built by hand, the injected objects would be pickled into the checkpoint, where torch refuses to read them;
        # under the command line the hyper-parameters are plain settings and stay.
        for name, value in list(self.hparams.items()):
            if not isinstance(value, (str, int, float, bool, dict, list, type(None))):
                del self.hparams[name]

        self.policy = policy
        self.reference: Reference | None = None
        self.clipping = BAPOClip() if clipping is None else clipping
        self.optimizer_factory = _default_optimizer if optimizer is None else optimizer
        self.lr_scheduler_factory = lr_scheduler
        self.aggregation = aggregation
        self.kl_coefficient = kl_coefficient
        self.kl_estimator = kl_estimator
        self.entropy_coefficient = entropy_coefficient
        self.max_grad_norm = max_grad_norm
        self.micro_batch_size = micro_batch_size
        self.micro_batch_tokens = micro_batch_tokens
        self.bounds_scope = bounds_scope
        self.statistics_pass = statistics_pass
        self.last_update: UpdateRecord | None = None
        """What the newest update saw and did; callbacks read it in ``on_train_batch_end``."""
        self._updates_of_checkpoint = 0

    # --- set-up -----------------------------------------------------------------------------------------------------

    def configure_model(self) -> None:
        """Load the weights, and the reference where something uses it. Calling it again does nothing."""
        self.policy.load()
        if self.reference is None:
            self.reference = make_reference(self.policy, needed=self.kl_coefficient > 0)

    def configure_callbacks(self) -> list[Any]:
        """Refuse Trainer settings that manual optimisation does not honour, before Lightning's own check."""
        if self.trainer.gradient_clip_val:
            raise InputError("trainer.gradient_clip_val does not apply here; use model.max_grad_norm")
        if self.trainer.accumulate_grad_batches != 1:
            raise InputError(
                "trainer.accumulate_grad_batches does not apply here: one batch is one update. Use "
                "model.micro_batch_size or model.micro_batch_tokens to fit an update into memory, or "
                "data.groups_per_update to change its size"
            )
        if self.trainer.precision == "16-mixed":
            raise InputError("trainer.precision=16-mixed scales the gradients that we clip; use bf16-mixed")
        return []

    def configure_optimizers(self) -> Any:
        """The optimizer over trainable weights, and its schedule."""
        try:
            optimizer = self.optimizer_factory([p for p in self.policy.parameters() if p.requires_grad])
        except (TypeError, ValueError) as error:
            raise InputError(f"model.optimizer: {error}") from error
        if self.lr_scheduler_factory is None:
            return optimizer
        try:
            return [optimizer], [self.lr_scheduler_factory(optimizer)]
        except (TypeError, ValueError) as error:
            raise InputError(f"model.lr_scheduler: {error}") from error

    def on_fit_start(self) -> None:
        """Say so if the aggregation is not the one in the formula of the strategy's source."""
        wanted = self.clipping.source_aggregation
        if wanted is not None and wanted != self.aggregation:
            log.warning(
                "%s is defined with model.aggregation=%s; with %s long responses weigh otherwise than in its source",
                type(self.clipping).__name__,
                wanted,
                self.aggregation,
            )

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Unseal a batch; token batches move to the device, requests for answers have none."""
        content = batch.content if isinstance(batch, Sealed) else batch
        return content.to(device) if isinstance(content, TokenBatch) else content

    # --- one update -------------------------------------------------------------------------------------------------

    def training_step(self, batch: TokenBatch, batch_idx: int) -> None:
        """Do one optimizer step on a batch."""
        optimizer = self.optimizers()
        assert not isinstance(optimizer, list)
        version = self.trainer.global_step
        batch, parts = self._cut(batch)
        count = aggregation_denominator(batch.loss_mask, self.aggregation, batch.length_limit)
        # DDP and FSDP2 average gradients over ranks, so each rank divides by its share of the whole count.
        denominator = self._reduce_over_ranks(count, "sum") / self.trainer.world_size

        optimizer.zero_grad()
        learn = self._learn_in_one_window if self.bounds_scope == "update" else self._learn_in_a_window_each
        results, bounds = learn(batch, parts, denominator)

        grad_norm = self._clip_gradients()
        if denominator == 0:
            log.warning("update %d has no token to learn from; the weights stay as they are", version + 1)
            optimizer.zero_grad(set_to_none=True)
        self.last_update = record_update(
            batch,
            results,
            bounds=bounds,
            grad_norm=grad_norm,
            learning_rate=optimizer.param_groups[0]["lr"],
            version=version,
            skipped=denominator == 0,
        )
        optimizer.step()
        scheduler = self.lr_schedulers()
        if scheduler is not None:
            scheduler.step()  # type: ignore[union-attr]

    def _cut(self, batch: TokenBatch) -> tuple[TokenBatch, list[MicroBatch]]:
        """Cut an update into micro-batches; by tokens, its responses are put in order first."""
        if self.micro_batch_tokens is None:
            return batch, cut_by_responses(batch, self.micro_batch_size)
        layout = {"one_row": self.policy.reads_one_row, "packs": self.policy.packs}
        whole, parts = cut_by_tokens(batch, self.micro_batch_tokens, **layout)
        # A rank that waits for others can as well make smaller passes.
        most = self._most_over_ranks(len(parts))
        return (
            (whole, parts)
            if most == len(parts)
            else cut_by_tokens(batch, self.micro_batch_tokens, **layout, at_least=most)
        )

    @property
    def _cuts_updates(self) -> bool:
        return self.micro_batch_size is not None or self.micro_batch_tokens is not None

    def _learn_in_one_window(
        self, batch: TokenBatch, parts: list[MicroBatch], denominator: float
    ) -> tuple[list[PartResult], ClipBounds]:
        """Add up the gradient of an update whose bounds were found for all of it."""
        # Asked of all ranks, since what follows differs in its collectives: one of them may have a single micro-batch.
        several = self._cuts_updates and self._most_over_ranks(len(parts)) > 1
        bounds, scores = self._find_bounds(batch, parts, several)
        results = []
        for number, part in enumerate(parts):
            # Taken out of the list, so that its graph is freed by its backward pass.
            part_scores, scores[number] = scores[number], None
            window = bounds.rows(part.start, part.stop, part.width)
            results.append(
                self._backward(
                    part, window, denominator, part_scores or self.policy.score(part.batch), last=part is parts[-1]
                )
            )
        if several and not self.clipping.needs_statistics:
            # The window was known before; its shares only now that every token is scored.
            bounds = self._bounds(batch, [r.log_probs for r in results], [r.entropy for r in results])
        return results, bounds

    def _learn_in_a_window_each(
        self, batch: TokenBatch, parts: list[MicroBatch], denominator: float
    ) -> tuple[list[PartResult], ClipBounds]:
        """Add up the gradient of an update whose micro-batches find their own bounds, each over all ranks."""
        most_parts = self._most_over_ranks(len(parts))
        nothing = batch.rows(0, 0)
        results = []
        for part in parts:
            scores = self.policy.score(part.batch)
            window = find_bounds(self.clipping, part.batch, scores.log_probs, scores.entropy)
            if part is parts[-1]:
                # The searches of ranks with more micro-batches wait for this one too, and must not wait until it meets
                # them in its last backward pass.
                for _ in range(most_parts - len(parts)):
                    find_bounds(self.clipping, nothing, nothing.rollout_log_probs, nothing.rollout_log_probs)
            results.append(self._backward(part, window, denominator, scores, last=part is parts[-1]))
        return results, report_micro_batch_bounds(self.clipping, batch, parts, results)

    def _find_bounds(
        self, batch: TokenBatch, parts: list[MicroBatch], several: bool
    ) -> tuple[ClipBounds, list[TokenScores | None]]:
        """Find the window of the whole update before its first backward pass.

        Returns:
            The bounds, and the scores of each micro-batch whose graph is to be trained on; None where there is none.
        """
        if several and not self.clipping.needs_statistics:
            blind = batch.rollout_log_probs
            return find_bounds(self.clipping, batch, blind, torch.zeros_like(blind)), [None] * len(parts)
        mode = self.statistics_pass if several else "keep_graphs"
        scores, kept = score_before_bounds(self.policy, parts, mode, self._agree)
        bounds = self._bounds(batch, [s.log_probs for s in scores], [s.entropy for s in scores])
        return bounds, [*scores] if kept else [None] * len(parts)

    def _bounds(self, batch: TokenBatch, log_probs: list[Tensor], entropy: list[Tensor]) -> ClipBounds:
        like = batch.response_mask
        return find_bounds(self.clipping, batch, join_rows(log_probs, like), join_rows(entropy, like))

    def _agree(self, wish: bool) -> bool:
        return bool(self._reduce_over_ranks(torch.tensor(int(wish), device=self.device), "min"))

    def _most_over_ranks(self, count: int) -> int:
        return int(self._reduce_over_ranks(torch.tensor(count, device=self.device), "max"))

    def _backward(
        self, part: MicroBatch, window: ClipBounds, denominator: float, scores: TokenScores, *, last: bool
    ) -> PartResult:
        """Add the gradient of one micro-batch's share of the loss; with the last one ranks add up theirs."""
        batch = part.batch

        def over_update(values: Tensor) -> Tensor:
            return aggregate(values, batch.loss_mask, self.aggregation, denominator)

        surrogate = self.clipping.surrogate(
            log_ratio(scores.log_probs, batch.rollout_log_probs),
            batch.advantages,
            window,
        )
        loss = -over_update(surrogate.objective)
        reference_log_probs = None
        if self.reference is not None:
            reference_log_probs = self.reference.log_probs(batch)
            penalty = kl_penalty(scores.log_probs, reference_log_probs, self.kl_estimator)
            loss = loss + self.kl_coefficient * over_update(penalty)
        if self.entropy_coefficient:
            loss = loss - self.entropy_coefficient * over_update(scores.entropy)
        with nullcontext() if last else self._gradients_kept_local():
            self.manual_backward(loss)
        return PartResult.of(loss, scores, window, surrogate, reference_log_probs)

    def _clip_gradients(self) -> float:
        """Scale gradients down to ``max_grad_norm``.

        Returns:
            Their global norm before that.

        Raises:
            RuntimeError: The norm is not finite; the weights are still those of the last good update.
        """
        parameters = [p for p in self.policy.parameters() if p.grad is not None]
        limit = float("inf") if self.max_grad_norm is None else self.max_grad_norm
        norm = torch.nn.utils.clip_grad_norm_(parameters, limit)
        value = float(norm.full_tensor() if isinstance(norm, DTensor) else norm)
        if not math.isfinite(value):
            raise RuntimeError(
                f"the gradient norm of update {self.trainer.global_step + 1} is {value}; training stops before the "
                "weights are spoilt. Lower model.optimizer's lr or model.max_grad_norm, or tighten model.clipping"
            )
        return value

    def _reduce_over_ranks(self, number: Tensor, operation: str) -> float:
        return float(self.trainer.strategy.reduce(number.double(), reduce_op=operation))

    def _gradients_kept_local(self) -> AbstractContextManager[None]:
        """Inside, DDP does not average gradients: only the last micro-batch of an update needs that."""
        strategy = self.trainer.strategy
        return strategy.block_backward_sync() if isinstance(strategy, ParallelStrategy) else nullcontext()

    @property
    def updates_done(self) -> int:
        """Policy updates behind the present weights.

        Lightning counts them while it trains; for a checkpoint that is only evaluated its own count is the answer.
        """
        training = self.trainer.state.fn == TrainerFn.FITTING
        return self.trainer.global_step if training else self._updates_of_checkpoint

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse a checkpoint of another model or another DataModule before anything is overwritten.

        Raises:
            InputError: Weights do not fit, or the data state of the run is missing.
        """
        self._updates_of_checkpoint = checkpoint["global_step"]
        differences = weight_differences(self.state_dict(), checkpoint["state_dict"])
        if differences:
            raise InputError(
                f"ckpt_path: the checkpoint is of another model than model.policy.path = {self.policy.path!r}: "
                f"{differences[0]} ({len(differences)} differences)"
            )
        datamodule = getattr(self._trainer, "datamodule", None) if self._trainer is not None else None
        if datamodule is not None and type(datamodule).__qualname__ not in checkpoint:
            raise InputError(
                f"ckpt_path: the checkpoint holds no state of {type(datamodule).__qualname__}, so the run would go on "
                "with other data; it was made with another DataModule"
            )
        reopen_unfinished_phase(checkpoint)
        close_finished_phase(checkpoint)
