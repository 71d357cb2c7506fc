"""The record of a finished benchmark, and the file ``results.json`` that keeps all records of a run."""

import json
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bapo_lightning.errors import InputError
from bapo_lightning.evaluation.benchmark import Benchmark
from bapo_lightning.evaluation.intervals import interval_records
from bapo_lightning.evaluation.keyed_metric import KeyedMetric
from bapo_lightning.evaluation.metrics import AverageAtK, MajorityAtK, PassAtK, PassHatK
from bapo_lightning.types import FinishReason, Score

FORMAT = 1
"""Version of the layout of ``results.json``."""


@dataclass(frozen=True)
class SampleResult:
    """One scored response to a benchmark problem."""

    problem_id: str
    """Id of the problem's `Prompt`."""

    sample_index: int
    """0 … k-1."""

    score: Score
    """The verdict; correct means value 1."""

    num_tokens: int
    """Length of the response in tokens, stop id included."""

    finish_reason: FinishReason
    """Why sampling ended; ``length`` counts as truncated."""


def benchmark_result(
    benchmark: Benchmark,
    samples: Sequence[SampleResult],
    *,
    seed: int,
    update: int,
    made_by: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Make the record of a finished benchmark.

    Args:
        benchmark: The benchmark.
        samples: The results of all ranks, in any order; repeats of a (problem, sample) pair count once.
        seed: Seed of the run; sampling seeds derive from it.
        update: Policy updates behind the evaluated weights.
        made_by: Plain values that say what answered and what judged: model, checkpoint, engine, reward, template.

    Returns:
        Plain values, ready for JSON:
        the fields of ``results.json``, which docs/evaluation.md describes one by one.

    Raises:
        ValueError: A sample is lacking, or belongs to no problem of the benchmark.
    """
    table = _unique_samples(benchmark, samples)
    rows = list(table.values())
    metrics: dict[str, KeyedMetric] = {f"avg@{benchmark.k}": AverageAtK(benchmark.k, sync_on_compute=False)}
    if benchmark.k > 1:
        for drawn in benchmark.pass_at:
            metrics[f"pass@{drawn}"] = PassAtK(drawn, sync_on_compute=False)
            metrics[f"pass^{drawn}"] = PassHatK(drawn, sync_on_compute=False)
        metrics[f"maj@{benchmark.k}"] = MajorityAtK(benchmark.k, sync_on_compute=False)
    for metric in metrics.values():
        metric.update(
            [row.problem_id for row in rows],
            [None if row.score.is_missing else row.score.status == "correct" for row in rows],
            [row.sample_index for row in rows],
            [_vote(row.score) for row in rows],
        )
    per_problem = _per_problem(rows)
    return {
        "benchmark": benchmark.name,
        "update": update,
        "seed": seed,
        "scores": {name: _number(float(metric.compute())) for name, metric in metrics.items()},
        "intervals": interval_records(
            {name: metric.problem_scores() for name, metric in metrics.items()},
            [problem["correct"] for problem in per_problem.values()],
            [problem["scored"] for problem in per_problem.values()],
            seed,
        ),
        "num_problems": len(benchmark.data.problems),
        "num_samples": len(rows),
        "num_missing": sum(row.score.is_missing for row in rows),
        "truncation_rate": sum(row.finish_reason == "length" for row in rows) / len(rows),
        "status": dict(sorted(Counter(row.score.status for row in rows).items())),
        "mean_response_tokens": sum(row.num_tokens for row in rows) / len(rows),
        "problems": per_problem,
        "data": {
            "path": benchmark.path,
            "sha256": benchmark.data.sha256,
            "repeated_rows": benchmark.data.repeated_rows,
        },
        "settings": benchmark.settings(),
        "made_by": dict(made_by or {}),
    }


def read_results(path: str | Path) -> list[dict[str, Any]]:
    """Read the records of a ``results.json``, oldest first.

    Args:
        path: The file.

    Returns:
        The records; an empty list when there is no file.

    Raises:
        InputError: The file cannot be read or is not what `append_result` writes.
    """
    path = Path(path)
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is damaged ({error}); it is left untouched: move it away") from error
    results = content.get("results") if isinstance(content, dict) else None
    if not isinstance(results, list) or content.get("format") != FORMAT:
        raise InputError(f"{path} is not a results file of format {FORMAT}; move it away")
    return results


def append_result(path: str | Path, result: dict[str, Any]) -> None:
    """Add a record to a ``results.json``; what is in it stays.

    The new file replaces the old one in one step, so a kill leaves one or the other. A record equal to one
    already there is not written again; of several records of a benchmark and update the last one is the
    newest.

    Args:
        path: The file, made if missing; its folder too.
        result: A record of `benchmark_result`.

    Raises:
        InputError: The file is damaged (and left as it is), or cannot be written.
    """
    path = Path(path)
    results = read_results(path)
    if result in results:
        return
    text = json.dumps({"format": FORMAT, "results": [*results, result]}, indent=1, allow_nan=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _replace(path, text)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}") from error


def _replace(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _unique_samples(benchmark: Benchmark, samples: Sequence[SampleResult]) -> dict[tuple[str, int], SampleResult]:
    """The samples in the benchmark's own order, each once; a scored one wins over a missing one."""
    given: dict[tuple[str, int], SampleResult] = {}
    for sample in samples:
        key = (sample.problem_id, sample.sample_index)
        if key not in given or given[key].score.is_missing:
            given[key] = sample
    wanted = [(prompt.id, index) for prompt, index in benchmark.items()]
    if lacking := [key for key in wanted if key not in given]:
        raise ValueError(
            f"benchmark {benchmark.name}: {len(lacking)} of {len(wanted)} samples are lacking, first {lacking[0]}"
        )
    if strange := given.keys() - set(wanted):
        raise ValueError(f"benchmark {benchmark.name} has no sample {min(strange)}")
    return {key: given[key] for key in wanted}


def _per_problem(rows: Sequence[SampleResult]) -> dict[str, dict[str, int]]:
    table: dict[str, dict[str, int]] = {}
    for row in rows:
        counts = table.setdefault(row.problem_id, {"correct": 0, "scored": 0})
        counts["correct"] += row.score.status == "correct"
        counts["scored"] += not row.score.is_missing
    return table


def _vote(score: Score) -> str | None:
    # Answers judged correct are one answer, however they are written (1/2 and 0.5).
    if score.status == "correct":
        return "correct"
    return None if score.extracted is None else f"wrong: {score.extracted}"


def _number(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 6)
