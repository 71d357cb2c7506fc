"""What happens to trajectories between sampling and training: keeping, ageing, ordering, serving.

- `ReplayBuffer` keeps whole groups, lets old ones go and draws from the rest; `NotEnoughGroups` says that new
  rollouts are needed.
- `staleness` is the one definition of age, in policy updates.
- `update_order` and `rank_share` decide which groups make which update, on which rank.
- `PhaseLoader` serves the updates of one rollout phase and resumes in the middle.
- `pack_trajectories` and `unpack_trajectories` turn trajectories into tensors for checkpoints, exactly.
- `write_rollouts` and `read_rollouts` keep trajectories in Parquet files that anyone can read and make.
- `UniformSampler`, `OldestFirstSampler`, `RecencySampler`, `PrioritySampler` and `MixedSampler` decide which groups are
  drawn.

Nothing here reads or changes weights, and nothing rewrites a behaviour log-prob. A new way to draw groups is a subclass
of `GroupSampler`, here or in a file of yours.
"""

from bapo_lightning.replay.buffer import NotEnoughGroups, ReplayBuffer
from bapo_lightning.replay.groups import Group, group_trajectories, is_uniform
from bapo_lightning.replay.loader import PhaseLoader
from bapo_lightning.replay.packing import pack_trajectories, unpack_trajectories
from bapo_lightning.replay.rollout_files import FrozenRollouts, read_rollouts, write_rollouts
from bapo_lightning.replay.samplers import (
    GroupSampler,
    MixedSampler,
    OldestFirstSampler,
    PrioritySampler,
    RecencySampler,
    UniformSampler,
)
from bapo_lightning.replay.schedule import rank_share, update_order
from bapo_lightning.replay.staleness import newest_version, oldest_version, staleness

__all__ = [
    "FrozenRollouts",
    "Group",
    "GroupSampler",
    "MixedSampler",
    "NotEnoughGroups",
    "OldestFirstSampler",
    "PhaseLoader",
    "PrioritySampler",
    "RecencySampler",
    "ReplayBuffer",
    "UniformSampler",
    "group_trajectories",
    "is_uniform",
    "newest_version",
    "oldest_version",
    "pack_trajectories",
    "rank_share",
    "read_rollouts",
    "staleness",
    "unpack_trajectories",
    "update_order",
    "write_rollouts",
]
