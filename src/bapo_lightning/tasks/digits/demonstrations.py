"""Noisy demonstrations of the built-in task: what the warm start learns from."""

import random
from collections.abc import Sequence

from bapo_lightning.errors import InputError
from bapo_lightning.tasks.digits.vocabulary import (
    BOX_CLOSE,
    BOX_OPEN,
    CLOSINGS,
    EOS,
    FILLER,
    HESITATION,
    OPENINGS,
    RESTART,
    SURRENDER,
)

RESPONSE_LIMIT = 32
"""Tokens of the longest demonstration, end token included: the token limit that the regime is measured at."""

_RESTART_RATE = 0.1


class Demonstrator:
    r"""Writes responses that are right except for calibrated mistakes.

    A response opens with a word, states the running sums modulo 10, and closes with a word, the box and the end token.
    Each running sum is wrong with probability ``error_rate``, any of the nine wrong digits alike. After a wrong one the
    writer is stuck: ``hmm`` stands for the sums that are left. One time in ten it starts anew, ``wait``; else, or if
    that goes wrong too, it hesitates, ``let me see``, and again with probability ``hesitation`` each time, so that now
    and then it runs into the token limit; then it gives up, ``lost``. So wrong responses are longer than right ones, as
    a reasoning model's are (arXiv 2510.18927, Fig. 6), and all that follows an error is highly predictable.

    Two examples, for the digits 3 1 4 1 5 9::

        okay 3 4 8 9 4 3 so \boxed{ 3 } <eos>
        well 3 4 7 hmm hmm hmm let me see let me see lost <eos>

    Args:
        error_rate: Probability of a wrong running sum, in [0, 1). With n digits about (1 − error_rate)ⁿ of the
            responses are right.
        hesitation: Probability of hesitating once more, in [0, 1). Raises the length of failures over successes.
        max_tokens: Demonstrations end here, ≥ 1.

    Raises:
        InputError: A value is out of its range.
    """

    def __init__(self, error_rate: float, hesitation: float, max_tokens: int = RESPONSE_LIMIT) -> None:
        for name, value in (("error_rate", error_rate), ("hesitation", hesitation)):
            if not 0.0 <= value < 1.0:
                raise InputError(f"{name} must lie in [0, 1), got {value}")
        if max_tokens < 1:
            raise InputError(f"max_tokens must be at least 1, got {max_tokens}")
        self.error_rate = error_rate
        self.hesitation = hesitation
        self.max_tokens = max_tokens

    def write(self, digits: Sequence[int], rng: random.Random) -> list[str]:
        """Write one demonstration.

        Args:
            digits: The digits of the problem, each 0 … 9, at least one.
            rng: Where chance comes from.

        Returns:
            The tokens of the response, at most ``max_tokens``; the last is the end token unless the limit came first.
        """
        tokens = [rng.choice(OPENINGS)]
        sums, is_right = self._running_sums(digits, rng)
        tokens += sums
        if not is_right and rng.random() < _RESTART_RATE:
            sums, is_right = self._running_sums(digits, rng)
            tokens += [RESTART, *sums]
        if is_right:
            tokens += [rng.choice(CLOSINGS), BOX_OPEN, sums[-1], BOX_CLOSE, EOS]
        else:
            tokens += HESITATION
            while len(tokens) < self.max_tokens and rng.random() < self.hesitation:
                tokens += HESITATION
            tokens += [SURRENDER, EOS]
        return tokens[: self.max_tokens]

    def _running_sums(self, digits: Sequence[int], rng: random.Random) -> tuple[list[str], bool]:
        """The sums as stated, with fillers for those after a wrong one, and whether all are right."""
        sums: list[str] = []
        total = 0
        for digit in digits:
            total = (total + digit) % 10
            if rng.random() < self.error_rate:
                wrong = (total + rng.randint(1, 9)) % 10
                return [*sums, str(wrong), *[FILLER] * (len(digits) - len(sums) - 1)], False
            sums.append(str(total))
        return sums, True
