"""Benchmarks during training and in `bapo validate`: every problem k times, with what was measured written down."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger

from bapo_lightning import __version__
from bapo_lightning.answering import Answer
from bapo_lightning.callbacks.answer_files import write_answers
from bapo_lightning.callbacks.logging import run_folder, tensorboard_writer
from bapo_lightning.datamodule import ReplayDataModule
from bapo_lightning.errors import InputError
from bapo_lightning.evaluation import Benchmark, SampleResult, append_result, benchmark_result
from bapo_lightning.tasks import encode_prompt


class AIMEEvaluation(Callback):
    """Scores the policy on benchmarks (AIME or any other JSONL) with avg@k, every n rollout phases.

    The Trainer's own validation loop does the work, so `bapo validate` and `bapo test` run the same benchmarks on a
    checkpoint. Scores go to ``val/<benchmark>/…`` and, with all that made them, to ``results.json``; all
    responses go to ``samples/<benchmark>_<updates>.jsonl`` and ``.parquet``.

    `bapo validate` and `bapo test` keep every batch of answers; stopped and started again with the same weights and
    settings, they go on where they were.

    Args:
        benchmarks: What to ask; at least one, with different names.
        every_n_phases: Rollout phases between evaluations during `bapo fit`, ≥ 1.
        answers_per_batch: Answers handed to the engine at a time on a rank, ≥ 1; so many are lost at most when an
            evaluation is stopped.

    Raises:
        InputError: A value is unusable.
    """

    def __init__(self, benchmarks: list[Benchmark], every_n_phases: int = 1, answers_per_batch: int = 256) -> None:
        if not benchmarks:
            raise InputError("AIMEEvaluation.benchmarks must name at least one benchmark")
        names = [benchmark.name for benchmark in benchmarks]
        if len(set(names)) < len(names):
            raise InputError(f"AIMEEvaluation.benchmarks must have different names, got {names}")
        if every_n_phases < 1:
            raise InputError(f"AIMEEvaluation.every_n_phases must be at least 1, got {every_n_phases}")
        if answers_per_batch < 1:
            raise InputError(f"AIMEEvaluation.answers_per_batch must be at least 1, got {answers_per_batch}")
        self.benchmarks = benchmarks
        self.every_n_phases = every_n_phases
        self.answers_per_batch = answers_per_batch
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
        datamodule.answers_per_batch = self.answers_per_batch
        if stage in ("validate", "test"):
            datamodule.unfinished_folder = _unfinished_folder(trainer)
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
        answers: list[Answer] = outputs["answers"]
        self._answers[dataloader_idx].extend(answers)
        unfinished = _data(trainer).unfinished[dataloader_idx]
        if unfinished is not None:
            unfinished.append((answer.pack() for answer in answers), trainer.global_rank)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Score, write down and print."""
        data = _data(trainer)
        for benchmark, before, answers, unfinished in zip(
            self.benchmarks, data.answers_before, self._answers, data.unfinished, strict=True
        ):
            # What was answered before is known to every rank, and kept once.
            table = {answer.key: answer for answer in (*before, *_all_ranks(answers))}
            self._report(trainer, benchmark, [table[key] for key in sorted(table, key=_by_number(benchmark))])
            if unfinished is not None and trainer.is_global_zero:
                unfinished.remove()

    on_test_start = on_validation_start
    on_test_batch_end = on_validation_batch_end
    on_test_end = on_validation_end

    def _report(self, trainer: Trainer, benchmark: Benchmark, answers: list[Answer]) -> None:
        datamodule = _data(trainer)
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
        result = benchmark_result(
            benchmark, samples, seed=datamodule.seed, update=update, made_by=_made_by(trainer, benchmark)
        )
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
            write_answers(folder / "samples", f"{benchmark.name}_{update:06d}", answers)
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


def _data(trainer: Trainer) -> ReplayDataModule:
    datamodule: ReplayDataModule = trainer.datamodule  # type: ignore[attr-defined]
    return datamodule


def _by_number(benchmark: Benchmark) -> Callable[[tuple[str, int]], tuple[int, int]]:
    """Sort answers by the place of their problem and by sample."""
    places = {prompt.id: number for number, prompt in enumerate(benchmark.problems())}
    return lambda key: (places[key[0]], key[1])


def _unfinished_folder(trainer: Trainer) -> Path | None:
    """Beside the runs of this name, since a validation that is started again gets a folder of its own."""
    logger = trainer.logger
    return Path(logger.root_dir) / "unfinished" if isinstance(logger, TensorBoardLogger) else None


def _made_by(trainer: Trainer, benchmark: Benchmark) -> dict[str, Any]:
    """What answered and what judged."""
    datamodule = _data(trainer)
    policy = datamodule.module.policy
    template = getattr(policy.tokenizer, "chat_template", None) if benchmark.as_chat else None
    asked = policy.tokenizer.decode(list(encode_prompt(policy.tokenizer, benchmark.problems()[0])))
    return {
        "model": policy.path,
        "checkpoint": None if trainer.ckpt_path is None else str(trainer.ckpt_path),
        "engine": type(datamodule.engine).__qualname__,
        "precision": str(trainer.precision),
        "reward": datamodule.reward.settings(),
        "chat_template_sha256": None if template is None else hashlib.sha256(str(template).encode()).hexdigest(),
        "first_prompt": asked,
        "version": __version__,
    }
