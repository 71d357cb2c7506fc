"""`bapo` in processes of its own: signals, kills, and two ranks."""

import os
import signal
import time

import pytest
import torch
import yaml
from command import finish, start, write_config
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from bapo_lightning.checkpoint_files import RunCheckpointIO


def load(path):
    return torch.load(path, weights_only=True)


def scalars(folder):
    """Tag → {step: value} of a run's event files."""
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: {e.step: e.value for e in events.Scalars(tag)} for tag in events.Tags()["scalars"]}


def wait_for(path, process, seconds=120):
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert process.poll() is None, finish(process)[1]
        assert time.monotonic() < deadline, "the run did not get there in time"
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_a_checkpoint_that_the_run_goes_on_from(model_folder, tmp_path, number):
    """Stop in the middle, go on with --ckpt_path last: the weights at the end are those of the straight run."""
    long = write_config(tmp_path, model_folder(), trainer={"max_epochs": 40}, data={"inner_epochs": 2})
    run = tmp_path / "runs/test"
    process = start("fit", "--config", long)
    wait_for(run / "version_0/samples/phase_00002.jsonl", process)
    process.send_signal(number)
    code, output = finish(process)
    assert code == 1, output
    assert "--ckpt_path last" in output
    assert "Traceback" not in output
    stopped = load(run / "version_0/checkpoints/last.ckpt")["global_step"]
    assert 8 < stopped < 160

    code, output = finish(start("fit", "--config", long, "--ckpt_path", "last"))
    assert code == 0, output
    code, output = finish(start("fit", "--config", long, "--trainer.logger.init_args.name=straight"))
    assert code == 0, output
    resumed, straight = (
        load(tmp_path / f"runs/{name}/version_0/checkpoints/last.ckpt") for name in ("test", "straight")
    )
    assert resumed["global_step"] == straight["global_step"] == 160
    for name, value in straight["state_dict"].items():
        assert torch.equal(value, resumed["state_dict"][name]), name
    # One run, one folder, one curve without a gap or a doubled point.
    assert not (run / "version_1").exists()
    assert sorted(scalars(run / "version_0")["policy/entropy"]) == list(range(1, 161))


def test_kill_9_leaves_the_last_checkpoint_loadable(model_folder, tmp_path):
    long = write_config(tmp_path, model_folder(), trainer={"max_epochs": 400})
    process = start("fit", "--config", long)
    checkpoint = tmp_path / "runs/test/version_0/checkpoints/last.ckpt"
    wait_for(checkpoint, process)
    process.kill()
    finish(process)
    done = load(checkpoint)["global_step"]
    # A checkpoint is written after every phase of 2 updates, not only at the end of 400 phases.
    assert 2 <= done < 200
    arguments = ["fit", "--config", long, "--ckpt_path", "last", f"--trainer.max_steps={done + 3}"]
    code, output = finish(start(*arguments))
    assert code == 0, output


