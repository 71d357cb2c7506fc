"""Worker processes for math-verify that can be stopped in the middle of an expression that never ends.

math-verify limits time by signals, which work in the main thread only. Here the parent waits with a deadline and
kills. It uses pipes and ``select`` and no thread, so it runs from any thread and under any start method.
"""

import json
import os
import selectors
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bapo_lightning.rewards.worker import HEADER

_WORKER_FILE = Path(__file__).with_name("worker.py")
_INHERITED = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT", "TMPDIR")
_START_SECONDS = 120.0
_SPARE_CPU_SECONDS = 10.0
_GIB = 1 << 30


class WorkerPool:
    """Runs comparisons one by one in separate processes, each within limits of time and memory.

    Processes start when the first comparison comes and end with `close`, with the pool, or with the interpreter.
    They inherit no environment but the paths of libraries. One batch runs at a time; other threads wait.

    Args:
        num_workers: Processes, >= 1.
        timeout_seconds: Wall-clock time of one comparison, > 0; starting a process does not count.
        memory_gib: Address space of one process, in GiB.
    """

    def __init__(self, num_workers: int, timeout_seconds: float, memory_gib: float) -> None:
        self._settings = (num_workers, timeout_seconds, memory_gib)
        self._num_workers = num_workers
        self._timeout_seconds = timeout_seconds
        self._memory_bytes = int(memory_gib * _GIB)
        self._lock = threading.Lock()
        self._workers: list[_Worker] = []
        self._owner = os.getpid()
        self._finalizer = weakref.finalize(self, _end_all, self._workers, self._owner)

    def __reduce__(self) -> tuple[type["WorkerPool"], tuple[int, float, float]]:
        return WorkerPool, self._settings

    def run(self, pairs: Sequence[tuple[str, str]]) -> list[str]:
        """Compare golds with answers.

        Args:
            pairs: (gold, answer), both LaTeX without delimiters.

        Returns:
            For each pair ``correct``, ``wrong``, ``bad_gold``, ``timeout`` (out of time or memory) or ``error`` (the
            comparison raised, or its process ended).

        Raises:
            RuntimeError: The processes do not start, for example because math-verify cannot be imported.
        """
        if os.getpid() != self._owner:
            self._leave_to_parent()
        with self._lock:
            try:
                return self._run(pairs)
            except BaseException:
                _end_all(self._workers, self._owner)  # a reply may be under way: these cannot be used again
                raise

    def _run(self, pairs: Sequence[tuple[str, str]]) -> list[str]:
        verdicts = ["error"] * len(pairs)
        waiting = deque(range(len(pairs)))
        busy = 0
        while waiting or busy:
            self._replace_ended(wanted=min(self._num_workers, len(waiting) + busy))
            for worker in self._workers:
                if waiting and worker.is_idle:
                    index = waiting.popleft()
                    if not worker.ask(index, *pairs[index], self._timeout_seconds):
                        waiting.appendleft(index)  # it ended while idle, so this pair is not to blame
            for worker, has_data in _wait(self._workers):
                finished, verdict = worker.receive() if has_data else worker.give_up("timeout")
                if finished is not None and verdict is not None:
                    verdicts[finished] = verdict
            busy = sum(worker.index is not None for worker in self._workers)
        return verdicts

    def _leave_to_parent(self) -> None:
        """Start afresh in a forked child, which must share neither pipes nor a held lock with its parent."""
        self._finalizer.detach()
        self._lock, self._workers, self._owner = threading.Lock(), [], os.getpid()
        self._finalizer = weakref.finalize(self, _end_all, self._workers, self._owner)

    def _replace_ended(self, wanted: int) -> None:
        """Forget processes that ended and start new ones."""
        self._workers[:] = [worker for worker in self._workers if not worker.has_ended]
        while len(self._workers) < wanted:
            self._workers.append(_Worker(self._memory_bytes))

    def close(self) -> None:
        """End the processes; the next `run` starts new ones."""
        with self._lock:
            _end_all(self._workers, self._owner)


