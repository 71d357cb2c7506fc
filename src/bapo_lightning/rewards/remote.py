"""A reward model or judge that runs elsewhere and is asked over HTTP."""

import logging
import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bapo_lightning.errors import InputError
from bapo_lightning.rewards.python_function import FIELDS
from bapo_lightning.rewards.term import RewardTerm
from bapo_lightning.types import Trajectory

log = logging.getLogger(__name__)

_WORTH_A_RETRY = (408, 425, 429, 500, 502, 503, 504)


class RemoteReward(RewardTerm):
    """Asks a server for the values of a batch of responses.

    It sends ``POST url`` with ``{"responses": [{"response", "answer", "prompt", "prompt_id", "num_tokens",
    "finish_reason", "status"}, …]}`` and expects ``{"rewards": [number or null, …]}``, one each and in order. What
    cannot be had after all tries is missing, never 0, and the log says why.

    Args:
        url: Where to ask, ``http://…`` or ``https://…``.
        timeout_seconds: For one try, > 0.
        retries: Further tries after a connection error, a timeout, or a status of 408, 425, 429 or 5xx; >= 0. The pause
            before them doubles, from half a second to at most 8 s.
        batch_size: Responses in one request, >= 1.
        max_concurrency: Requests at a time, >= 1.
        token_variable: Environment variable whose content is sent as bearer token; None sends none.

    Raises:
        InputError: A value is out of its range, or the variable is not set.
    """

    def __init__(
        self,
        url: str,
        timeout_seconds: float = 30.0,
        retries: int = 3,
        batch_size: int = 64,
        max_concurrency: int = 4,
        token_variable: str | None = None,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise InputError(f"data.reward: url must begin with http:// or https://, got {url!r}")
        if not 0.0 < timeout_seconds < math.inf:
            raise InputError(f"data.reward: timeout_seconds must be a finite number > 0, got {timeout_seconds}")
        for name, value, least in (
            ("retries", retries, 0),
            ("batch_size", batch_size, 1),
            ("max_concurrency", max_concurrency, 1),
        ):
            if value < least:
                raise InputError(f"data.reward: {name} must be at least {least}, got {value}")
        if token_variable is not None and not os.environ.get(token_variable):
            raise InputError(f"data.reward: the environment variable {token_variable!r} (token_variable) is not set")
        self.url = url
        self.timeout_seconds = timeout_seconds
        self.retries = retries
        self.batch_size = batch_size
        self.max_concurrency = max_concurrency
        self.token_variable = token_variable

    def values(self, trajectories: Sequence[Trajectory]) -> list[float]:
        """The server's numbers; NaN where it gave null or could not be asked."""
        import requests
        from requests.adapters import HTTPAdapter
        from urllib3.util import Retry

        batches = [trajectories[i : i + self.batch_size] for i in range(0, len(trajectories), self.batch_size)]
        retry = Retry(
            self.retries,
            status_forcelist=_WORTH_A_RETRY,
            allowed_methods=None,  # POST too: asking twice for a value changes nothing
            backoff_factor=0.5,
            backoff_max=8.0,
            raise_on_status=False,
        )
        adapter = HTTPAdapter(pool_maxsize=self.max_concurrency, max_retries=retry)
        with requests.Session() as session, ThreadPoolExecutor(self.max_concurrency) as threads:
            session.mount("http://", adapter)
            session.mount("https://", adapter)
            if self.token_variable is not None:
                session.headers["Authorization"] = f"Bearer {os.environ.get(self.token_variable, '')}"
            answered = list(threads.map(lambda batch: self._ask(session, batch), batches))
        return [value for values in answered for value in values]

    def _ask(self, session: Any, batch: Sequence[Trajectory]) -> list[float]:
        """Values of one batch, retries included."""
        import requests

        content = {"responses": [{name: _sendable(read(t)) for name, read in FIELDS.items()} for t in batch]}
        try:
            reply = session.post(self.url, json=content, timeout=self.timeout_seconds)
            values = _read(reply, len(batch))
        except (requests.RequestException, ValueError) as error:
            log.warning("%s: %s; the rewards of %d responses are missing", self.url, error, len(batch))
            return [math.nan] * len(batch)
        return values


def _read(reply: Any, count: int) -> list[float]:
    """The values in a reply.

    Raises:
        ValueError: It holds something else.
    """
    if reply.status_code != 200:
        raise ValueError(f"status {reply.status_code}: {reply.text[:200]}")
    try:
        values = [math.nan if value is None else float(value) for value in reply.json()["rewards"]]
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ValueError(f"the reply is not {{'rewards': [numbers]}} ({type(error).__name__}: {error})") from error
    if len(values) != count:
        raise ValueError(f"{len(values)} rewards for {count} responses")
    return values


def _sendable(value: Any) -> Any:
    """Half a surrogate pair, which UTF-8 cannot hold, becomes a question mark."""
    return value.encode("utf-8", "replace").decode("utf-8") if isinstance(value, str) else value
