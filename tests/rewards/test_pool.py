r"""Worker processes: limits, replacement, isolation, and a clean end. Nothing here is mocked."""

import copy
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from bapo_lightning.rewards.pool import WorkerPool

HANGS = ("\\frac{1}{2}", "9^{9^{9^{9}}}")
RIGHT = ("\\frac{1}{2}", "0.5")
WRONG = ("\\frac{1}{2}", "0.25")
RAISES = ("1 < x < 3", "1 < x < 3 < y")

needs_proc = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="reads /proc")


@pytest.fixture
def pool():
    workers = WorkerPool(num_workers=1, timeout_seconds=30.0, memory_gib=2.0)
    yield workers
    workers.close()


def _process_ids(pool):
    return [worker._process.pid for worker in pool._workers]


def _is_running(process_id):
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True


def test_verdicts_keep_their_order(pool):
    pairs = [RIGHT, WRONG, RAISES, ("--", "5"), RIGHT]
    assert pool.run(pairs) == ["correct", "wrong", "error", "bad_gold", "correct"]


def test_nothing_starts_before_it_is_needed(pool):
    assert pool.run([]) == []
    assert _process_ids(pool) == []


def test_a_hang_costs_only_itself_and_its_process_is_replaced():
    pool = WorkerPool(num_workers=2, timeout_seconds=1.5, memory_gib=2.0)
    pool.run([RIGHT, RIGHT])
    before = _process_ids(pool)
    assert pool.run([HANGS, RIGHT, WRONG, HANGS, RIGHT]) == ["timeout", "correct", "wrong", "timeout", "correct"]
    killed = [process_id for process_id in before if process_id not in _process_ids(pool)]
    assert killed
    assert not any(map(_is_running, killed))  # killed and waited for: not even a zombie
    pool.close()


def test_a_process_that_ends_in_the_middle_is_an_error(pool):
    pool.run([RIGHT])
    (process_id,) = _process_ids(pool)
    timer = threading.Timer(0.5, os.kill, (process_id, signal.SIGKILL))
    timer.start()
    assert pool.run([HANGS, RIGHT]) == ["error", "correct"]
    timer.join()


def test_a_process_that_ended_while_idle_blames_no_answer(pool):
    pool.run([RIGHT])
    pool._workers[0]._process.kill()
    pool._workers[0]._process.wait()
    assert pool.run([RIGHT, WRONG]) == ["correct", "wrong"]


@needs_proc
def test_memory_is_bounded_and_the_environment_is_not_inherited(pool, monkeypatch):
    monkeypatch.setenv("A_SECRET_TOKEN", "abc")
    pool.run([RIGHT])
    (process_id,) = _process_ids(pool)
    assert b"SECRET" not in Path(f"/proc/{process_id}/environ").read_bytes()
    limits = Path(f"/proc/{process_id}/limits").read_text()
    (line,) = [line for line in limits.splitlines() if line.startswith("Max address space")]
    assert line.split()[3] == str(2 << 30)


def test_too_little_memory_to_start_is_said():
    pool = WorkerPool(num_workers=1, timeout_seconds=5.0, memory_gib=0.02)
    with pytest.raises(RuntimeError, match="memory_gib"):
        pool.run([RIGHT])
    assert _process_ids(pool) == []


def test_it_runs_from_threads_at_once(pool):
    verdicts = {}
    threads = [threading.Thread(target=lambda i=i: verdicts.update({i: pool.run([RIGHT, WRONG])})) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(verdicts.values()) == [["correct", "wrong"]] * 4


def test_it_can_be_closed_reused_pickled_and_copied(pool):
    assert pool.run([RIGHT]) == ["correct"]
    (process_id,) = _process_ids(pool)
    pool.close()
    pool.close()
    assert not _is_running(process_id)
    for again in (pool, pickle.loads(pickle.dumps(pool)), copy.deepcopy(pool)):
        assert again.run([RIGHT]) == ["correct"]
        again.close()


def test_its_processes_end_with_it():
    pool = WorkerPool(num_workers=1, timeout_seconds=30.0, memory_gib=2.0)
    pool.run([RIGHT])
    (process_id,) = _process_ids(pool)
    del pool
    assert not _is_running(process_id)


def test_a_program_without_a_main_guard_works_and_leaves_nothing_behind():
    program = """
import json, os
from bapo_lightning.rewards.pool import WorkerPool
print("main runs")
pool = WorkerPool(1, 30.0, 2.0)
print(json.dumps([pool.run([("\\\\frac{1}{2}", "0.5")]), [w._process.pid for w in pool._workers]]))
"""
    done = subprocess.run([sys.executable], input=program, capture_output=True, text=True, timeout=120, check=True)
    first, second = done.stdout.splitlines()  # once: no worker ran the main program again
    verdicts, process_ids = json.loads(second)
    assert (first, verdicts) == ("main runs", ["correct"])
    assert not any(map(_is_running, process_ids))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_uses_processes_of_its_own(pool):
    pool.run([RIGHT])
    before = _process_ids(pool)
    child = os.fork()
    if child == 0:
        is_right = pool.run([RIGHT]) == ["correct"] and _process_ids(pool) != before
        pool.close()
        os._exit(0 if is_right else 1)
    deadline = time.monotonic() + 60
    while (status := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert status == (child, 0)
    assert pool.run([WRONG]) == ["wrong"]
    assert _process_ids(pool) == before
