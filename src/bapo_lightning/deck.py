"""The order in which a run asks its prompts: one seeded permutation after another."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from bapo_lightning.seeding import generator
from bapo_lightning.tasks import PromptSource, render_prompts
from bapo_lightning.types import Prompt


@dataclass(frozen=True)
class EncodedPrompt:
    """A prompt with the token ids that the policy reads."""

    prompt: Prompt
    ids: tuple[int, ...]


class PromptDeck:
    """All prompts of a task that fit, drawn without end; a position says how many were drawn, and is all its state.

    Args:
        prompts: At least one.
        seed: The seed of the run; it names the permutations.
        num_dropped: Prompts of the task that were too long.
    """

    def __init__(self, prompts: Sequence[EncodedPrompt], seed: int, num_dropped: int = 0) -> None:
        self.prompts = tuple(prompts)
        self.seed = seed
        self.num_dropped = num_dropped

    @classmethod
    def from_task(cls, task: PromptSource, tokenizer: Any, max_prompt_tokens: int, seed: int) -> "PromptDeck":
        """Read a task and encode its prompts.

        Args:
            task: Where prompts come from.
            tokenizer: The policy's tokenizer.
            max_prompt_tokens: Longer prompts are dropped and counted, never cut.
            seed: The seed of the run.

        Returns:
            The deck.

        Raises:
            InputError: The task cannot be read, or no prompt fits.
        """
        rendered = render_prompts(tokenizer, task.load(), max_prompt_tokens)
        return cls([EncodedPrompt(prompt, ids) for prompt, ids in rendered.items], seed, rendered.num_dropped)

    def draw(self, position: int, count: int) -> list[EncodedPrompt]:
        """The ``count`` prompts that follow the first ``position`` draws; each prompt once in every permutation."""
        drawn: list[EncodedPrompt] = []
        while len(drawn) < count:
            round_number, start = divmod(position + len(drawn), len(self.prompts))
            stream = generator(self.seed, "prompts", round_number)
            order = torch.randperm(len(self.prompts), generator=stream).tolist()
            drawn += [self.prompts[i] for i in order[start : start + count - len(drawn)]]
        return drawn

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt."""
        return max(len(encoded.ids) for encoded in self.prompts)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of ids, tokens and golds: two decks with one fingerprint ask the same."""
        digest = hashlib.sha256()
        for encoded in self.prompts:
            digest.update(repr((encoded.prompt.id, encoded.ids, encoded.prompt.answer)).encode())
        return digest.hexdigest()
