"""`bapo compare`: two evaluations, problem by problem."""

import json
from pathlib import Path

import pytest

from bapo_lightning.cli import main
from bapo_lightning.evaluation import Benchmark, SampleResult, append_result, benchmark_result
from bapo_lightning.types import Score


@pytest.fixture
def evaluated(tmp_path):
    """Write results of a run that solves the first so many of 30 problems, k = 2."""
    bench = tmp_path / "bench.jsonl"
    bench.write_text("".join(json.dumps({"problem": f"p{i}", "answer": "1"}) + "\n" for i in range(30)))

    def make(name, solved, update=0, path=bench, **settings):
        benchmark = Benchmark(str(path), name="bench", k=2, **settings)
        samples = [
            SampleResult(
                prompt.id, index, Score(float(i < 2 * solved), "correct" if i < 2 * solved else "wrong", "1"), 3, "stop"
            )
            for i, (prompt, index) in enumerate(benchmark.items())
        ]
        record = benchmark_result(benchmark, samples, seed=0, update=update)
        append_result(tmp_path / name / "results.json", record)
        return str(tmp_path / name)

    return make


def cells(output):
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in output.splitlines()
        if line.startswith("| bench |")
    ]


def test_a_clear_difference(evaluated, capsys, tmp_path):
    first, second = evaluated("a", 2), evaluated("b", 12)
    assert main(["compare", first, second, "--out", str(tmp_path / "table.md")]) == 0
    output = capsys.readouterr().out
    ((name, a, b, count, score_a, score_b, difference, _, p_value, verdict),) = cells(output)
    assert (name, a, b, count) == ("bench", first, second, "30")
    assert (score_a, score_b, difference) == ("0.0667", "0.4000", "+0.3333")
    assert p_value == "0.002"  # ten problems, all upwards: 2 / 2^10
    assert verdict == "better"
    assert Path(tmp_path / "table.md").read_text() == output


def test_thirty_problems_that_cannot_tell(evaluated, capsys):
    assert main(["compare", evaluated("a", 2), evaluated("b", 3)]) == 0
    output = capsys.readouterr().out
    assert cells(output)[0][-2:] == ["1.000", "cannot tell"]
    assert "30 problems cannot tell the two apart" in output


def test_updates_of_one_run_and_several_at_once(evaluated, capsys):
    run = evaluated("a", 2, update=0)
    evaluated("a", 20, update=100)
    evaluated("a", 1, update=200)
    assert main(["compare", f"{run}@0", f"{run}@100", run]) == 0
    rows = cells(capsys.readouterr().out)
    assert [row[5] for row in rows] == ["0.6667", "0.0333"]
    assert [row[-1] for row in rows] == ["better", "cannot tell"]


def test_other_settings_are_said(evaluated, capsys):
    assert main(["compare", evaluated("a", 2), evaluated("b", 3, temperature=1.0)]) == 0
    assert "not asked alike: temperature 0.6 and 1.0" in capsys.readouterr().out


def test_mistakes_are_named(evaluated, capsys, tmp_path):
    run = evaluated("a", 2)
    other = tmp_path / "other.jsonl"
    other.write_text('{"problem": "q", "answer": "1"}\n')
    runs = tmp_path / "runs"
    (runs / "version_0").mkdir(parents=True)
    (runs / "version_0" / "results.json").write_text((tmp_path / "a" / "results.json").read_text())
    for arguments, words in (
        ([run], "needs two evaluations"),
        ([run, f"{run}@7"], "no evaluation after 7 updates; it has bench after 0"),
        ([run, f"{run}@x"], "must stand the number of updates"),
        ([run, str(tmp_path / "nowhere")], "there is no"),
        ([run, str(runs)], "did you mean"),
        ([run, evaluated("c", 0, path=other)], "the problems are not the same"),
        ([run, run, "--benchmark", "aime"], "no benchmark in common among those asked for"),
        ([run, run, "--out", str(tmp_path / "no" / "file")], "cannot be written"),
    ):
        assert main(["compare", *arguments]) == 2, arguments
        assert words in capsys.readouterr().err
