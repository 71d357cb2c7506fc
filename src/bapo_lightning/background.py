"""One piece of work in a background thread, whose result or exception is taken over by the caller."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Result = TypeVar("Result")


class BackgroundJob(Generic[Result]):
    """Runs a function in a daemon thread, from the moment it is made.

    Args:
        work: What to run.
        name: Of the thread.
    """

    def __init__(self, work: Callable[[], Result], name: str) -> None:
        self._result: Result | None = None
        self._error: BaseException | None = None
        # Not `join`: interrupted, it takes a thread that still runs for one that has ended (CPython up to 3.12).
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(work,), name=name, daemon=True)
        self._thread.start()

    def _run(self, work: Callable[[], Result]) -> None:
        try:
            self._result = work()
        except BaseException as error:  # noqa: BLE001 - the caller raises it again
            self._error = error
        finally:
            self._ended.set()

    def raise_if_failed(self) -> None:
        """Raise what the work has raised, if it has; do not wait."""
        if self._ended.is_set() and self._error is not None:
            raise self._error

    def result(self) -> Result:
        """Wait for the work; return its result or raise what it raised."""
        self._ended.wait()
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]

    def wait(self, seconds: float) -> bool:
        """Wait for the end of the work, whatever it brought; False when it has not ended in time."""
        ended = self._ended.wait(seconds)
        if ended:
            self._thread.join()
        return ended
