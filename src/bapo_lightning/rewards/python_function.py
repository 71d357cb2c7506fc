"""A user's own Python function as a term of the reward."""

import importlib
import importlib.util
import inspect
import logging
import math
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from bapo_lightning.errors import InputError
from bapo_lightning.rewards.term import RewardTerm, prompt_text
from bapo_lightning.types import Trajectory

log = logging.getLogger(__name__)

FIELDS: dict[str, Callable[[Trajectory], Any]] = {
    "response": lambda t: t.text,
    "answer": lambda t: t.prompt.answer,
    "prompt": prompt_text,
    "prompt_id": lambda t: t.prompt.id,
    "num_tokens": lambda t: len(t.completion.token_ids),
    "finish_reason": lambda t: t.completion.finish_reason,
    "status": lambda t: t.reward_status,
}
"""What a function, or a server, may be told about a response."""


class PythonFunction(RewardTerm):
    """Calls a function and takes its number.

    The function names what it wants to know among its parameters: ``response`` (the decoded text), ``answer`` (the
    gold), ``prompt``, ``prompt_id``, ``num_tokens``, ``finish_reason`` (``stop`` or ``length``) and ``status`` (the
    verdict). It returns a number, or None where it cannot tell. One that raises costs that response its reward, which
    is missing then, and says so in the log. It runs in the training process, so it must be trusted and must end; what
    executes a response's code belongs into a server (`RemoteReward`).

    Args:
        function: ``package.module:function`` or ``path/to/file.py:function``.
        batch: Hand over lists, one entry a response, and take a list of numbers.

    Raises:
        InputError: The function cannot be found, or asks for something else.
    """

    def __init__(self, function: str, batch: bool = False) -> None:
        self.function = function
        self.batch = batch
        self._wanted = self._wanted_fields()

    def __reduce__(self) -> tuple[type["PythonFunction"], tuple[str, bool]]:
        return PythonFunction, (self.function, self.batch)

    @cached_property
    def _call(self) -> Callable[..., Any]:
        place, _, name = self.function.rpartition(":")
        if not place or not name:
            raise InputError(
                f"data.reward: function must look like package.module:name or file.py:name, got {self.function!r}"
            )
        try:
            found = getattr(_module(place), name)
        except (ImportError, AttributeError, OSError, SyntaxError) as error:
            raise InputError(f"data.reward: cannot load function {self.function!r}: {error}") from error
        if not callable(found) or inspect.iscoroutinefunction(found):
            raise InputError(f"data.reward: {self.function!r} is not a plain function")
        called: Callable[..., Any] = found
        return called

    def _wanted_fields(self) -> tuple[str, ...]:
        wanted = []
        for name, parameter in inspect.signature(self._call).parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD:
                return tuple(FIELDS)
            if name in FIELDS and parameter.kind is not parameter.POSITIONAL_ONLY:
                wanted.append(name)
            elif parameter.default is parameter.empty:
                raise InputError(
                    f"data.reward: {self.function!r} asks for {name!r}; it can have {', '.join(FIELDS)}, by name"
                )
        return tuple(wanted)

    def values(self, trajectories: Sequence[Trajectory]) -> list[float]:
        """The function's numbers; see `RewardTerm.values`.

        Raises:
            InputError: It returned something else, or in a batch another number of them.
        """
        if not trajectories:
            return []
        if not self.batch:
            return self._one_by_one(trajectories)
        arguments = {name: [FIELDS[name](t) for t in trajectories] for name in self._wanted}
        try:
            returned = self._call(**arguments)
        except Exception:
            log.exception("%s raised; the rewards of %d responses are missing", self.function, len(trajectories))
            return [math.nan] * len(trajectories)
        if not hasattr(returned, "__len__") or len(returned) != len(trajectories):
            raise InputError(
                f"data.reward: {self.function!r} must return one number for each of {len(trajectories)} responses, "
                f"got {str(returned)[:80]}"
            )
        return [self._number(value) for value in returned]

    def _one_by_one(self, trajectories: Sequence[Trajectory]) -> list[float]:
        values, failed = [], 0
        for t in trajectories:
            try:
                returned = self._call(**{name: FIELDS[name](t) for name in self._wanted})
            except Exception:
                failed += 1
                if failed == 1:
                    log.exception("%s raised for a response to %s", self.function, t.prompt.id)
                values.append(math.nan)
            else:
                values.append(self._number(returned))
        if failed:
            log.warning(
                "%s raised for %d of %d responses; their rewards are missing", self.function, failed, len(trajectories)
            )
        return values

    def _number(self, value: Any) -> float:
        if value is None:
            return math.nan
        try:
            return float(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(f"data.reward: {self.function!r} must return a number, got {str(value)[:80]}") from error


def _module(place: str) -> Any:
    if not place.endswith(".py"):
        return importlib.import_module(place)
    path = Path(place)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
