"""Benchmarks during training and in `bapo validate`: every problem k times, with what was measured written down."""

import json
from pathlib import Path
from typing import Any

import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule, Trainer

from bapo_lightning.answering import Answer
from bapo_lightning.callbacks.logging import run_folder, tensorboard_writer
from bapo_lightning.datamodule import ReplayDataModule
from bapo_lightning.errors import InputError
from bapo_lightning.evaluation import Benchmark, SampleResult, append_result, benchmark_result


class AIMEEvaluation(Callback):
    """Scores the policy on benchmarks (AIME or any other JSONL) with avg@k, every n rollout phases.

    The Trainer's own validation loop does the work, so `bapo validate` and `bapo test` run the same benchmarks on a
    checkpoint. Scores go to ``val/<benchmark>/…`` and, with settings, data hash and seed, to ``results.json``; all
    responses go to ``samples/<benchmark>_<updates>.jsonl``.

    Args:
        benchmarks: What to ask; at least one, with different names.
        every_n_phases: Rollout phases between evaluations during `bapo fit`, ≥ 1.

    Raises:
        InputError: A value is unusable.
    """

    def __init__(self, benchmarks: list[Benchmark], every_n_phases: int = 1) -> None:
        if not benchmarks:
            raise InputError("AIMEEvaluation.benchmarks must name at least one benchmark")
        names = [benchmark.name for benchmark in benchmarks]
        if len(set(names)) < len(names):
            raise InputError(f"AIMEEvaluation.benchmarks must have different names, got {names}")
        if every_n_phases < 1:
            raise InputError(f"AIMEEvaluation.every_n_phases must be at least 1, got {every_n_phases}")
        self.benchmarks = benchmarks
        self.every_n_phases = every_n_phases
        self._answers: list[list[Answer]] = []

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Read the problems before hours are spent, and hand them to the DataModule."""
        if stage == "predict":
            return
        for benchmark in self.benchmarks:
            benchmark.problems()
        limit = trainer.limit_test_batches if stage == "test" else trainer.limit_val_batches
        # 1.0 is all batches, the whole number 1 is one batch, and the two are equal.
        if isinstance(limit, int) or limit != 1.0:
            raise InputError(
                f"trainer.limit_{'test' if stage == 'test' else 'val'}_batches would cut a benchmark short; set the "
                "benchmark's own limit instead"
            )
        datamodule = trainer.datamodule  # type: ignore[attr-defined]
        assert isinstance(datamodule, ReplayDataModule)
        datamodule.benchmarks = self.benchmarks
        trainer.check_val_every_n_epoch = self.every_n_phases

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Forget earlier answers."""
        self._answers = [[] for _ in self.benchmarks]

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Collect the answers of this rank."""
        self._answers[dataloader_idx].extend(outputs["answers"])

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Score, write down and print."""
        for benchmark, answers in zip(self.benchmarks, self._answers, strict=True):
            self._report(trainer, pl_module, benchmark, _all_ranks(answers))

    on_test_start = on_validation_start
    on_test_batch_end = on_validation_batch_end
    on_test_end = on_validation_end

    def _report(self, trainer: Trainer, module: LightningModule, benchmark: Benchmark, answers: list[Answer]) -> None:
        datamodule = trainer.datamodule  # type: ignore[attr-defined]
        samples = [
            SampleResult(
                problem_id=answer.request.prompt.id,
                sample_index=answer.request.sample_index,
                score=answer.score,
                num_tokens=len(answer.completion.token_ids),
                finish_reason=answer.completion.finish_reason,
            )
            for answer in answers
        ]
        update = datamodule.engine.version
        result = benchmark_result(benchmark, samples, seed=datamodule.seed, update=update)
        metrics = {
            f"val/{benchmark.name}/{name}": value for name, value in result["scores"].items() if value is not None
        }
        metrics[f"val/{benchmark.name}/truncation_rate"] = result["truncation_rate"]
        metrics[f"val/{benchmark.name}/length"] = result["mean_response_tokens"]
        metrics[f"val/{benchmark.name}/missing"] = float(result["num_missing"])
        for logger in trainer.loggers:
            logger.log_metrics(metrics, step=update)
        if not trainer.is_global_zero:
            return
        scores = "  ".join(_with_interval(result, name) for name in result["scores"])
        print(
            f"{benchmark.name}: {scores}  ({result['num_problems']} problems, {result['num_missing']} missing, "
            f"{result['truncation_rate']:.0%} truncated, after {update} updates)",
            flush=True,
        )
        folder = run_folder(trainer)
        if folder is not None:
            append_result(folder / "results.json", result)
            _write_samples(folder / "samples" / f"{benchmark.name}_{update:06d}.jsonl", answers)
        writer = tensorboard_writer(trainer)
        if writer is not None and answers:
            text = json.dumps(answers[0].as_record(), indent=2, ensure_ascii=False)
            writer.add_text(f"samples/{benchmark.name}", f"````json\n{text}\n````", update)


def _with_interval(result: dict[str, Any], name: str) -> str:
    """A score with its interval over problems, as ``avg@16 0.2333 [0.1000, 0.3792]``."""
    value, interval = result["scores"][name], result["intervals"][name]["problems"]
    if value is None or interval is None:
        return f"{name} -"
    return f"{name} {value:.4f} [{interval[0]:.4f}, {interval[1]:.4f}]"


def _all_ranks(answers: list[Answer]) -> list[Answer]:
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return answers
    parts: list[list[Answer]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(parts, answers)
    return [answer for part in parts for answer in part]


def _write_samples(path: Path, answers: list[Answer]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps(answer.as_record(), ensure_ascii=False) + "\n" for answer in answers)
    path.write_text("".join(lines), encoding="utf-8")
