"""Right or wrong: the verifiable reward for mathematics."""

import math
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from bapo_lightning.errors import InputError
from bapo_lightning.rewards.base import Reward, check_lengths
from bapo_lightning.rewards.extraction import Finding, find_answer
from bapo_lightning.rewards.golds import (
    MAX_CHARS,
    Gold,
    gold_alternatives,
    judge_locally,
    plain_latex,
    read_choice,
    read_gold,
)
from bapo_lightning.rewards.integers import parse_integer
from bapo_lightning.rewards.pool import WorkerPool
from bapo_lightning.types import Score

_BARE_LIST = re.compile(r"[^\\{}()\[\]=]+(?:,[^\\{}()\[\]=]+)+")
_BRACKETED_LIST = re.compile(r"[(\[][^()\[\]]+,[^()\[\]]+[)\]]")
_MISSING = ("timeout", "error", "bad_gold")


class MathReward(Reward):
    r"""Compares the last ``\boxed{…}`` of a response with the gold answer.

    Integer golds take a strict path of their own, choices, words and numerals with a base are compared as such,
    and everything else goes to math-verify in processes that are killed at a time limit. The rules, with an
    example each, are in ``docs/rewards.md``. Processes start at the first answer that needs them.

    Args:
        think_tags: Opening and closing tag of the thought, for example ``[<think>, </think>]``. Only text after the
            closing tag is read, and a thought that is not closed is no answer. None: tags mean nothing.
        plain_text: In a response without any box command, read an explicit final-answer phrase such as
            ``The answer is 42``.
        correct: Value of a right answer; above ``wrong``.
        wrong: Value of a wrong answer, of no answer and of a truncated response.
        timeout_seconds: Wall-clock seconds that math-verify has for one answer, > 0.
        num_workers: Processes for math-verify, >= 1; each rank has its own.
        memory_gib: Address space of each process in GiB, >= 0.5.

    Raises:
        InputError: A value is out of its range.
    """

    def __init__(
        self,
        think_tags: tuple[str, str] | None = None,
        plain_text: bool = True,
        correct: float = 1.0,
        wrong: float = 0.0,
        timeout_seconds: float = 5.0,
        num_workers: int = 2,
        memory_gib: float = 2.0,
    ) -> None:
        if think_tags is not None and (
            isinstance(think_tags, str) or len(think_tags) != 2 or not all(think_tags) or len(set(think_tags)) != 2
        ):
            raise InputError(
                f"think_tags must be an opening and a closing tag, such as ['<think>', '</think>'], got {think_tags!r}"
            )
        if not (math.isfinite(correct) and math.isfinite(wrong) and correct > wrong):
            raise InputError(f"correct must be a finite value above wrong, got correct={correct}, wrong={wrong}")
        if not 0.0 < timeout_seconds < math.inf:
            raise InputError(f"timeout_seconds must be a finite number > 0, got {timeout_seconds}")
        if num_workers < 1:
            raise InputError(f"num_workers must be at least 1, got {num_workers}")
        if not 0.5 <= memory_gib < math.inf:
            raise InputError(f"memory_gib must be at least 0.5 (math-verify has to load), got {memory_gib}")
        self.think_tags = None if think_tags is None else (think_tags[0], think_tags[1])
        self.plain_text = plain_text
        self.correct = correct
        self.wrong = wrong
        self._pool = WorkerPool(num_workers, timeout_seconds, memory_gib)

    def score(
        self,
        responses: Sequence[str | None],
        answers: Sequence[str | list[str]],
        finish_reasons: Sequence[str] | None = None,
    ) -> list[Score]:
        """Score a batch; see `Reward.score`.

        Args:
            responses: Decoded responses; None is no answer.
            answers: Gold answers; a list, or a printed list such as ``['70']``, holds alternatives.
            finish_reasons: ``length`` marks responses that reached the token limit.

        Returns:
            One `Score` for each response. ``extracted`` is the answer found: a whole number without leading zeros,
            units and separators, anything else as written.

        Raises:
            InputError: The sequences differ in length.
            RuntimeError: math-verify is needed and its processes do not start.
        """
        check_lengths(responses, answers, finish_reasons)
        reasons = finish_reasons or [""] * len(responses)
        findings = [
            find_answer(response, self.think_tags, self.plain_text, cut_off=reason == "length")
            for response, reason in zip(responses, reasons, strict=True)
        ]
        golds = [[_read_gold_once(text) for text in gold_alternatives(answer)] for answer in answers]
        asked: dict[tuple[str, str], str] = {}  # equal questions of a group are asked once
        for finding, alternatives in zip(findings, golds, strict=True):
            if finding.answer is not None:
                asked.update(dict.fromkeys(_questions(alternatives, finding.answer), ""))
        asked = dict(zip(asked, self._pool.run(list(asked)), strict=True)) if asked else asked
        return [
            self._verdict(finding, alternatives, asked) for finding, alternatives in zip(findings, golds, strict=True)
        ]

    def _verdict(self, finding: Finding, golds: list[Gold], asked: dict[tuple[str, str], str]) -> Score:
        """Put the outcomes of all alternatives together."""
        answer = finding.answer
        status: str = finding.status
        outcomes = {"bad_gold" for gold in golds if gold.kind == "bad"}
        if answer is not None:
            status = "wrong"
            outcomes |= {_judge(gold, answer, asked) for gold in golds}
        # With an alternative that could not be compared, "wrong" would be a guess.
        status = next((outcome for outcome in ("correct", *_MISSING) if outcome in outcomes), status)
        value = math.nan if status in _MISSING else self.correct if status == "correct" else self.wrong
        return Score(value, status, None if answer is None else _canonical(answer, golds[0]))

    def settings(self) -> dict[str, Any]:
        """What decides a verdict."""
        think_tags = None if self.think_tags is None else list(self.think_tags)
        return {**super().settings(), "think_tags": think_tags, "plain_text": self.plain_text}

    def close(self) -> None:
        """End the processes of math-verify; a later call of `score` starts new ones."""
        self._pool.close()


