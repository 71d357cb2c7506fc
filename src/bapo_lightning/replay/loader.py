"""The loader of one rollout phase: in memory, sized, and able to go on in the middle."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from bapo_lightning.errors import InputError
from bapo_lightning.types import Trajectory

Batch = TypeVar("Batch")


class PhaseLoader(Generic[Batch]):
    """Serves the updates of one phase, one batch each, in a fixed order.

    What Lightning 2.6 does with it:

    - The length is always that of the whole phase, also after a resume, because the loop counts batches from the
      start of the epoch. As the loader has a length, nothing is fetched ahead: the state in a checkpoint written
      after n updates of the phase says n, whether it is written at the end of a batch or of the epoch.
    - On a resume the loop calls ``train_dataloader()``, loads the state into the loader it gets, and iterates
      once: updates n, n+1, … follow. So the first call after a resume must return the *interrupted* phase (with
      the same groups and order), even when that phase was complete: position n is then the full length, nothing
      is served, and the loop asks for the next phase by itself.
    - An exception in the middle of update n leaves n+1 in the state. Whoever writes a checkpoint there calls
      `set_position` with the number of updates that were finished.

    Args:
        groups: The groups that this rank trains on in this phase.
        order: The updates: each a list of positions in ``groups``, at least one.
        collate: Makes a batch of one update's trajectories.

    Raises:
        ValueError: There is no update, an update is empty, or a position is outside ``groups``.
    """

    def __init__(
        self,
        groups: Sequence[Sequence[Trajectory]],
        order: Sequence[Sequence[int]],
        collate: Callable[[list[Trajectory]], Batch],
    ) -> None:
        if not order or not all(order):
            raise ValueError("a phase needs at least one update, and an update at least one group")
        if strange := {i for update in order for i in update} - set(range(len(groups))):
            raise ValueError(f"the order of updates names group {min(strange)}, but there are {len(groups)} groups")
        self._groups = [list(group) for group in groups]
        self._order = [list(update) for update in order]
        self._collate = collate
        self._start = 0
        self._position = 0

    def __len__(self) -> int:
        """Updates in the whole phase."""
        return len(self._order)

    def __iter__(self) -> Iterator[Batch]:
        """Serve the updates from the restored position, once; any later pass starts at 0."""
        # The body runs at the first `next`: Lightning may call `iter` several times before that.
        start, self._start = self._start, 0
        self._position = start
        for update in self._order[start:]:
            self._position += 1
            yield self._collate([trajectory for i in update for trajectory in self._groups[i]])

    def state_dict(self) -> dict[str, Any]:
        """``position``: number of updates of the phase that were served."""
        return {"position": self._position}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on after a number of updates.

        Args:
            state_dict: What `state_dict` returned.

        Raises:
            InputError: The phase has fewer updates than that: it is not the phase of the checkpoint.
        """
        self.set_position(state_dict["position"])
        self._start = self._position

    def set_position(self, position: int) -> None:
        """Say how many updates of the phase are done; a pass under way is not moved.

        Args:
            position: 0 … length.

        Raises:
            InputError: The phase has fewer updates than that.
        """
        if not 0 <= position <= len(self):
            raise InputError(
                f"the checkpoint is at update {position} of its rollout phase, but the phase now has {len(self)} "
                "updates; data.groups_per_phase, data.groups_per_update, data.inner_epochs and the number of "
                "ranks must be those of the checkpoint"
            )
        self._position = position
