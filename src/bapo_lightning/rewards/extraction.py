"""Finding the answer in a response. Every function takes any text, never raises, and runs in linear time."""

import re
from dataclasses import dataclass
from typing import Literal

from bapo_lightning.rewards.characters import normalise_characters, unwrap
from bapo_lightning.rewards.integers import parse_integer

_BOX_TOKEN = re.compile(r"(?P<box>\\{1,3}(?:boxed|fbox)(?![A-Za-z]))|\\.|[{}]", re.DOTALL)
_SPACE = re.compile(r"\s*")
_PHRASE = re.compile(r"\banswer\b[*_ \t]{0,4}(?:(?:is|equals)\b|=|:)", re.IGNORECASE)
_PHRASE_GAP = re.compile(r"[\s*:]{0,12}")
_LINE_OR_SENTENCE_END = re.compile(r"\.(?=[*_)\"'’”]*(?:\s|$))|\n")
_DISPLAY_MATH = re.compile(r"((?:\\\[|\$\$)[^$]*?(?:\\\]|\$\$))[.\s]*(?:\n|$)")
_LATEX_COMMAND = re.compile(r"\\[A-Za-z]+")
_WORD = re.compile(r"[^\W\d_]{2,}")
_MATH_WORD = re.compile(r"(?:arc)?(?:sin|cos|tan)h?|cot|sec|csc|log|ln|exp|sqrt|pi", re.IGNORECASE)
_MAX_PHRASE_CHARS = 200


@dataclass(frozen=True)
class Box:
    """The result of looking for boxes in a text."""

    content: str | None
    """Content of the last box; None when there is none, or the last box command has no closed braces."""

    has_command: bool
    """Whether the text holds any box command, closed or not."""


@dataclass(frozen=True)
class Finding:
    """What a response answers."""

    answer: str | None
    """The answer as written, wrappers removed; None when there is none."""

    status: Literal["found", "no_answer", "truncated"]
    """``truncated``: the token limit came before any answer was begun."""


def find_answer(
    response: str | None,
    think_tags: tuple[str, str] | None = None,
    plain_text: bool = True,
    cut_off: bool = False,
) -> Finding:
    """Find the answer of a response.

    Args:
        response: The decoded response, or None.
        think_tags: Opening and closing tag of the thought; None when tags mean nothing.
        plain_text: Read a final-answer phrase when there is no box command.
        cut_off: The response reached the token limit.

    Returns:
        The answer. An open thought or an open box is ``no_answer`` even when the response was cut off: the cut is in
        its finish reason, the broken format is only here.
    """
    text = response or ""
    if think_tags is not None:
        after_thought = visible_text(text, think_tags)
        if after_thought is None:
            return Finding(None, "no_answer")
        text = after_thought
    box = last_box(text)
    if box.has_command:
        answer = unwrap(box.content or "")
    else:
        answer = (final_phrase(text, cut_off) or "") if plain_text else ""
        if not answer and cut_off:
            return Finding(None, "truncated")
    return Finding(answer, "found") if answer else Finding(None, "no_answer")


def last_box(text: str) -> Box:
    r"""Find the content of the last balanced box (``\boxed`` or ``\fbox``).

    The last box command decides. When its braces are missing or not closed there is no answer, and no earlier
    box takes its place. Boxes inside a box belong to the outer one. Escaped braces are content.

    Args:
        text: Any text.

    Returns:
        The box that closed last, if the last box command is closed.
    """
    stack: list[tuple[int, bool]] = []  # position after each open brace, and whether it opens a box
    expected_brace = -1  # where the brace of the last box command has to stand
    has_command = is_closed = False
    start = end = 0
    for token in _BOX_TOKEN.finditer(text, _first_box(text)):
        symbol = token.group()
        if token.group("box"):
            gap = _SPACE.match(text, token.end())
            expected_brace = gap.end() if gap else token.end()
            has_command, is_closed = True, False
        elif symbol == "{":
            stack.append((token.end(), token.start() == expected_brace))
        elif symbol == "}" and stack:
            opened_at, is_box = stack.pop()
            if is_box:
                # Once the last box is closed, whatever box closes later encloses it.
                start, end = opened_at, token.start()
                is_closed = is_closed or opened_at == expected_brace + 1
    return Box(text[start:end] if is_closed else None, has_command)


def _first_box(text: str) -> int:
    """Where to begin looking for tokens: braces before the first box command can neither hold nor close a box.

    Most of a response comes before it, and finding a word is many times faster than reading tokens.
    """
    found = [place for place in (text.find("boxed"), text.find("fbox")) if place >= 0]
    start = min(found, default=len(text))
    while start > 0 and text[start - 1] == "\\":
        start -= 1
    return start


def visible_text(text: str, think_tags: tuple[str, str]) -> str | None:
    """The part of a response after its thought.

    Args:
        text: The response. The opening tag may be missing (chat templates put it into the prompt).
        think_tags: Opening and closing tag.

    Returns:
        What follows the last closing tag; None when the thought is not closed, or another one is open after it.
    """
    opening, closing = think_tags
    _, found, after = text.rpartition(closing)
    return after if found and opening not in after else None


def final_phrase(text: str, cut_off: bool = False) -> str | None:
    """The answer of an explicit final-answer phrase such as ``The answer is 42.`` or ``**Answer:** $x+1$``.

    The last phrase decides. What follows it, up to the end of the sentence or line, must be one number or one
    expression as a whole; any other word makes it prose, which is not read.

    Args:
        text: A text without boxes.
        cut_off: The text ended at the token limit, so an answer at its very end may lack digits and is not read.

    Returns:
        The answer as written, or None.
    """
    last: re.Match[str] | None = None
    for match in _PHRASE.finditer(text):
        last = match
    if last is None:
        return None
    gap = _PHRASE_GAP.match(text, last.end())
    start = gap.end() if gap else last.end()
    window = text[start : start + _MAX_PHRASE_CHARS + 1]
    display = _DISPLAY_MATH.match(window)
    end = display or _LINE_OR_SENTENCE_END.search(window)
    if end is None and (cut_off or len(window) > _MAX_PHRASE_CHARS):
        return None
    candidate = display.group(1) if display else window[: end.start()] if end else window
    candidate = unwrap(candidate.strip(" \t*_"))
    is_whole = parse_integer(candidate) is not None or _is_expression(candidate)
    return candidate if is_whole else None


def _is_expression(text: str) -> bool:
    """Whether the text is mathematics without a word of prose."""
    plain = normalise_characters(_LATEX_COMMAND.sub(" ", text))
    has_prose = any(not _MATH_WORD.fullmatch(word) for word in _WORD.findall(plain))
    return not has_prose and any(c.isalnum() for c in plain)
