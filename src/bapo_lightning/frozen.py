"""Groups from rollout files, in place of an engine: the same data for every run that reads them."""

import logging
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from bapo_lightning.collector import Collected
from bapo_lightning.errors import InputError
from bapo_lightning.filling import FilledPhase
from bapo_lightning.replay import FrozenRollouts, Group, is_uniform, newest_version, read_rollouts
from bapo_lightning.types import SamplingSettings

log = logging.getLogger(__name__)


class FrozenSource:
    """Deals the groups of rollout files, phase by phase, in their order; each once.

    Args:
        path: A Parquet file, or a folder of them.
        sampling: What the run says about sampling; it must be what the files say.
        groups_per_phase: Groups dealt a phase.
        drop_uniform: Whether groups whose rewards are all equal are left out.

    Raises:
        InputError: A file cannot be used, or was sampled otherwise than the run says.
    """

    def __init__(
        self, path: str | Path, sampling: SamplingSettings, *, groups_per_phase: int, drop_uniform: bool
    ) -> None:
        self.rollouts: FrozenRollouts = read_rollouts(Path(path))
        self.groups_per_phase = groups_per_phase
        if drop_uniform:
            self._leave_out_uniform_groups(path)
        self._position = 0
        self._dealt: tuple[Group, ...] = ()
        for key, typed, found in (
            ("temperature", sampling.temperature, self.rollouts.temperature),
            ("max_new_tokens", sampling.max_new_tokens, self.rollouts.max_new_tokens),
        ):
            if typed != found:
                raise InputError(
                    f"data.sampling.{key} is {typed}, but the responses in {path} were sampled with {found}; log-probs "
                    f"and lengths are only comparable with the same. Set data.sampling.{key}={found}"
                )

    def _leave_out_uniform_groups(self, path: str | Path) -> None:
        """Before they are dealt, so that phases are full."""
        groups = self.rollouts.groups
        kept = tuple(group for group in groups if not is_uniform(group))
        if not kept:
            raise InputError(
                f"data.rollouts: the rewards of each of the {len(groups)} groups in {path} are all equal, so there is "
                "nothing to learn from; data.buffer.drop_uniform would leave out all of them"
            )
        if len(kept) < len(groups):
            log.warning(
                "data.rollouts: %d of %d groups teach nothing and are left out", len(groups) - len(kept), len(groups)
            )
        self.rollouts = replace(self.rollouts, groups=kept)

    @property
    def num_phases(self) -> int:
        """Phases until all groups are dealt; the last may be short."""
        return -(-len(self.rollouts.groups) // self.groups_per_phase)

    @property
    def fingerprint(self) -> str:
        """A hash of the files."""
        return self.rollouts.sha256

    @property
    def open_groups(self) -> list[Group]:
        """None is ever under way."""
        return []

    def require_vocabulary(self, size: int) -> None:
        """Refuse ids that the policy does not have.

        Raises:
            InputError: The first group with one is named.
        """
        for group in self.rollouts.groups:
            largest = max(max((*t.prompt_ids, *t.completion.token_ids)) for t in group)
            if largest >= size:
                raise InputError(
                    f"data.rollouts: group {group[0].group_id} has the token id {largest}, but the policy has {size} "
                    "tokens; the rollouts are of another model"
                )

    def require_known_versions(self, version: int) -> None:
        """Refuse tokens of weights that do not exist yet, among the groups dealt last.

        Args:
            version: Policy updates so far.

        Raises:
            InputError: A token is newer.
        """
        for group in self._dealt:
            if newest_version(group) > version:
                raise InputError(
                    f"data.rollouts: group {group[0].group_id} has a token of policy version {newest_version(group)}, "
                    f"but its phase begins after {version} updates. Versions count from the weights that a replay "
                    "starts from: 0 for all tokens of fixed weights"
                )

    def collect(self, num_ready: int = 0, oldest_useful_version: int | None = None) -> Collected:
        """Deal the next groups; see `Collector.collect`.

        Raises:
            InputError: All of them are dealt.
        """
        started = time.perf_counter()
        dealt = self.rollouts.groups[self._position : self._position + self.groups_per_phase]
        if not dealt:
            raise InputError(
                f"data.rollouts: all {len(self.rollouts.groups)} groups are trained on, {self.num_phases} phases of "
                f"{self.groups_per_phase}; lower trainer.max_epochs, or give more rollouts"
            )
        self._position += len(dealt)
        self._dealt = dealt
        return Collected(
            filled=FilledPhase([t for group in dealt for t in group], list(dealt), generations=0),
            num_resumed=0,
            num_unfinished=0,
            num_expired=0,
            seconds=time.perf_counter() - started,
            reward_seconds=0.0,
        )

    def cancel(self) -> None:
        """Nothing to cancel: reading does not wait."""

    def state_dict(self) -> dict[str, Any]:
        """How many groups were dealt."""
        return {"position": self._position}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a `state_dict`.

        Raises:
            InputError: The run of the checkpoint sampled its groups.
        """
        if "position" not in state_dict:
            raise InputError(
                "ckpt_path: the run of this checkpoint sampled its groups, so it cannot go on with those of "
                "data.rollouts; a replay starts from the weights of model.policy.path"
            )
        self._position = state_dict["position"]