class _Worker:
    """One process, and what it is doing: starting, idle, comparing pair ``index``, or ended."""

    def __init__(self, memory_bytes: int) -> None:
        if not sys.executable:
            raise RuntimeError("MathReward needs a Python executable to start its workers; sys.executable is empty")
        environment = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        self._process = subprocess.Popen(
            # -I: neither the environment nor this folder may shadow a module. A session of its own keeps
            # Ctrl-C from the worker, so that its end is always the parent's doing.
            [sys.executable, "-I", str(_WORKER_FILE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment | {"OMP_NUM_THREADS": "1"},
            start_new_session=True,
            bufsize=0,
        )
        self.index: int | None = None
        self.has_ended = False
        self._is_ready = False
        self._received = b""
        self.deadline = time.monotonic() + _START_SECONDS
        self._send({"sys_path": [entry for entry in sys.path if entry], "memory_bytes": memory_bytes})

    @property
    def is_idle(self) -> bool:
        return self._is_ready and self.index is None and not self.has_ended

    def fileno(self) -> int:
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def ask(self, index: int, gold: str, answer: str, seconds: float) -> bool:
        """Send a pair; False when the process is gone."""
        request = {"gold": gold, "answer": answer, "cpu_seconds": seconds + _SPARE_CPU_SECONDS}
        if not self._send(request):
            self.end()
            return False
        self.index, self.deadline = index, time.monotonic() + seconds
        return True

    def receive(self) -> tuple[int | None, str | None]:
        """Take what has arrived.

        Returns:
            The pair that is finished and its verdict; (None, None) when nothing is finished.
        """
        data = os.read(self.fileno(), 65536)
        if not data:
            return self.give_up("error")
        self._received += data
        if len(self._received) < HEADER.size:
            return None, None
        (length,) = HEADER.unpack_from(self._received)
        if len(self._received) < HEADER.size + length:
            return None, None
        message: dict[str, Any] = json.loads(self._received[HEADER.size :])
        self._received = b""
        if "error" in message:
            raise RuntimeError(f"the workers of MathReward cannot start: {message['error']}")
        self._is_ready = True
        index, self.index = self.index, None
        if message.get("is_last"):
            self.end()
        return index, message.get("verdict")

    def give_up(self, verdict: str) -> tuple[int | None, str]:
        """End the process and give the pair it was at this verdict.

        Raises:
            RuntimeError: It had not even started.
        """
        self.end()
        if not self._is_ready:
            raise RuntimeError(
                f"a worker of MathReward did not start within {_START_SECONDS:.0f} s"
                if verdict == "timeout"
                else f"a worker of MathReward ended while starting (exit code {self._process.returncode}); "
                "a larger memory_gib may help"
            )
        index, self.index = self.index, None
        return index, verdict

    def _send(self, message: dict[str, Any]) -> bool:
        body = json.dumps(message).encode("ascii")
        data = memoryview(HEADER.pack(len(body)) + body)
        assert self._process.stdin is not None
        try:
            while data:
                data = data[self._process.stdin.write(data) or 0 :]
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def end(self) -> None:
        """Kill the process, wait for it and close its pipes; may be called twice."""
        self.has_ended = True
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def _wait(workers: Sequence[_Worker]) -> list[tuple[_Worker, bool]]:
    """Wait until a worker has something to say or passes its deadline; return those, and whether they said it."""
    waited_for = [worker for worker in workers if not worker.has_ended and not worker.is_idle]
    if not waited_for:
        return []
    with selectors.DefaultSelector() as selector:
        for worker in waited_for:
            selector.register(worker, selectors.EVENT_READ)
        pause = max(0.0, min(worker.deadline for worker in waited_for) - time.monotonic())
        talking = {key.fileobj for key, _ in selector.select(timeout=pause)}
    now = time.monotonic()
    return [(w, w in talking) for w in waited_for if w in talking or now >= w.deadline]


def _end_all(workers: list[_Worker], owner: int) -> None:
    """End every worker of a list and empty it, unless they belong to the process this one was forked from."""
    if os.getpid() == owner:
        for worker in workers:
            worker.end()
    workers.clear()
