"""Benchmarks end to end: the extractor is wired in, and what would lie is refused."""

import json

import pytest
import yaml
from command import write_config

from bapo_lightning.callbacks import AIMEEvaluation
from bapo_lightning.cli import main
from bapo_lightning.errors import InputError
from bapo_lightning.evaluation import Benchmark


@pytest.fixture
def validate(model_folder, tmp_path):
    """Run `bapo validate` with scripted answers on some problems; exit code and the results of the run."""

    def run(problems, answers, *flags, **benchmark):
        path = tmp_path / "bench.jsonl"
        path.write_text("".join(json.dumps(p) + "\n" for p in problems))
        settings = {"path": str(path), "k": 2, "max_new_tokens": 40, "as_chat": False, **benchmark}
        callback = {"class_path": "AIMEEvaluation", "init_args": {"benchmarks": [settings]}}
        config = write_config(tmp_path, model_folder(), trainer={"callbacks": [callback]})
        content = yaml.safe_load(config.read_text())
        content["data"]["reward"] = {"class_path": "MathReward"}
        content["data"]["engine"] = {"class_path": "ScriptedEngine", "init_args": {"answers": answers}}
        config.write_text(yaml.safe_dump(content))
        code = main(["validate", "--config", str(config), *flags])
        results = tmp_path / "runs/test/version_0/results.json"
        return code, json.loads(results.read_text())["results"][0] if results.exists() else None

    return run


def test_a_canned_right_answer_scores_one(validate):
    """B030: one problem, response ending in ``\\boxed{117}``, gold 117."""
    code, result = validate([{"problem": "q", "answer": "117"}], ["so \\boxed{117}"])
    assert code == 0
    assert result["scores"] == {"avg@2": 1.0, "pass@2": 1.0, "pass^2": 1.0, "maj@2": 1.0}
    assert result["status"] == {"correct": 2}
    assert result["settings"]["temperature"] == 0.6


def test_a_checkpoint_is_scored_under_its_own_number_of_updates(model_folder, tmp_path):
    """In the folder of its run, beside the config of the training, which stays as it was."""
    path = tmp_path / "bench.jsonl"
    path.write_text('{"problem": "1+1=", "answer": "2"}\n')
    benchmark = {"path": str(path), "k": 1, "max_new_tokens": 4, "as_chat": False}
    callback = {"class_path": "AIMEEvaluation", "init_args": {"benchmarks": [benchmark], "every_n_phases": 99}}
    config = write_config(tmp_path, model_folder(), trainer={"callbacks": [callback]})
    assert main(["fit", "--config", str(config)]) == 0
    folder = tmp_path / "runs/test/version_0"
    before = (folder / "config.yaml").read_text()
    assert main(["validate", "--config", str(config), "--ckpt_path", "last"]) == 0
    (result,) = json.loads((folder / "results.json").read_text())["results"]
    assert result["update"] == 4
    assert (folder / "samples/bench_000004.jsonl").is_file()
    assert (folder / "config.yaml").read_text() == before
    assert (folder / "config_validate.yaml").is_file()


def test_one_of_two_samples(validate):
    """B142: correct [[0, 1], [1, 1]] is avg@2 .75 and pass@2 1."""
    answers = {"bench/0/0": "\\boxed{5}", "*": "\\boxed{1}"}
    _, result = validate([{"problem": "a", "answer": "1"}, {"problem": "b", "answer": "1"}], answers)
    assert result["scores"] == {"avg@2": 0.75, "pass@2": 1.0, "pass^2": 0.5, "maj@2": 0.75}


def test_repeated_problems_are_asked_once(validate):
    """B140: 4 problems, each 3 times, k = 2."""
    problems = [{"problem": f"q{i}", "answer": "1"} for i in range(4)] * 3
    _, result = validate(problems, ["\\boxed{1}"])
    assert (result["num_problems"], result["num_samples"]) == (4, 8)
    assert result["data"]["repeated_rows"] == 8


def test_what_would_cut_a_benchmark_short_is_refused(validate, capsys):
    code, _ = validate([{"problem": "q", "answer": "1"}], ["1"], "--trainer.limit_val_batches=1")
    assert code == 2
    assert "trainer.limit_val_batches" in capsys.readouterr().err


def test_a_missing_file_is_named_before_anything_runs(validate, capsys):
    code, _ = validate([{"problem": "q", "answer": "1"}], ["1"], path="/no/such.jsonl")
    assert code == 2
    assert "/no/such.jsonl" in capsys.readouterr().err


def test_a_benchmark_longer_than_the_model_is_refused(validate, capsys):
    code, _ = validate([{"problem": "q", "answer": "1"}], ["1"], max_new_tokens=1000)
    assert code == 2
    assert "256 positions" in capsys.readouterr().err


def test_impossible_callbacks_are_refused(tmp_path):
    benchmark = Benchmark(str(tmp_path / "a.jsonl"))
    for arguments in ({"benchmarks": []}, {"benchmarks": [benchmark, benchmark]}):
        with pytest.raises(InputError, match="benchmarks"):
            AIMEEvaluation(**arguments)
    with pytest.raises(InputError, match="every_n_phases"):
        AIMEEvaluation([benchmark], every_n_phases=0)
