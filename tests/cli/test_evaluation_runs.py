"""Evaluations in processes of their own: stopped and gone on with, on several ranks, beside training."""

import json
import signal
import time

import pandas
import pytest
import yaml
from command import finish, start, write_config
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def write_benchmark(folder, count):
    path = folder / "bench.jsonl"
    path.write_text("".join(json.dumps({"problem": f"{i}+1=", "answer": str(i + 1)}) + "\n" for i in range(count)))
    return str(path)


def config_for(folder, model, benchmark, *, name="config.yaml", data=None, **callback):
    settings = {"as_chat": False, "max_new_tokens": 12, "k": 4, **benchmark}
    listed = {"class_path": "AIMEEvaluation", "init_args": {"benchmarks": [settings], **callback}}
    config = write_config(folder, model, name=name, trainer={"callbacks": [listed]})
    content = yaml.safe_load(config.read_text())
    content["data"] |= {"reward": {"class_path": "MathReward"}, **(data or {})}
    config.write_text(yaml.safe_dump(content))
    return config


def results(folder, version=0):
    return json.loads((folder / f"runs/test/version_{version}/results.json").read_text())["results"]


def test_a_killed_evaluation_goes_on_where_it_was(tmp_path, model_folder):
    """Same scores, same answers, and what was there is not sampled again."""
    benchmark = {"path": write_benchmark(tmp_path, 12), "k": 8}
    config = config_for(tmp_path, model_folder(), benchmark, answers_per_batch=8)
    code, output = finish(start("validate", "--config", config))
    assert code == 0, output
    (undisturbed,) = results(tmp_path)
    unfinished = tmp_path / "runs/test/unfinished"
    assert not unfinished.exists()

    process = start("validate", "--config", config)
    deadline = time.monotonic() + 120
    while not list(unfinished.glob("*/rank_*.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    finish(process)
    (kept,) = unfinished.glob("*/rank_*.jsonl")
    lines = kept.read_bytes().splitlines()
    assert 8 <= len(lines) < 96

    code, output = finish(start("validate", "--config", config))
    assert code == 0, output
    assert f"bench: going on after {len(lines)} of 96 answers" in output
    assert results(tmp_path, version=2) == [undisturbed]
    answers = [tmp_path / f"runs/test/version_{v}/samples/bench_000000" for v in (0, 2)]
    assert answers[0].with_suffix(".jsonl").read_bytes() == answers[1].with_suffix(".jsonl").read_bytes()
    frame = pandas.read_parquet(answers[1].with_suffix(".parquet"))
    assert len(frame) == 96
    assert list(frame["sample"][:8]) == list(range(8))
    by_line = [json.loads(line) for line in answers[1].with_suffix(".jsonl").read_text().splitlines()]
    assert frame.astype(object).where(frame.notna(), None).to_dict("records") == by_line
    assert not unfinished.exists()


def test_another_seed_does_not_take_those_answers(tmp_path, model_folder):
    benchmark = {"path": write_benchmark(tmp_path, 12), "k": 8}
    config = config_for(tmp_path, model_folder(), benchmark, answers_per_batch=8)
    process = start("validate", "--config", config)
    unfinished = tmp_path / "runs/test/unfinished"
    deadline = time.monotonic() + 120
    while not list(unfinished.glob("*/rank_*.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    finish(process)
    for change in (["--seed_everything=5"], ["--model.policy.path", str(model_folder(seed=5))]):
        code, output = finish(start("validate", "--config", config, *change))
        assert code == 0, output
        assert "going on after" not in output
    assert len(list(unfinished.iterdir())) == 1


@pytest.mark.dist
def test_thirty_problems_on_four_ranks(tmp_path, model_folder):
    """B141: two of thirty solved is .0667, whatever the number of ranks."""
    engine = {
        "class_path": "ScriptedEngine",
        "init_args": {"answers": {"bench/3": "\\boxed{4}", "bench/28": "\\boxed{29}", "*": "\\boxed{0}"}},
    }
    benchmark = {"path": write_benchmark(tmp_path, 30), "k": 1}
    config = config_for(tmp_path, model_folder(), benchmark, data={"engine": engine})
    code, output = finish(start("validate", "--config", config, "--trainer.strategy=ddp", "--trainer.devices=4"))
    assert code == 0, output
    assert "avg@1 0.0667" in output
    (result,) = results(tmp_path)
    assert (result["num_problems"], result["num_samples"]) == (30, 30)
    assert result["scores"]["avg@1"] == pytest.approx(2 / 30, abs=1e-6)
    events = EventAccumulator(str(tmp_path / "runs/test/version_0"))
    events.Reload()
    assert events.Scalars("val/bench/avg@1")[0].value == pytest.approx(2 / 30, abs=1e-6)


def test_training_is_the_same_with_an_evaluation_every_phase(tmp_path, model_folder):
    """Losses, rewards and lengths to the bit: evaluation has random streams of its own."""
    model = model_folder()
    reward = {"class_path": "counting_task.EvenLength"}
    benchmark = {"path": write_benchmark(tmp_path, 3), "k": 2, "temperature": 0.7, "top_p": 0.9}
    config = config_for(tmp_path, model, benchmark, name="with.yaml", data={"reward": reward}, every_n_phases=1)
    plain = yaml.safe_load(config.read_text())
    del plain["trainer"]["callbacks"]
    (tmp_path / "without.yaml").write_text(yaml.safe_dump(plain))
    curves = []
    for version, name in enumerate(("with.yaml", "without.yaml")):
        code, output = finish(start("fit", "--config", tmp_path / name, "--trainer.max_epochs=3"))
        assert code == 0, output
        events = EventAccumulator(str(tmp_path / f"runs/test/version_{version}"), size_guidance={"scalars": 0})
        events.Reload()
        tags = ("optim/loss", "optim/grad_norm", "rollout/reward", "rollout/length", "policy/entropy")
        curves.append({tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in tags})
        assert ("val/bench/avg@2" in events.Tags()["scalars"]) is (version == 0)
    assert curves[0] == curves[1]
    assert len(curves[0]["optim/loss"]) == 6
