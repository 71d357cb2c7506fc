"""`bapo rollout` and `bapo replay`: data frozen in files, and strategies trained on exactly the same of it."""

import pandas
import pytest
import torch
import yaml
from command import write_config
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from bapo_lightning.cli import main
from bapo_lightning.replay import read_rollouts


def curve(folder, tag):
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {event.step: event.value for event in events.Scalars(tag)}


def weights(folder):
    return torch.load(folder / "checkpoints/last.ckpt", weights_only=True)["state_dict"]


@pytest.fixture
def config(model_folder, tmp_path):
    return write_config(tmp_path, model_folder(), data={"inner_epochs": 2})


@pytest.fixture
def rollouts(config, tmp_path, capsys):
    """Two phases of four groups of four."""
    assert main(["rollout", "--config", str(config), "--out", str(tmp_path / "rollouts"), "--phases", "2"]) == 0
    assert "8 groups, 32 responses" in capsys.readouterr().out
    return tmp_path / "rollouts"


def fit_on(rollouts, config, *more):
    return main(["fit", "--config", str(config), f"--data.rollouts={rollouts}", *more])


def test_training_on_frozen_rollouts_is_the_run_that_sampled_them(config, rollouts, tmp_path):
    """The first phase of a run samples with the initial weights, as `bapo rollout` does: the same updates exactly."""
    assert main(["fit", "--config", str(config), "--trainer.max_epochs=1"]) == 0
    assert fit_on(rollouts, config, "--trainer.max_epochs=1", "--trainer.logger.init_args.name=frozen") == 0
    sampled, frozen = (tmp_path / "runs" / name / "version_0" for name in ("test", "frozen"))
    for tag in ("policy/entropy", "rollout/reward", "optim/loss", "optim/grad_norm", "staleness/mean"):
        assert curve(sampled, tag) == curve(frozen, tag), tag
    for name, value in weights(sampled).items():
        assert torch.equal(value, weights(frozen)[name]), name


def test_it_ends_with_the_data_and_its_age_grows(config, rollouts, tmp_path, caplog):
    """Two phases of four updates; all tokens are of version 0, so update n trains on tokens n updates old."""
    assert fit_on(rollouts, config, "--trainer.max_epochs=9") == 0
    assert "holds 8 groups: the run ends after 2 phases of at most 4" in caplog.text
    assert curve(tmp_path / "runs/test/version_0", "staleness/mean") == {n: n - 1 for n in range(1, 9)}


def test_strategies_are_compared_on_the_same_data(config, rollouts, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(__file__.rpartition("/cli/")[0]))
    higher = tmp_path / "higher.yaml"
    higher.write_text(yaml.safe_dump({"model": {"clipping": {"class_path": "ClipHigher", "init_args": {"high": 1.6}}}}))
    arguments = ["replay", "--config", str(config), "--rollouts", str(rollouts), "--trainer.max_epochs=2"]
    assert main([*arguments, "--strategy", "FixedClip", "--strategy", str(higher), "--out", "side"]) == 0
    table = (tmp_path / "side/comparison.md").read_text()
    assert [line.split(" | ")[:2] for line in table.splitlines()[2:]] == [["| FixedClip", "8"], ["| higher", "8"]]
    runs = [tmp_path / "side" / name / "version_0" for name in ("FixedClip", "higher")]
    # The first update has seen no difference yet: the same responses in the same order.
    first = [curve(run, "policy/entropy") for run in runs]
    assert first[0][1] == first[1][1]
    assert curve(runs[0], "rollout/length") == curve(runs[1], "rollout/length")
    assert curve(runs[1], "clip/bound_high")[1] == pytest.approx(1.6)


def test_a_frozen_run_goes_on_where_it_stopped(config, rollouts, tmp_path):
    assert fit_on(rollouts, config) == 0
    name = "--trainer.logger.init_args.name=stopped"
    assert fit_on(rollouts, config, name, "--trainer.max_steps=5") == 0
    assert fit_on(rollouts, config, name, "--ckpt_path=last") == 0
    straight, resumed = (weights(tmp_path / "runs" / name / "version_0") for name in ("test", "stopped"))
    for key, value in straight.items():
        assert torch.equal(value, resumed[key]), key


def test_rollouts_of_a_checkpoint_count_from_its_weights(config, tmp_path):
    assert main(["fit", "--config", str(config)]) == 0
    checkpoint = tmp_path / "runs/test/version_0/checkpoints/last.ckpt"
    out = tmp_path / "later"
    assert main(["rollout", "--config", str(config), "--out", str(out), "--ckpt_path", str(checkpoint)]) == 0
    found = read_rollouts(out)
    assert {v for group in found.groups for t in group for v in t.completion.policy_versions} == {0}
    assert (out / "config.yaml").exists()


