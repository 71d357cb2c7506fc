"""The problems of the built-in task."""

from bapo_lightning.errors import InputError
from bapo_lightning.tasks.drawing import draw_distinct
from bapo_lightning.tasks.source import PromptSource
from bapo_lightning.types import Prompt


class DigitsTask(PromptSource):
    r"""Add digits modulo 10: the prompt is ``3 1 4 1 5 9 =``, the answer ``3``.

    The policy that the package ships (``package:bapo_lightning/tasks/digits/warm_start``) answers with the running
    sums and then the box: ``okay 3 4 8 9 4 3 so \boxed{ 3 }``. It was warm-started on six digits.

    Args:
        num_prompts: Different problems to draw, ≥ 1.
        num_digits: Digits of a problem, 1 to 18.
        seed: Names the order in which problems are drawn.
        skip: Leave out so many problems of that order first. With one seed, a validation set that skips the training
            set's ``num_prompts`` shares no problem with it.

    Raises:
        InputError: A value is out of its range, or there are not enough different problems.
    """

    def __init__(self, num_prompts: int = 1000, num_digits: int = 6, seed: int = 0, skip: int = 0) -> None:
        if not 1 <= num_digits <= 18:
            raise InputError(f"digits: num_digits must lie in 1 … 18, got {num_digits}")
        self.num_prompts = num_prompts
        self.num_digits = num_digits
        self.seed = seed
        self.skip = skip

    def load(self) -> list[Prompt]:
        """Draw the problems; see `PromptSource.load`."""
        numbers = draw_distinct(
            10**self.num_digits,
            self.num_prompts,
            skip=self.skip,
            seed=self.seed,
            name=f"digits task with {self.num_digits} digits",
        )
        return [self._prompt(f"{number:0{self.num_digits}d}") for number in numbers]

    def _prompt(self, digits: str) -> Prompt:
        return Prompt(
            id=f"digits/{digits}",
            messages=prompt_text([int(digit) for digit in digits]),
            answer=str(sum(map(int, digits)) % 10),
            source="DigitsTask",
        )


def prompt_text(digits: list[int]) -> str:
    """The text of a problem: its digits, then ``=``."""
    return " ".join([*map(str, digits), "="])
