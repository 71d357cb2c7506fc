"""Has groups sampled, before a phase or beside it, and hands them with their advantages to the queue."""

import logging
from typing import Any

from bapo_lightning.advantages import AdvantageEstimator
from bapo_lightning.background import BackgroundJob
from bapo_lightning.collection import assign_advantages
from bapo_lightning.collector import Collected, Collector, describe
from bapo_lightning.frozen import FrozenSource
from bapo_lightning.phase_queue import PhaseQueue

log = logging.getLogger(__name__)

SECONDS_TO_STOP = 60.0
"""How long the end of a run waits for a background rollout to notice that it is not wanted any more."""


class GroupSupply:
    """Between where groups come from and where they wait.

    Args:
        source: Samples groups, or reads them.
        queue: Where they wait for their phase.
        advantage: Turns rewards into advantages.
    """

    def __init__(self, source: Collector | FrozenSource, queue: PhaseQueue, advantage: AdvantageEstimator) -> None:
        self.source = source
        self.queue = queue
        self.advantage = advantage
        self._job: BackgroundJob[Collected] | None = None
        self._phases = 0
        self._fresh: list[Collected] = []
        self._metrics_of_job: dict[str, float] = {}

    def collect(self, oldest_useful_version: int | None) -> None:
        """Have the groups of one phase sampled now."""
        self._fresh.append(self.source.collect(self.queue.num_ready(oldest_useful_version), oldest_useful_version))
        self._take_in(self._fresh[-1])

    def begin(self, oldest_useful_version: int | None) -> None:
        """Have the groups of one phase sampled in the background, with the weights that the engine has now."""
        num_ready = self.queue.num_ready(oldest_useful_version)
        self._job = BackgroundJob(
            lambda: self.source.collect(num_ready, oldest_useful_version), f"rollouts beside phase {self._phases}"
        )

    def take_over(self) -> None:
        """Wait for the background rollout, if there is one, and take its groups in.

        Raises:
            BaseException: What it raised.
        """
        if self._job is not None:
            # Kept until its result is there, so that an interrupted wait can still stop it.
            collected = self._job.result()
            self._job = None
            self._take_in(collected)
            self._metrics_of_job = describe([collected])

    def raise_if_failed(self) -> None:
        """Raise what the background rollout raised, if it did; do not wait for it."""
        if self._job is not None:
            self._job.raise_if_failed()

    def stop(self) -> None:
        """End the background rollout, since nothing will be trained on it."""
        job, self._job = self._job, None
        if job is not None:
            self.source.cancel()
            if not job.wait(SECONDS_TO_STOP):
                log.warning("the background rollout did not stop within %.0f s; it is left behind", SECONDS_TO_STOP)

    def metrics(self) -> dict[str, float]:
        """What was sampled since they were last asked for."""
        metrics = {**self._metrics_of_job, **(describe(self._fresh) if self._fresh else {})}
        self._fresh, self._metrics_of_job = [], {}
        return metrics

    def _take_in(self, collected: Collected) -> None:
        kept = [trajectory for group in collected.filled.kept for trajectory in group]
        if kept:
            kept = assign_advantages(kept, self.advantage, self._phases)
        self.queue.add(kept)
        self.queue.buffer.counts.dropped_uniform += collected.filled.num_uniform
        self._phases += 1

    def state_dict(self) -> dict[str, Any]:
        """Where the source stands. A rollout in the background is waited for: its weights will be gone."""
        self.take_over()
        return {
            "source": self.source.state_dict(),
            "metrics_of_job": dict(self._metrics_of_job),
            "phases": self._phases,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a `state_dict`."""
        self.source.load_state_dict(state_dict["source"])
        self._metrics_of_job = dict(state_dict["metrics_of_job"])
        self._phases = state_dict["phases"]
