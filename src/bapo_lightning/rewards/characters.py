"""One spelling for characters that look alike, and removal of wrappers that do not change an answer."""

import re
import unicodedata

_SUPERSCRIPTS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789", strict=True))
_SUBSCRIPTS = dict(zip("₀₁₂₃₄₅₆₇₈₉", "0123456789", strict=True))
_SYMBOLS = {
    **{"π": "pi", "∞": "infty", "×": "times", "·": "cdot", "÷": "div", "±": "pm", "≤": "leq", "≥": "geq"},
    **{"≠": "neq", "∪": "cup", "∩": "cap", "∈": "in"},
}
_ROOT = re.compile(r"√\s*([0-9]+|[A-Za-z])")
_FRACTION = re.compile("[¼½¾⅐-⅞↉]")
_LOOKALIKES = str.maketrans(
    {
        **dict.fromkeys("−‐‑‒–—﹣－", "-"),
        **dict.fromkeys("º˚∘", "°"),
        **{sup: f"^{{{digit}}}" for sup, digit in _SUPERSCRIPTS.items()},
        **{sub: f"_{{{digit}}}" for sub, digit in _SUBSCRIPTS.items()},
        **{symbol: rf"\{name} " for symbol, name in _SYMBOLS.items()},
        **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff", ""),
    }
)

TEXT_COMMANDS = (
    r"\\(?:text|textbf|textit|textrm|textsf|texttt|textnormal|mathrm|mathbf|mathit|mathsf|mbox|hbox|operatorname)"
    r"\*?\s*"
)
"""Pattern of the commands that set their argument as text or in another type face."""

_DELIMITERS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("**", "**"))
_BOX = re.compile(r"\\+(?:boxed|fbox|mathbf|boldsymbol|bm)\s*\{(.*)\}", re.DOTALL)
_STYLE = re.compile(r"\\(?:displaystyle|textstyle)(?![A-Za-z])\s*")
_MAX_WRAPPERS = 8


def normalise_characters(text: str) -> str:
    r"""Fold look-alikes to ASCII or LaTeX where they mean the same: full-width digits, dashes, ``π``, ``√2``.

    Unicode's NFKC does most of it. Raised and lowered digits and ``½`` are spelled out first, because NFKC turns
    ``7²`` into ``72`` and ``7½`` into ``71/2``.
    """
    text = _FRACTION.sub(_as_latex_fraction, text.translate(_LOOKALIKES))
    return unicodedata.normalize("NFKC", _ROOT.sub(r"\\sqrt{\1}", text))


def _as_latex_fraction(match: re.Match[str]) -> str:
    top, _, bottom = unicodedata.normalize("NFKC", match.group()).partition("\N{FRACTION SLASH}")
    return rf"\frac{{{top}}}{{{bottom}}}"


def braces_match(text: str) -> bool:
    """Whether every unescaped brace has its partner."""
    depth = 0
    for token in re.finditer(r"\\.|[{}]", text, re.DOTALL):
        depth += {"{": 1, "}": -1}.get(token.group(), 0)
        if depth < 0:
            return False
    return depth == 0


def unwrap(text: str) -> str:
    r"""Strip white space, math delimiters, bold, a box and braces when they enclose the whole text.

    ``\(\boxed{ $70$ }\)`` becomes ``70``. Wrappers are taken off up to eight deep.
    """
    for _ in range(_MAX_WRAPPERS):
        text = text.strip()
        style = _STYLE.match(text)
        inner = text[style.end() :] if style else _inside(text)
        if inner is None:
            break
        text = inner
    return text.strip()


def _inside(text: str) -> str | None:
    """The text inside one pair of wrappers around all of it, or None."""
    for opening, closing in _DELIMITERS:
        if len(text) >= len(opening) + len(closing) and text.startswith(opening) and text.endswith(closing):
            inner = text[len(opening) : len(text) - len(closing)]
            # A dollar that is escaped is a currency sign, and one in the middle means two pieces of math.
            if closing not in inner and not inner.endswith("\\"):
                return inner
    box = _BOX.fullmatch(text)
    candidate = box.group(1) if box else text[1:-1] if len(text) >= 2 and text[0] + text[-1] == "{}" else None
    if candidate is None or candidate.endswith("\\") or not braces_match(candidate):
        return None
    return candidate
