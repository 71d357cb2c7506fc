"""Terms that look at how many tokens a response has, stop id included."""

import math
from collections.abc import Sequence

from bapo_lightning.errors import InputError
from bapo_lightning.rewards.term import RewardTerm
from bapo_lightning.types import Trajectory


class SoftOverlong(RewardTerm):
    """DAPO's soft overlong punishment (arXiv 2503.14476, Eq. 13).

    0 up to ``max_tokens - cache_tokens``, then falling in a straight line to -1 at ``max_tokens``, and -1 beyond.

    Args:
        max_tokens: Length with the whole punishment, in tokens; usually ``data.sampling.max_new_tokens``.
        cache_tokens: Width of the slope, in tokens, 1 … ``max_tokens``. DAPO: 20,480 and 4,096.

    Raises:
        InputError: A value is out of its range.
    """

    def __init__(self, max_tokens: int, cache_tokens: int) -> None:
        _check_max_tokens(max_tokens)
        if not 1 <= cache_tokens <= max_tokens:
            raise InputError(f"cache_tokens must lie in 1 … max_tokens = {max_tokens}, got {cache_tokens}")
        self.max_tokens = max_tokens
        self.cache_tokens = cache_tokens

    def values(self, trajectories: Sequence[Trajectory]) -> list[float]:
        """-1 … 0 for each response; see `RewardTerm.values`."""
        free = self.max_tokens - self.cache_tokens
        return [-min(max(_length(t) - free, 0) / self.cache_tokens, 1.0) for t in trajectories]


class LengthPenalty(RewardTerm):
    """Every token costs the same: -length / ``max_tokens``.

    Args:
        max_tokens: The length that costs 1, in tokens.
        correct_only: Ask brevity of correct responses only, so that a wrong one gains nothing by giving up early.

    Raises:
        InputError: ``max_tokens`` is below 1.
    """

    def __init__(self, max_tokens: int, correct_only: bool = True) -> None:
        _check_max_tokens(max_tokens)
        self.max_tokens = max_tokens
        self.correct_only = correct_only

    def values(self, trajectories: Sequence[Trajectory]) -> list[float]:
        """0 or below for each response; see `RewardTerm.values`."""
        return [
            0.0 if self.correct_only and t.reward_status != "correct" else -_length(t) / self.max_tokens
            for t in trajectories
        ]


class CosineLength(RewardTerm):
    """The cosine length reward (arXiv 2502.03373): short is better when right, long is better when wrong.

    The value moves along half a cosine from its value at length 0 to its value at ``max_tokens``. It depends on the
    verdict itself, so give ``correctness`` the weight 0 where it should not count twice. A response that was cut off,
    or is longer than ``max_tokens``, gets ``exceeded``. The defaults are the paper's.

    Args:
        max_tokens: The end of the cosine, in tokens.
        correct_short: Value of a correct response of length 0.
        correct_long: Value of a correct response of ``max_tokens``.
        wrong_short: Value of any other response of length 0.
        wrong_long: Value of any other response of ``max_tokens``.
        exceeded: Value of a response that was cut off.

    Raises:
        InputError: A value is out of its range.
    """

    def __init__(
        self,
        max_tokens: int,
        correct_short: float = 2.0,
        correct_long: float = 1.0,
        wrong_short: float = -10.0,
        wrong_long: float = 0.0,
        exceeded: float = -10.0,
    ) -> None:
        _check_max_tokens(max_tokens)
        ends = (correct_short, correct_long, wrong_short, wrong_long, exceeded)
        if not all(math.isfinite(end) for end in ends):
            raise InputError(f"the values of CosineLength must be finite, got {ends}")
        self.max_tokens = max_tokens
        self.correct_ends = (correct_short, correct_long)
        self.wrong_ends = (wrong_short, wrong_long)
        self.exceeded = exceeded

    def values(self, trajectories: Sequence[Trajectory]) -> list[float]:
        """A value for each response; NaN where there is no verdict to go by."""
        return [self._value(t) for t in trajectories]

    def _value(self, t: Trajectory) -> float:
        if t.reward_status in ("timeout", "error", "bad_gold"):
            return math.nan
        if t.completion.finish_reason == "length" or _length(t) > self.max_tokens:
            return self.exceeded
        short, long = self.correct_ends if t.reward_status == "correct" else self.wrong_ends
        return long + 0.5 * (short - long) * (1.0 + math.cos(math.pi * _length(t) / self.max_tokens))


class Repetition(RewardTerm):
    """Punishes saying the same again: minus the share of n-grams of token ids that came before in the response.

    As in arXiv 2502.03373, on token ids in place of words, so that it means the same in every language.

    Args:
        ngram: Tokens in a row, >= 1. With 3, lists and formulas already repeat a little; loops are near -1.

    Raises:
        InputError: ``ngram`` is below 1.
    """

    def __init__(self, ngram: int = 20) -> None:
        if ngram < 1:
            raise InputError(f"ngram must be at least 1, got {ngram}")
        self.ngram = ngram

    def values(self, trajectories: Sequence[Trajectory]) -> list[float]:
        """-1 … 0 for each response; 0 for one shorter than an n-gram."""
        return [-self._repeated_share(t.completion.token_ids) for t in trajectories]

    def _repeated_share(self, ids: tuple[int, ...]) -> float:
        """1 - distinct ÷ all n-grams.

        N-grams are numbered by doubling their width, so time grows with length · log(ngram) and not with both.
        """
        count = len(ids) - self.ngram + 1
        if count <= 0:
            return 0.0
        names, width = list(ids), 1
        while width < self.ngram:
            step = min(width, self.ngram - width)
            known: dict[tuple[int, int], int] = {}
            pairs = zip(names, names[step:], strict=False)
            names, width = [known.setdefault(pair, len(known)) for pair in pairs], width + step
        return 1.0 - len(set(names)) / count


def _length(t: Trajectory) -> int:
    return len(t.completion.token_ids)


def _check_max_tokens(max_tokens: int) -> None:
    if max_tokens < 1:
        raise InputError(f"max_tokens must be at least 1, got {max_tokens}")
