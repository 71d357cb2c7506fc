"""Prompt sources and how prompts become token ids."""

from bapo_lightning.tasks.arithmetic import ArithmeticTask
from bapo_lightning.tasks.digits import DigitsTask
from bapo_lightning.tasks.rendering import encode_prompt
from bapo_lightning.tasks.source import PromptSource

__all__ = ["ArithmeticTask", "DigitsTask", "PromptSource", "encode_prompt"]
