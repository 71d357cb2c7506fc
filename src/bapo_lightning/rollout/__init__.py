"""Rollout engines: token ids in, sampled ids with behaviour log-probs and policy versions out.

What belongs here: ways to sample from the policy. An engine never renders text, scores answers or touches the buffer.
To add one, subclass `RolloutEngine` in a file of its own and implement `generate` and `load_weights`; it is then usable
from YAML by class path.

`RolloutSettings` says how a phase samples: at one go or within a token budget, before training or beside it.
"""

from bapo_lightning.rollout.engine import RolloutEngine
from bapo_lightning.rollout.hf import HFEngine
from bapo_lightning.rollout.scripted import ScriptedEngine
from bapo_lightning.rollout.settings import RolloutSettings

__all__ = ["HFEngine", "RolloutEngine", "RolloutSettings", "ScriptedEngine"]
