"""Reading gold answers, and judging against those that need no algebra."""

import ast
import json
import re
from dataclasses import dataclass
from typing import Literal

from bapo_lightning.rewards.characters import TEXT_COMMANDS, braces_match, normalise_characters, unwrap
from bapo_lightning.rewards.integers import parse_integer

GoldKind = Literal["integer", "choice", "words", "numeral", "expression", "bad"]
"""What decides an answer; ``expression`` goes to math-verify, ``bad`` cannot be judged at all."""

MAX_CHARS = 2000
"""Longer golds are refused, and longer answers are wrong: neither is an answer to a problem."""

_PRINTED_LIST = re.compile(r"\[\s*['\"].*['\"]\s*,?\s*\]", re.DOTALL)
_PLACEHOLDER = re.compile(
    r"[\W_]*|none|null|nan|n/?a|unknown|undetermined|todo|tbd|no answer|see\b.*|proof\b.*", re.IGNORECASE | re.DOTALL
)
_TEXT = re.compile(TEXT_COMMANDS + r"\{([^{}]*)\}")
_LATEX_COMMAND = re.compile(r"\\[A-Za-z]+")
_CHOICE = re.compile(r"\(?\s*([A-Ea-e])\s*(?:\)\s*[.:]?|[.:])?")
_CHOICE_WITH_VALUE = re.compile(r"(?:\(\s*([A-Ea-e])\s*\)|([A-Ea-e])\s*[).:])\s*[.:]?\s*(\S.*)", re.DOTALL)
_OTHER_CHOICE = re.compile(r"(?<![A-Za-z\\])\(?[A-Ea-e]\s*\)|(?<![A-Za-z\\])[A-E](?![A-Za-z])")
_WORDS = re.compile(r"[^\W\d_]+(?:[\s'’-]+[^\W\d_]+)*")
_BARE_WORD = re.compile(r"[^\W\d_]{3,}")
_MATH_WORD = re.compile(r"(?:arc)?(?:sin|cos|tan)h?|cot|sec|csc|log|exp|sqrt|mod|and", re.IGNORECASE)
_MAX_GOLD_WORDS = 6
_MAX_PROSE_WORDS = 2
_NUMERAL = re.compile(r"\(?([0-9][0-9A-Za-z]*)\)?\s*_\s*(?:\{\s*([0-9]+)\s*\}|([0-9]+))")
_BARE_NUMERAL = re.compile(r"[0-9][0-9A-Za-z]*")
_LAST_MARK = re.compile(r"(?<![\\.])[.,;:]\s*$")
_MATH_DOLLAR = re.compile(r"(?<!\\)\$")


@dataclass(frozen=True)
class Gold:
    """One gold answer, read once."""

    kind: GoldKind
    """What decides."""

    text: str
    """The gold with wrappers removed and characters evened out."""

    integer: int | None = None
    """Its value, for ``integer``."""


def gold_alternatives(answer: object) -> list[str]:
    """Split what a data set calls the answer into alternatives, any of which is right.

    A list, or its printed form (``['70']``, Python or JSON), is taken apart. A bracket without quotes, such as
    ``[1,2]``, is mathematics and stays whole.

    Args:
        answer: The answer as given.

    Returns:
        At least one text; an empty text stands for an answer that is no text.
    """
    if isinstance(answer, str) and _PRINTED_LIST.fullmatch(answer.strip()):
        answer = _read_printed_list(answer.strip())
    entries = list(answer) if isinstance(answer, list | tuple) else [answer]
    texts = [str(entry) if _is_text_or_integer(entry) else "" for entry in entries]
    return texts or [""]


def _is_text_or_integer(entry: object) -> bool:
    return isinstance(entry, str) or (isinstance(entry, int) and not isinstance(entry, bool))


