"""What would stop or spoil a curve: values that are not finite, and text that is not harmless."""

import json
import math

import pytest
import torch
from command import write_config
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from bapo_lightning.callbacks.logging import gather_values, log_at_update, reduce_sums
from bapo_lightning.callbacks.samples import _fenced, _markdown
from bapo_lightning.cli import main
from bapo_lightning.types import Completion, MetricSum, Prompt, Trajectory


@pytest.fixture
def trainer(tmp_path):
    return Trainer(accelerator="cpu", devices=1, logger=TensorBoardLogger(tmp_path, "run"), enable_checkpointing=False)


def test_values_that_are_not_finite_are_left_out_of_histograms(trainer):
    """B137: three NaN, nothing at all, and an infinity beside a number."""
    assert gather_values(trainer, torch.full((3,), math.nan), 10).tolist() == []
    assert gather_values(trainer, torch.tensor([]), 10).tolist() == []
    assert gather_values(trainer, torch.tensor([1.0, math.inf]), 10).tolist() == [1.0]
    assert gather_values(trainer, torch.arange(100.0), 5).tolist() == [0.0, 24.0, 49.0, 74.0, 99.0]


def test_a_metric_that_is_not_finite_is_counted_and_spoils_nothing(trainer):
    """B138: written are the others, and that one was not."""
    log_at_update(trainer, {"good": 1.5, "bad": math.nan, "worse": math.inf})
    trainer.logger.finalize("success")
    events = EventAccumulator(trainer.logger.log_dir)
    events.Reload()
    written = {tag: [e.value for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    assert written == {"good": [1.5], "nonfinite/bad": [1.0], "nonfinite/worse": [1.0]}
    assert float(trainer.callback_metrics["good"]) == 1.5


def test_sums_without_a_count_have_no_mean(trainer):
    sums = {"a": MetricSum(6.0, 4), "b": MetricSum(torch.tensor(0.0), torch.tensor(0))}
    assert reduce_sums(trainer, sums) == {"a": 1.5}


@pytest.mark.parametrize("text", ["```", "a\n```\n| x | y |\n````", "<script>alert(1)</script>", "# heading", ""])
def test_no_response_closes_its_own_block(text):
    fence, *body, last = _fenced(text).split("\n")
    assert fence == last
    assert set(fence) == {"`"}
    assert not any(line.startswith(fence) for line in body)
    assert "\n".join(body) == text


def test_a_pipe_or_a_line_break_in_a_cell_keeps_the_table_whole():
    completion = Completion((5,), (-1.0,), (0,), "stop")
    trajectory = Trajectory(Prompt("a|b\nc", "p", "1|2"), (1,), completion, 0, 0, 0, text="x", reward=None)
    row = _markdown(trajectory).split("\n")[2]
    assert row.replace("\\|", "").count("|") == 8
    assert "missing" in row


def test_early_stopping_sees_our_metrics(model_folder, tmp_path):
    """A monitor needs the newest value at the end of a phase; this one is never below its threshold."""
    stop = {
        "class_path": "lightning.pytorch.callbacks.EarlyStopping",
        "init_args": {"monitor": "policy/entropy", "stopping_threshold": 100.0, "check_on_train_epoch_end": True},
    }
    assert EarlyStopping.__module__.startswith("lightning.pytorch")
    config = write_config(tmp_path, model_folder(), trainer={"callbacks": [stop], "max_epochs": 5})
    assert main(["fit", "--config", str(config)]) == 0
    checkpoint = torch.load(tmp_path / "runs/test/version_0/checkpoints/last.ckpt", weights_only=True)
    # Entropy is below the threshold at once, so the first phase of two updates is the last.
    assert checkpoint["global_step"] == 2


def test_listed_callbacks_keep_the_permanent_ones(model_folder, tmp_path):
    """Trap 4: one of the user's own, beside which curves, samples and checkpoint are still written."""
    own = {"class_path": "lightning.pytorch.callbacks.LearningRateMonitor"}
    config = write_config(tmp_path, model_folder(), trainer={"callbacks": [own]})
    assert main(["fit", "--config", str(config)]) == 0
    folder = tmp_path / "runs/test/version_0"
    assert (folder / "checkpoints/last.ckpt").is_file()
    assert json.loads((folder / "samples/phase_00000.jsonl").read_text().splitlines()[0])["prompt"]
    events = EventAccumulator(str(folder))
    events.Reload()
    assert "policy/entropy" in events.Tags()["scalars"]
