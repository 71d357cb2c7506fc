"""Benchmarks: what is asked, how answers are counted, what is written down.

- `Benchmark` reads a table of problems and says how each is sampled; it neither renders nor generates.
- `AverageAtK`, `PassAtK`, `PassHatK`, `MajorityAtK` are the scores, as torchmetrics that ranks may fill unevenly.
- `UnfinishedAnswers` keeps what an evaluation has so far, for when it is stopped.
- `compare_paired` tests whether two checkpoints differ on the same problems.
- `benchmark_result` makes one record of a finished benchmark, `append_result` keeps it in ``results.json``.

To add a score: subclass `KeyedMetric` in ``metrics.py``, implement ``_score`` for the samples of one problem,
and list it here and in ``report.py``.
"""

from bapo_lightning.evaluation.benchmark import Benchmark, BenchmarkData
from bapo_lightning.evaluation.keyed_metric import KeyedMetric
from bapo_lightning.evaluation.metrics import AverageAtK, MajorityAtK, PassAtK, PassHatK, pass_at_k, pass_hat_k
from bapo_lightning.evaluation.paired import PairedComparison, compare_paired
from bapo_lightning.evaluation.report import SampleResult, append_result, benchmark_result, read_results
from bapo_lightning.evaluation.unfinished import UnfinishedAnswers

__all__ = [
    "AverageAtK",
    "Benchmark",
    "BenchmarkData",
    "KeyedMetric",
    "MajorityAtK",
    "PairedComparison",
    "PassAtK",
    "PassHatK",
    "SampleResult",
    "UnfinishedAnswers",
    "append_result",
    "benchmark_result",
    "compare_paired",
    "pass_at_k",
    "pass_hat_k",
    "read_results",
]