def test_a_file_made_elsewhere_trains(config, tmp_path):
    """Required columns only, from pandas."""
    pandas.DataFrame(
        {
            "group_id": [0, 0, 1, 1],
            "prompt_ids": [[0, 4, 5]] * 2 + [[0, 7]] * 2,
            "token_ids": [[9, 8, 1], [9, 1], [5, 5, 5, 5, 5, 5], [1]],
            "log_probs": [[-3.0] * 3, [-3.0] * 2, [-4.0] * 6, [-5.0]],
            "policy_versions": [[0] * 3, [0] * 2, [0] * 6, [0]],
            "reward": [1.0, 0.0, 0.0, 1.0],
            "temperature": [1.0] * 4,
            "max_new_tokens": [6] * 4,
        }
    ).to_parquet(tmp_path / "theirs.parquet")
    assert fit_on(tmp_path / "theirs.parquet", config, "--data.groups_per_phase=2") == 0
    run = tmp_path / "runs/test/version_0"
    assert curve(run, "rollout/length") == {0: 3.0}
    # Nobody said whether an answer is correct: there is no success, and not one of 0.
    events = EventAccumulator(str(run), size_guidance={"scalars": 0})
    events.Reload()
    assert not {"rollout/success", "rollout/status_", "rollout/length_failure"} & set(events.Tags()["scalars"])


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--data.sampling.temperature=0.5"], ["data.sampling.temperature is 0.5", "1.0"]),
        (["--data.sampling.max_new_tokens=9"], ["data.sampling.max_new_tokens is 9", "6"]),
        (["--data.lag=4"], ["data.lag", "data.rollouts"]),
        (["--data.rollout.overlap=true"], ["data.rollout.overlap"]),
        (["--data.rollout.token_budget=2"], ["data.rollout.token_budget"]),
    ],
)
def test_settings_that_do_not_fit_the_files_are_refused(config, rollouts, capsys, flags, words):
    assert fit_on(rollouts, config, *flags) == 2
    said = capsys.readouterr().err
    assert all(word in said for word in words), said


def changed(rollouts, column, value):
    path = rollouts / "phase_00000.parquet"
    frame = pandas.read_parquet(path)
    frame[column] = [[value] * len(ids) for ids in frame["token_ids"]]
    frame.to_parquet(path)


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("policy_versions", 3, ["group 0", "version 3", "after 0 updates"]),
        ("token_ids", 999, ["group 0", "token id 999", "64 tokens"]),
    ],
)
def test_rollouts_of_other_weights_or_models_are_refused(config, rollouts, capsys, column, value, words):
    changed(rollouts, column, value)
    assert fit_on(rollouts, config) == 2
    said = capsys.readouterr().err
    assert all(word in said for word in words), said


def test_mistakes_on_the_command_line(config, rollouts, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rollout = ["rollout", "--config", str(config), "--out"]
    replay = ["replay", "--config", str(config), "--rollouts"]
    for arguments, words in (
        ([*rollout, str(rollouts)], "is not empty"),
        ([*rollout, "new", "--phases=0"], "phases must be at least 1"),
        ([*rollout, "new", "--data.rollout.token_budget=2"], "token_budget"),
        ([*rollout, "new", f"--data.rollouts={rollouts}"], "sampled already"),
        ([*replay, "nowhere"], "nowhere does not exist"),
        ([*replay, str(rollouts), "--strategy", "A", "--strategy", "A"], "given twice"),
        ([*replay, str(rollouts), "--strategy", "no.yaml"], "no.yaml does not exist"),
    ):
        assert main(arguments) == 2, arguments
        assert words in capsys.readouterr().err


def test_uniform_groups_are_left_out_before_phases_are_dealt(config, rollouts, tmp_path, caplog):
    """The first phase would have no group at all; the others fill one."""
    frames = [pandas.read_parquet(path) for path in sorted(rollouts.glob("*.parquet"))]
    frames[0]["reward"] = 1.0
    frames[1]["reward"] = [float(i % 2) for i in range(len(frames[1]))]
    for path, frame in zip(sorted(rollouts.glob("*.parquet")), frames, strict=True):
        frame.to_parquet(path)
    buffer = ["--data.buffer=ReplayBuffer", "--data.buffer.drop_uniform=true"]
    assert fit_on(rollouts, config, *buffer) == 0
    assert "4 of 8 groups teach nothing" in caplog.text
    run = tmp_path / "runs/test/version_0"
    assert curve(run, "rollout/uniform_groups") == {0: 0.0}
    assert len(curve(run, "policy/entropy")) == 4


def test_a_share_of_groups_does_not_depend_on_their_size(config, rollouts, tmp_path):
    """Groups of four, in a config that says groups of eight."""
    path = sorted(rollouts.glob("*.parquet"))[0]
    frame = pandas.read_parquet(path)
    frame["reward"] = [1.0] * 8 + [float(i % 2) for i in range(8)]
    frame.to_parquet(path)
    assert fit_on(path, config, "--data.group_size=8") == 0
    assert curve(tmp_path / "runs/test/version_0", "rollout/uniform_groups") == {0: 0.5}


def test_rollouts_of_a_checkpoint_take_its_weights_and_nothing_else(config, tmp_path):
    """Not the responses that were under way there, which older weights sampled; and any lag may be left out."""
    partial = ["--data.rollout.token_budget=2", "--data.rollout.overlap=true"]
    assert main(["fit", "--config", str(config), *partial]) == 0
    checkpoint = tmp_path / "runs/test/version_0/checkpoints/last.ckpt"
    out = tmp_path / "later"
    assert main(["rollout", "--config", str(config), "--out", str(out), "--ckpt_path", str(checkpoint)]) == 0
    assert [group[0].group_id for group in read_rollouts(out).groups] == [0, 1, 2, 3]


def test_a_run_that_sampled_cannot_go_on_with_files(config, rollouts, tmp_path, capsys):
    assert main(["fit", "--config", str(config), "--trainer.max_epochs=1"]) == 0
    for more in ([], ["--data.accept_changed_prompts=true"]):
        assert fit_on(rollouts, config, "--ckpt_path=last", *more) == 2
        assert "Traceback" not in capsys.readouterr().err
