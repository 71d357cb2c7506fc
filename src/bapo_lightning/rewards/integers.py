r"""The strict path for integer golds: a written answer is one whole number, or it is wrong.

No arithmetic happens here. ``\frac{10}{2}`` or ``2^3`` is not a written-out integer, so nothing can explode.
"""

import re

from bapo_lightning.rewards.characters import TEXT_COMMANDS, normalise_characters, unwrap

_MAX_CHARS = 1000
_TEXT = re.compile(TEXT_COMMANDS + r"\{([^{}]*)\}(\s*\^\s*(?:\{\s*-?[0-9]\s*\}|-?[0-9]))?")
_WORD = re.compile(r"[^\W\d_]+\.?")
_COMMAND = re.compile(r"\\[A-Za-z]")
_DROPPED_WITH_TEXT = re.compile(r"[^0-9+\-*^=<>≈!%|\\]")
# Words that change the number, join two or hedge: to drop them would be to change what was said.
_CHANGES_VALUE = re.compile(
    "not?|neither|n?or|and|to|than|less|more|fewer|greater|least|most|between|about|approximately|around|roughly|"
    "nearly|almost|minus|negative|plus|over|mod|modulo|half|quarter|third|hundred|thousand|million|billion|"
    "trillion|dozen|infinity|squared|cubed|factorial|choose|sqrt|root|log|exp|sin|cos|tan|base|alpha|beta|gamma|"
    "delta|theta|lambda|sigma|omega|phi|pi|e|i",
    re.IGNORECASE,
)
_SPACED_COMMA = re.compile(r"\{,\}|,\s*\\!\s*")
_SPACING = re.compile(r"\\(?:[,;:!> ]|quad\b|qquad\b|thinspace\b)|~")
_INVISIBLE = re.compile(r"\\(?:displaystyle|textstyle|left|right|bf|rm|it)(?![A-Za-z])")
_ABBREVIATION = r"(?:mm|cm|dm|km|mi|ft|in|yd|kg|mg|lbs?|oz|ml|hr|mph|kph|deg|degrees?)"
_EXPONENT = r"(?:\s*\^\s*(?:\{\s*-?[0-9]\s*\}|-?[0-9]))?"
_UNITS = re.compile(
    rf"(?<=[0-9])(?:\s*{_ABBREVIATION}(?![A-Za-z])|\s+[A-Za-z]{{3,}}){_EXPONENT}"
    rf"(?:(?:\s*/\s*|\s+)(?:[A-Za-z]{{3,}}|{_ABBREVIATION}(?![A-Za-z])|[hs](?![A-Za-z])){_EXPONENT})*$"
)
_DEGREES = re.compile(r"(?:\^\s*\{?\s*(?:\\circ|°)\s*\}?|°|\\degrees?(?![A-Za-z]))\s*(?:[CF](?![A-Za-z]))?$")
_PERCENT = re.compile(r"\\?%$")
_CURRENCY = r"(?:\\?\$|[€£¥₹]|\\(?:pounds|euro)(?![A-Za-z]))"
_LEADING_CURRENCY = re.compile(rf"^([+-]?)\s*{_CURRENCY}\s*(?=[+-]?[0-9])")
_TRAILING_CURRENCY = re.compile(rf"{_CURRENCY}$")
_SENTENCE_DOT = re.compile(r"(?<![\\.])\.\s*$")
_LABELS = re.compile(r"_(?:\{[^{}]*\}|[A-Za-z0-9])|(?<=[A-Za-z}'])\([^()]*\)")
_NAMES = re.compile(r"(?!\s*-)[A-Za-z\\+\-' ]*")
_NOT_A_NAME = re.compile(r"\\(?:pm|mp|n?eq?|neq|le|ge|leq|geq|approx|sim|sqrt|[dt]?frac|log|ln|sin|cos|tan|not)\b")
_NUMBER = re.compile(r"([+-]?)\s*([0-9]+|[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,3}(?:\s[0-9]{3})+)(?:\.0*)?")


def parse_integer(text: str) -> int | None:
    r"""Read a text that is one integer and nothing else.

    Ignored: math delimiters, text and units (``7\text{ apples}``, ``7\,\mathrm{cm}^2``, ``7 cm``), degree,
    currency and percent signs, thousands separators, a fraction of zeros (``7.00``), a sentence dot, leading
    zeros, ``x =`` or ``m+n =`` in front, one pair of brackets. Full-width digits count as digits.

    Args:
        text: An answer or a gold, of any content.

    Returns:
        The integer, or None when the text is anything else, such as a sum, a power, or two numbers.
    """
    if len(text) > _MAX_CHARS:
        return None
    plain = _drop_text(normalise_characters(unwrap(_SENTENCE_DOT.sub("", text))))
    if plain is None:
        return None
    plain = _INVISIBLE.sub(" ", _SPACING.sub(" ", _SPACED_COMMA.sub(",", plain)))
    plain = unwrap(_SENTENCE_DOT.sub("", _drop_assignments(unwrap(plain))))
    plain = _drop_units(plain)
    for sign in (_DEGREES, _PERCENT, _TRAILING_CURRENCY):
        plain = sign.sub("", plain.rstrip())
    plain = unwrap(_LEADING_CURRENCY.sub(r"\1", plain))
    if plain.startswith("(") and plain.endswith(")"):
        plain = plain[1:-1].strip()
    number = _NUMBER.fullmatch(plain)
    if number is None:
        return None
    digits = re.sub(r"[,\s]", "", number.group(2))
    return int(number.group(1) + digits)


def _changes_value(text: str) -> bool:
    """Whether a word or a LaTeX command of the text would change the number beside it."""
    if _COMMAND.search(text):
        return True
    return any(_CHANGES_VALUE.fullmatch(word.strip(".")) for word in _WORD.findall(text))


def _drop_text(text: str) -> str | None:
    """Take words out of text commands, innermost first; None when a word there changes the value."""
    while _TEXT.search(text):
        if any(_changes_value(match.group(1)) for match in _TEXT.finditer(text)):
            return None
        text = _TEXT.sub(_numbers_in_text, text)
    return text


def _numbers_in_text(match: re.Match[str]) -> str:
    """What one text command contributes to a number."""
    inner, exponent = match.group(1), match.group(2) or ""
    without_words = _WORD.sub(" ", inner)
    if any("0" <= c <= "9" for c in inner):
        return f" {without_words} {exponent}"
    # An exponent belongs to the unit before it; after a text without words it belongs to the number.
    kept_exponent = exponent if without_words == inner else ""
    return f" {_DROPPED_WITH_TEXT.sub(' ', without_words)} {kept_exponent}"


def _drop_units(text: str) -> str:
    """Take bare words off the end of a number: any word after a space, known abbreviations without one."""
    match = _UNITS.search(text)
    return text[: match.start()] if match and not _changes_value(match.group()) else text


def _drop_assignments(text: str) -> str:
    """Take ``x =`` or ``m + n =`` off the front, as long as the left side is a name or a sum of names."""
    while "=" in text:
        left, _, right = text.partition("=")
        if _NOT_A_NAME.search(left) or not _NAMES.fullmatch(_LABELS.sub("", left)):
            break
        text = right
    return text
