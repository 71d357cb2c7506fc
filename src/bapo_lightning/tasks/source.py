"""What every task is: a finite list of prompts."""

from abc import ABC, abstractmethod

from bapo_lightning.types import Prompt


class PromptSource(ABC):
    """Where prompts come from. Construction only checks arguments; files are read by `load`."""

    @abstractmethod
    def load(self) -> list[Prompt]:
        """Read or make all prompts.

        Returns:
            At least one prompt, in an order that is the same at every call, on every rank and in every run; the ids
            are unique.

        Raises:
            InputError: The data cannot be used; the message names the file and line.
        """
