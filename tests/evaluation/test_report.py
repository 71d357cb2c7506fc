"""The record of a finished benchmark and the file that keeps records (cases B140, B141)."""

import json
import os

import pytest

from bapo_lightning.errors import InputError
from bapo_lightning.evaluation import Benchmark, SampleResult, append_result, benchmark_result, read_results
from bapo_lightning.types import Score

NAN = float("nan")


def sample(problem, index, status, extracted=None, num_tokens=10, finish_reason="stop"):
    value = {"correct": 1.0, "timeout": NAN, "error": NAN}.get(status, 0.0)
    return SampleResult(f"bench/{problem}", index, Score(value, status, extracted), num_tokens, finish_reason)


@pytest.fixture
def benchmark(tmp_path):
    path = tmp_path / "bench.jsonl"
    rows = [{"problem": f"p{i}", "answer": str(i)} for i in range(3)] * 2
    path.write_text("\n".join(map(json.dumps, rows)))
    return Benchmark(str(path), k=4)


@pytest.fixture
def samples():
    return [
        sample(0, 0, "correct", "1/2"),
        sample(0, 1, "correct", "0.5"),  # another spelling of the same answer
        sample(0, 2, "wrong", "7"),
        sample(0, 3, "wrong", "8"),
        sample(1, 0, "wrong", "3"),
        sample(1, 1, "wrong", "3"),
        sample(1, 2, "correct", "1"),
        sample(1, 3, "no_answer", None, 40, "length"),
        sample(2, 0, "truncated", None, 40, "length"),
        sample(2, 1, "timeout"),
        sample(2, 2, "error"),
        sample(2, 3, "wrong", "9"),
    ]


def test_numbers_by_hand(benchmark, samples):
    record = benchmark_result(benchmark, samples, seed=7, update=120)
    assert record["scores"] == {
        "avg@4": pytest.approx((2 / 4 + 1 / 4 + 0 / 2) / 3),
        "pass@4": pytest.approx(2 / 3, abs=1e-6),
        "pass^4": 0.0,
        "maj@4": pytest.approx(1 / 3, abs=1e-6),
    }
    assert (record["num_problems"], record["num_samples"], record["num_missing"]) == (3, 12, 2)
    assert record["truncation_rate"] == pytest.approx(2 / 12)
    low, high = record["intervals"]["avg@4"]["problems"]
    assert 0.0 <= low < record["scores"]["avg@4"] < high <= 0.5
    half = 1.959964 * (0.25 / 3 + 0.1875 / 3) ** 0.5 / 3
    assert record["intervals"]["avg@4"]["samples"] == pytest.approx([0.25 - half, 0.25 + half])
    assert set(record["intervals"]) == set(record["scores"])
    assert record["mean_response_tokens"] == pytest.approx((10 * 10 + 2 * 40) / 12)
    assert record["status"] == {
        "correct": 3, "error": 1, "no_answer": 1, "timeout": 1, "truncated": 1, "wrong": 5,
    }  # fmt: skip
    assert record["problems"] == {
        "bench/0": {"correct": 2, "scored": 4},
        "bench/1": {"correct": 1, "scored": 4},
        "bench/2": {"correct": 0, "scored": 2},
    }


def test_what_made_the_score_is_written_beside_it(benchmark, samples):
    """B140: the repeats are in the record."""
    record = benchmark_result(benchmark, samples, seed=7, update=120)
    assert (record["benchmark"], record["update"], record["seed"]) == ("bench", 120, 7)
    assert record["data"]["repeated_rows"] == 3
    assert len(record["data"]["sha256"]) == 64
    assert record["settings"]["temperature"] == 0.6
    assert record["settings"]["k"] == 4
    assert json.loads(json.dumps(record, allow_nan=False)) == record


def test_order_and_repeats_of_samples_change_nothing(benchmark, samples):
    """B141: a rank may have sampled something twice."""
    straight = benchmark_result(benchmark, samples, seed=7, update=1)
    padded = [*samples[:3], *reversed(samples)]
    assert benchmark_result(benchmark, padded, seed=7, update=1) == straight


def test_thirty_problems_two_solved(tmp_path):
    """B141: 2/30 = .0667 and 30 rows in the problem table."""
    path = tmp_path / "bench.jsonl"
    path.write_text("\n".join(json.dumps({"problem": f"p{i}", "answer": "1"}) for i in range(30)))
    benchmark = Benchmark(str(path), k=1)
    results = [sample(i, 0, "correct" if i < 2 else "wrong", "1") for i in [*range(30), 0, 1]]
    record = benchmark_result(benchmark, results, seed=0, update=0)
    assert record["scores"] == {"avg@1": pytest.approx(2 / 30, abs=1e-6)}
    assert len(record["problems"]) == 30


def test_all_verdicts_missing_is_null(benchmark):
    results = [sample(p, i, "timeout") for p in range(3) for i in range(4)]
    record = benchmark_result(benchmark, results, seed=0, update=0)
    assert record["scores"] == {"avg@4": None, "pass@4": None, "pass^4": None, "maj@4": None}
    assert record["num_missing"] == 12


def test_lacking_and_foreign_samples_are_refused(benchmark, samples):
    with pytest.raises(ValueError, match="1 of 12 samples are lacking"):
        benchmark_result(benchmark, samples[1:], seed=0, update=0)
    with pytest.raises(ValueError, match="has no sample"):
        benchmark_result(benchmark, [*samples, sample(9, 0, "wrong")], seed=0, update=0)


def test_records_are_appended_and_never_lost(tmp_path):
    path = tmp_path / "run" / "results.json"
    assert read_results(path) == []
    first, second = {"benchmark": "a", "update": 0}, {"benchmark": "b", "update": 0}
    for record in (first, second, first, {"benchmark": "a", "update": 8}):
        append_result(path, record)
    assert read_results(path) == [first, second, {"benchmark": "a", "update": 8}]
    # The same key with other numbers is kept too.
    append_result(path, {"benchmark": "a", "update": 0, "seed": 2})
    assert len(read_results(path)) == 4
    assert [p.name for p in path.parent.iterdir()] == ["results.json"]


@pytest.mark.parametrize(
    "content", [b"", b'{"format": 1, "results": [{"a"', b"\xff\xfe", b"[]", b'{"format": 9, "results": []}']
)
def test_a_damaged_file_is_left_alone(tmp_path, content):
    path = tmp_path / "results.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"results\.json is (damaged|not a results file)"):
        append_result(path, {"benchmark": "a"})
    assert path.read_bytes() == content


def test_a_failed_write_keeps_the_old_file(tmp_path):
    path = tmp_path / "results.json"
    append_result(path, {"benchmark": "a"})
    before = path.read_bytes()
    with pytest.raises(ValueError, match="not JSON compliant"):
        append_result(path, {"benchmark": "b", "score": NAN})
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["results.json"]


def test_a_kill_before_the_replacement_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "results.json"
    append_result(path, {"benchmark": "a"})
    before = path.read_bytes()

    def fail(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(InputError, match="cannot be written: No space left"):
        append_result(path, {"benchmark": "b"})
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["results.json"]


def test_no_folder_to_write_in(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be"):
        append_result(tmp_path / "file" / "results.json", {})
