r"""Boxed arithmetic for real instruct models: small enough to see a curve move on a CPU."""

from bapo_lightning.errors import InputError
from bapo_lightning.tasks.drawing import draw_distinct
from bapo_lightning.tasks.source import PromptSource
from bapo_lightning.types import Prompt

_COMPUTE = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}


class ArithmeticTask(PromptSource):
    r"""Sums, differences and products of two numbers, asked in chat: ``What is 47 + 38?``.

    Args:
        num_prompts: Different problems to draw, ≥ 1.
        digits: Digits of each operand, 1 to 9; with 2, operands are 10 … 99.
        operations: Which operations occur, each character once: any of ``+``, ``-`` and ``*``.
        instruction: Text after the question. It must ask for ``\boxed{}``: that is where the reward looks.
        seed: Names the order in which problems are drawn.
        skip: Leave out so many problems of that order first. With one seed, a validation set that skips the training
            set's ``num_prompts`` shares no problem with it.

    Raises:
        InputError: A value is out of its range, or there are not enough different problems.
    """

    def __init__(
        self,
        num_prompts: int = 1000,
        digits: int = 2,
        operations: str = "+-",
        instruction: str = "Put the final answer in \\boxed{}.",
        seed: int = 0,
        skip: int = 0,
    ) -> None:
        if not 1 <= digits <= 9:
            raise InputError(f"arithmetic: digits must lie in 1 … 9, got {digits}")
        if not operations or not set(operations) <= set(_COMPUTE) or len(set(operations)) < len(operations):
            raise InputError(f"arithmetic: operations must be some of '+-*', each once, got {operations!r}")
        self.num_prompts = num_prompts
        self.digits = digits
        self.operations = operations
        self.instruction = instruction
        self.seed = seed
        self.skip = skip

    def load(self) -> list[Prompt]:
        """Draw the problems; see `PromptSource.load`."""
        smallest = 0 if self.digits == 1 else 10 ** (self.digits - 1)
        size = 10**self.digits - smallest
        numbers = draw_distinct(
            len(self.operations) * size * size,
            self.num_prompts,
            skip=self.skip,
            seed=self.seed,
            name=f"arithmetic with {self.operations} and {self.digits} digits",
        )
        return [self._prompt(number, size, smallest) for number in numbers]

    def _prompt(self, number: int, size: int, smallest: int) -> Prompt:
        rest, right = divmod(number, size)
        operation, left = divmod(rest, size)
        sign = self.operations[operation]
        left, right = left + smallest, right + smallest
        question = f"What is {left} {sign} {right}? {self.instruction}".strip()
        return Prompt(
            id=f"arithmetic/{left}{sign}{right}",
            messages=({"role": "user", "content": question},),
            answer=str(_COMPUTE[sign](left, right)),
            source="ArithmeticTask",
        )
