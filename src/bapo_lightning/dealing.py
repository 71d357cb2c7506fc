"""How a phase was sampled and is dealt out, update by update."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bapo_lightning.replay import Group, PhaseLoader, rank_share, update_order
from bapo_lightning.types import Sealed, TokenBatch, Trajectory


@dataclass(frozen=True)
class Dealing:
    """How a phase was sampled and is dealt out.

    A phase that a checkpoint interrupted ends as it began, whatever the config says now; the next goes by the config.
    """

    groups_per_update: int
    inner_epochs: int
    temperature: float
    """At which its responses were sampled."""

    length_limit: int
    """Token limit of a response."""

    def loader(
        self,
        groups: Sequence[Group],
        *,
        pad_id: int,
        seed: int,
        phase: int,
        rank: int,
        world_size: int,
        before_batch: Callable[[], None],
    ) -> PhaseLoader[Sealed[TokenBatch]]:
        """Deal the groups of a phase.

        Args:
            groups: On every rank the same.
            pad_id: Fills batches up.
            seed: The seed of the run.
            phase: Its number.
            rank: This rank.
            world_size: Number of ranks.
            before_batch: Called before a batch is made; what it raises ends the run.

        Returns:
            This rank's share of every update.
        """

        def collate(trajectories: list[Trajectory]) -> Sealed[TokenBatch]:
            before_batch()
            return Sealed(
                TokenBatch.from_trajectories(
                    trajectories, pad_id=pad_id, temperature=self.temperature, length_limit=self.length_limit
                )
            )

        order = update_order(len(groups), self.groups_per_update, self.inner_epochs, seed=seed, phase=phase)
        num_tokens = [sum(len(t.prompt_ids) + len(t.completion.token_ids) for t in group) for group in groups]
        return PhaseLoader(groups, [rank_share(update, rank, world_size, num_tokens) for update in order], collate)
