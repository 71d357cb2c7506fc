"""Benchmarks: what is asked, how answers are counted, what is written down.

- `Benchmark` reads a file of problems and says how each is sampled; it neither renders nor generates.
- `AverageAtK`, `PassAtK`, `MajorityAtK` are the scores, as torchmetrics that ranks may fill unevenly.
- `benchmark_result` makes one record of a finished benchmark, `append_result` keeps it in ``results.json``.

To add a score: subclass `KeyedMetric` in ``metrics.py``, implement ``_score`` for the samples of one problem,
and list it here and in ``report.py``.
"""

from bapo_lightning.evaluation.benchmark import Benchmark, BenchmarkData
from bapo_lightning.evaluation.keyed_metric import KeyedMetric
from bapo_lightning.evaluation.metrics import AverageAtK, MajorityAtK, PassAtK, pass_at_k
from bapo_lightning.evaluation.report import SampleResult, append_result, benchmark_result, read_results

__all__ = [
    "AverageAtK",
    "Benchmark",
    "BenchmarkData",
    "KeyedMetric",
    "MajorityAtK",
    "PassAtK",
    "SampleResult",
    "append_result",
    "benchmark_result",
    "pass_at_k",
    "read_results",
]