@lru_cache(maxsize=65536)
def _read_gold_once(text: str) -> Gold:
    return read_gold(text)


def _questions(golds: list[Gold], answer: str) -> list[tuple[str, str]]:
    """What math-verify has to be asked about an answer; nothing when an alternative is met without it."""
    expressions = [gold for gold in golds if gold.kind == "expression"]
    others = [gold for gold in golds if gold.kind not in ("expression", "bad")]
    if len(answer) > MAX_CHARS or any(judge_locally(gold, answer) for gold in others):
        return []
    return [_question(gold, answer) for gold in expressions]


def _question(gold: Gold, answer: str) -> tuple[str, str]:
    """A gold and an answer as math-verify gets them."""
    plain = plain_latex(answer)
    if _BARE_LIST.fullmatch(gold.text) and _BRACKETED_LIST.fullmatch(plain):
        # Bracketed, an answer is a point and has an order; math-verify compares it with a bare list as a set.
        return f"({gold.text})", plain
    return gold.text, plain


def _judge(gold: Gold, answer: str, asked: dict[tuple[str, str], str]) -> str:
    """Outcome for one alternative."""
    if gold.kind == "bad":
        return "bad_gold"
    if len(answer) > MAX_CHARS:
        return "wrong"
    if gold.kind == "expression":
        return asked.get(_question(gold, answer), "wrong")
    return "correct" if judge_locally(gold, answer) else "wrong"


def _canonical(answer: str, gold: Gold) -> str:
    """The answer as it is reported, so that votes over samples count equal answers together."""
    if len(answer) > MAX_CHARS:
        return answer
    if gold.kind == "choice":
        return read_choice(plain_latex(answer), with_value=True) or answer
    integer = None if "%" in gold.text or gold.kind == "numeral" else parse_integer(answer)
    return answer if integer is None else str(integer)