@pytest.mark.dist
@pytest.mark.parametrize(
    ("micro_batch_size", "clipping", "buffer"),
    [
        (None, "BAPOClip", {"class_path": "ReplayBuffer", "init_args": {"drop_uniform": True}}),
        (3, "BAPOClip", None),
        (3, "DecoupledPPO", {"class_path": "ReplayBuffer", "init_args": {"capacity": 8}}),
        (None, "TopEntropyTokens", None),
        (3, "FixedClip", "partial and beside training"),
    ],
)
def test_two_ranks_equal_one_process(model_folder, tmp_path, micro_batch_size, clipping, buffer):
    """B056: the same rollouts, curves and weights; text sampled once, groups whole, metrics over all ranks."""
    # Plain SGD: Adam's first steps turn rounding errors of tiny gradients into whole steps.
    base = write_config(
        tmp_path, model_folder(), model={"micro_batch_size": micro_batch_size}, trainer={"max_epochs": 3}
    )
    config = yaml.safe_load(base.read_text())
    config["model"]["optimizer"] = {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.5}}
    config["model"]["clipping"] = {"class_path": clipping}
    if isinstance(buffer, str):
        buffer = None
        config["data"]["rollout"] = {"token_budget": 2, "overlap": True}
    config["data"]["buffer"] = buffer
    config["data"]["lag"] = 2 if clipping == "TopEntropyTokens" else None
    config["data"]["max_generations"] = 3 if buffer and "drop_uniform" in buffer["init_args"] else 1
    shadows = [{"class_path": "BAPOClip", "init_args": {"target": 0.5}}, {"class_path": "GSPO"}]
    config["trainer"]["callbacks"] = [{"class_path": "EntropyClipMonitor", "init_args": {"shadow": shadows}}]
    base.write_text(yaml.safe_dump(config))
    two = ["--trainer.strategy=ddp", "--trainer.devices=2", "--trainer.accelerator=cpu"]
    one_process = start("fit", "--config", base, "--trainer.logger.init_args.name=one")
    code, output = finish(one_process)
    assert code == 0, output
    code, output = finish(start("fit", "--config", base, "--trainer.logger.init_args.name=two", *two))
    assert code == 0, output
    one, two_ranks = (tmp_path / f"runs/{name}/version_0" for name in ("one", "two"))
    assert sorted(os.listdir(one / "samples")) == sorted(os.listdir(two_ranks / "samples"))
    for name in os.listdir(one / "samples"):
        assert (one / "samples" / name).read_text() == (two_ranks / "samples" / name).read_text()
    expected, found = scalars(one), scalars(two_ranks)
    assert expected.keys() == found.keys()
    for tag in expected:
        if tag.startswith("time/"):
            continue
        assert found[tag].keys() == expected[tag].keys(), tag
        for step, value in expected[tag].items():
            assert found[tag][step] == pytest.approx(value, rel=2e-4, abs=2e-5), (tag, step)
    weights, weights_two = (load(folder / "checkpoints/last.ckpt")["state_dict"] for folder in (one, two_ranks))
    for name, value in weights.items():
        torch.testing.assert_close(weights_two[name], value, atol=2e-5, rtol=1e-4)


TWO_RANKS = ["--trainer.strategy=ddp", "--trainer.devices=2"]


@pytest.mark.dist
@pytest.mark.parametrize(
    ("first", "then", "data"),
    [
        (TWO_RANKS, [], {"rollout": {"token_budget": 2}}),
        ([], TWO_RANKS, {"rollout": {"token_budget": 2, "overlap": True}}),
    ],
)
def test_a_run_goes_on_with_another_number_of_ranks(model_folder, tmp_path, first, then, data):
    """Groups, also those under way, are on every rank, so nothing is lost or doubled when their number changes."""
    sgd = {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.5}}
    config = write_config(tmp_path, model_folder(), model={"optimizer": sgd}, trainer={"max_epochs": 3}, data=data)
    code, output = finish(start("fit", "--config", config, *first, "--trainer.max_steps=3"))
    assert code == 0, output
    checkpoint = tmp_path / "runs/test/version_0/checkpoints/last.ckpt"
    assert load(checkpoint)["global_step"] == 3
    code, output = finish(start("fit", "--config", config, *then, "--ckpt_path", "last"))
    assert code == 0, output
    code, output = finish(start("fit", "--config", config, "--trainer.logger.init_args.name=straight"))
    assert code == 0, output
    resumed, straight = (
        RunCheckpointIO().load_checkpoint(tmp_path / f"runs/{name}/version_0/checkpoints/last.ckpt")
        for name in ("test", "straight")
    )
    for name, value in straight["state_dict"].items():
        torch.testing.assert_close(resumed["state_dict"][name], value, atol=2e-5, rtol=1e-4)
    states = [checkpoint["ReplayDataModule"] for checkpoint in (resumed, straight)]
    for packed in ("buffer", "open"):
        both = [(s["queue"] | s["supply"]["source"])[packed] for s in states]
        both = [b.get("trajectories", b) for b in both]
        assert len(both[0]["token_ids"]) > 0
        for column in ("group_id", "token_ids", "policy_versions", "finish_reason"):
            found, expected = (list(b[column]) for b in both)
            assert found == expected, (packed, column)


@pytest.mark.dist
def test_a_mistake_on_two_ranks_is_said_once(model_folder, tmp_path):
    config = write_config(tmp_path, model_folder(), data={"groups_per_phase": 3, "groups_per_update": 3})
    code, output = finish(start("fit", "--config", config, "--trainer.strategy=ddp", "--trainer.devices=2"))
    assert code == 2, output
    assert output.count("bapo: error: data.groups_per_update = 3") == 1, output
    assert "Traceback" not in output
