"""Rollouts beside training: one background thread, whose errors are the run's and which ends with it."""

import os
import signal
import threading
import time

import pytest
import torch
from counting_task import EvenLength
from lightning.pytorch import Callback
from test_datamodule import fit

from bapo_lightning.background import BackgroundJob
from bapo_lightning.errors import InputError
from bapo_lightning.rollout import HFEngine, RolloutSettings
from bapo_lightning.types import Score

OVERLAP = RolloutSettings(overlap=True)


def rollout_threads():
    return [t for t in threading.enumerate() if t.name.startswith("rollouts beside phase")]


class WatchedEngine(HFEngine):
    """The real engine, which remembers who asked it, at which version."""

    def __init__(self, slow_after=None):
        super().__init__()
        self.asked = []
        self.slow_after = slow_after

    def generate(self, requests, sampling, precision=None):
        self.asked.append((threading.current_thread() is threading.main_thread(), self.version))
        if self.slow_after is not None and len(self.asked) > self.slow_after:
            while not self.cancelled.is_set():
                time.sleep(0.01)
        return super().generate(requests, sampling, precision)


def test_phases_are_sampled_beside_the_one_before(model_folder):
    """Phase 0 before training; phase n+1 in the background, by the weights that phase n begins with: 4n updates."""
    engine = WatchedEngine()
    updates, data = fit(model_folder(), engine=engine, rollout=OVERLAP, trainer={"max_epochs": 4})
    assert engine.asked == [(True, 0), (False, 0), (False, 4), (False, 8), (False, 12)]
    ages = [(u.version - u.batch.policy_versions[u.batch.response_mask]).unique().tolist() for u in updates]
    assert ages == [[0], [1], [2], [3]] + [[4], [5], [6], [7]] * 3
    assert "time/rollout_wait_seconds" in data.phase_metrics
    assert data.phase_metrics["rollout/length"] > 0
    assert rollout_threads() == []


def test_training_does_not_change_the_weights_that_sample(model_folder):
    """With a large step the ratio to the old weights is far from 1, and exactly 1 where nothing was learnt."""
    updates, _ = fit(model_folder(), rollout=OVERLAP, learning_rate=0.0, trainer={"max_epochs": 3})
    assert max(u.log_ratio.abs().max() for u in updates) < 1e-5
    updates, _ = fit(model_folder(), rollout=OVERLAP, learning_rate=0.5, trainer={"max_epochs": 3})
    assert updates[4].log_ratio.abs().max() > 1e-2


class FailingLater(EvenLength):
    """Fails in the second rollout, which is the first in the background."""

    def __init__(self, error):
        super().__init__()
        self.calls = 0
        self.error = error

    def score(self, responses, answers, finish_reasons=None):
        self.calls += 1
        if self.calls > 1:
            raise self.error
        return super().score(responses, answers, finish_reasons)


@pytest.mark.parametrize("error", [InputError("data.reward: the server is down"), RuntimeError("reward broke")])
def test_an_exception_in_the_background_stops_the_run_with_its_own_message(model_folder, error):
    with pytest.raises(type(error), match=str(error)):
        fit(model_folder(), rollout=OVERLAP, reward=FailingLater(error))
    assert rollout_threads() == []


class AllMissing(EvenLength):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def score(self, responses, answers, finish_reasons=None):
        self.calls += 1
        if self.calls == 1:
            return super().score(responses, answers, finish_reasons)
        return [Score(float("nan"), "timeout") for _ in responses]


def test_a_background_phase_without_any_reward_says_so(model_folder):
    with pytest.raises(InputError, match=r"not one of the 16 rewards .*timeout 16"):
        fit(model_folder(), rollout=OVERLAP, reward=AllMissing())


def test_an_error_of_training_ends_the_background_rollout(model_folder):
    """The engine would never end by itself; the run stops it."""
    engine = WatchedEngine(slow_after=1)

    class Fail(Callback):
        def on_train_batch_end(self, *args):
            raise RuntimeError("the disk is full")

    with pytest.raises(RuntimeError, match="the disk is full"):
        fit(model_folder(), engine=engine, rollout=OVERLAP, trainer={"callbacks": [Fail()]})
    assert rollout_threads() == []


def test_a_job_hands_over_what_it_brought():
    assert BackgroundJob(lambda: 7, "seven").result() == 7
    job = BackgroundJob(lambda: 1 / 0, "fails")
    assert job.wait(10)
    with pytest.raises(ZeroDivisionError):
        job.raise_if_failed()
    with pytest.raises(ZeroDivisionError):
        job.result()
    release = threading.Event()
    job = BackgroundJob(release.wait, "waits")
    job.raise_if_failed()
    assert not job.wait(0.01)
    release.set()
    assert job.result() is True


@pytest.mark.parametrize("precision", ["bf16-true", "bf16-mixed"])
def test_torchs_default_dtype_stays_float32_beside_training(model_folder, precision):
    """It belongs to the process: a context that sets it must not be entered in two threads."""
    seen = []

    class Look(Callback):
        def on_train_batch_end(self, *args):
            seen.append(torch.get_default_dtype())

    trainer = {"precision": precision, "callbacks": [Look()], "max_epochs": 5}
    fit(model_folder(), rollout=OVERLAP, trainer=trainer)
    assert set(seen) == {torch.float32}
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize("max_batch_size", [2, 64])
def test_a_copy_samples_as_the_policy_does(model_folder, max_batch_size):
    """Groups of three in batches of two: shapes whose kernels round by the alignment of the weights."""
    runs = []
    for settings in ({"lag": 4}, {"rollout": OVERLAP}):
        engine = HFEngine(max_batch_size)
        updates, _ = fit(model_folder(), engine=engine, group_size=3, trainer={"max_epochs": 3}, **settings)
        runs.append([(u.loss, u.batch.rollout_log_probs.tolist()) for u in updates])
    assert runs[0] == runs[1]


def test_an_interrupted_wait_does_not_take_the_work_for_done():
    """An interrupted `Thread.join` marks a thread that still runs as ended."""
    release = threading.Event()
    job = BackgroundJob(release.wait, "waits")
    timer = threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        job.result()
    assert not job.wait(0.05)
    release.set()
    assert job.wait(10)