def _read_printed_list(text: str) -> object:
    """The list that a text prints, or the text itself."""
    for read in (json.loads, ast.literal_eval):
        try:
            value = read(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        if isinstance(value, list):
            return value
    return text


def read_gold(text: str) -> Gold:
    """Decide how answers to this gold are judged.

    Args:
        text: One alternative of the gold answer.

    Returns:
        The gold; kind ``bad`` for an empty text, a placeholder, a sentence or braces that do not match.
    """
    plain = plain_latex(text)
    words = _as_words(plain)
    kind: GoldKind = "expression"
    integer = None
    if len(text) > MAX_CHARS or not braces_match(plain) or _PLACEHOLDER.fullmatch(_without_text_commands(plain)):
        kind = "bad"
    elif "%" not in plain and (integer := parse_integer(plain)) is not None:
        kind = "integer"
    elif (letter := read_choice(plain)) is not None and letter in plain:
        kind = "choice"
    elif words is not None and (_TEXT.search(plain) or _is_bare_word(words)):
        kind = "words" if words and len(words.split()) <= _MAX_GOLD_WORDS else "bad"
    elif _NUMERAL.fullmatch(_without_text_commands(plain)):
        kind = "numeral"
    elif len(_bare_words(plain)) > _MAX_PROSE_WORDS:
        kind = "bad"
    return Gold(kind, plain, integer)


def plain_latex(text: str) -> str:
    """A gold or an answer without wrappers, math dollars and marks of punctuation at its end."""
    plain = _MATH_DOLLAR.sub(" ", normalise_characters(unwrap(text))).strip()
    return _LAST_MARK.sub("", plain).strip()


def judge_locally(gold: Gold, answer: str) -> bool:
    """Whether an answer is right, for every kind but ``expression`` and ``bad``.

    Args:
        gold: What is right.
        answer: An answer as extracted.

    Returns:
        True only for an answer that reads as the same integer, letter, words or numeral.
    """
    plain = plain_latex(answer)
    if gold.kind == "integer":
        return parse_integer(plain) == gold.integer
    if gold.kind == "choice":
        return read_choice(plain, with_value=True) == read_choice(gold.text)
    if gold.kind == "words":
        return _as_words(plain) == _as_words(gold.text)
    return _same_numeral(gold.text, plain)


def read_choice(text: str, with_value: bool = False) -> str | None:
    r"""Read a multiple-choice letter: ``C``, ``(C)``, ``c.`` or ``\text{(C)}``.

    Args:
        text: An answer or a gold.
        with_value: Accept the content of the choice after its letter too, as in ``\textbf{(C)}\ 12``.

    Returns:
        The letter in upper case, or None when the text is not one choice.
    """
    plain = unwrap(_without_text_commands(text).replace("\\ ", " ").replace("\\,", " ").replace("~", " "))
    match = _CHOICE.fullmatch(plain)
    if match:
        return match.group(1).upper()
    valued = _CHOICE_WITH_VALUE.fullmatch(plain) if with_value else None
    if valued and not _OTHER_CHOICE.search(valued.group(3)):
        return (valued.group(1) or valued.group(2)).upper()
    return None


def _without_text_commands(text: str) -> str:
    while _TEXT.search(text):
        text = _TEXT.sub(r" \1 ", text)
    return text.strip()


def _as_words(text: str) -> str | None:
    """The text as lower-case words with single spaces, or None when it holds anything else."""
    plain = _without_text_commands(text).replace("\\ ", " ").rstrip(" .")
    return " ".join(plain.casefold().split()) if _WORDS.fullmatch(plain) else None


def _bare_words(text: str) -> list[str]:
    """Words of prose outside text commands."""
    plain = _LATEX_COMMAND.sub(" ", _TEXT.sub(" ", text))
    return [word for word in _BARE_WORD.findall(plain) if not _MATH_WORD.fullmatch(word)]


def _is_bare_word(words: str) -> bool:
    """Whether words without a text command can be words at all, not a product of variables like ``xy``."""
    return any(not _MATH_WORD.fullmatch(word) for word in _BARE_WORD.findall(words))


def _same_numeral(gold: str, answer: str) -> bool:
    """Whether two numerals with a base are written alike; an answer may leave the base out."""
    expected = _NUMERAL.fullmatch(_without_text_commands(gold))
    plain = "".join(_without_text_commands(answer).split())
    given = _NUMERAL.fullmatch(plain)
    if expected is None:
        return False
    digits = expected.group(1).upper()
    if given is None:
        return bool(_BARE_NUMERAL.fullmatch(plain)) and plain.upper() == digits
    base, given_base = (match.group(2) or match.group(3) for match in (expected, given))
    return given.group(1).upper() == digits and int(given_base) == int(base)
