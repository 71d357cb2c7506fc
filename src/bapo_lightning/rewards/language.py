"""Whether a response keeps to one writing system."""

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache

from bapo_lightning.errors import InputError
from bapo_lightning.rewards.term import RewardTerm
from bapo_lightning.types import Trajectory

_MATH = re.compile(r"\$\$.*?\$\$|\$[^$\n]*\$|\\\[.*?\\\]|\\\(.*?\\\)|\\[A-Za-z]+", re.DOTALL)

_SCRIPTS = {
    "latin": ("LATIN",),
    "han": ("CJK",),
    "japanese": ("CJK", "HIRAGANA", "KATAKANA"),
    "korean": ("HANGUL",),
    "cyrillic": ("CYRILLIC",),
    "greek": ("GREEK",),
    "arabic": ("ARABIC",),
    "hebrew": ("HEBREW",),
    "devanagari": ("DEVANAGARI",),
    "thai": ("THAI",),
}


class LanguageConsistency(RewardTerm):
    r"""The share of a response's letters that belong to one writing system.

    DeepSeek-R1 (arXiv 2501.12948) rewards the share of target-language words to keep thoughts from mixing languages;
    this is its count by letters. It tells English from Chinese and Russian, and it cannot tell English from French.
    Formulas (between ``$``, ``\(``, ``\[``) and LaTeX commands are left out. A response without letters has 1.

    Args:
        script: latin, han, japanese, korean, cyrillic, greek, arabic, hebrew, devanagari or thai.

    Raises:
        InputError: The script is another.
    """

    def __init__(self, script: str = "latin") -> None:
        if script not in _SCRIPTS:
            raise InputError(f"script must be one of {', '.join(_SCRIPTS)}, got {script!r}")
        self.script = script

    def values(self, trajectories: Sequence[Trajectory]) -> list[float]:
        """0 … 1 for each response; see `RewardTerm.values`."""
        return [self._share(t.text) for t in trajectories]

    def _share(self, text: str) -> float:
        letters = [c for c in _MATH.sub(" ", text) if c.isalpha()]
        wanted = _SCRIPTS[self.script]
        return sum(_script(c) in wanted for c in letters) / len(letters) if letters else 1.0


@lru_cache(maxsize=65536)
def _script(letter: str) -> str:
    """First word of the character's Unicode name, which is its writing system: ``LATIN SMALL LETTER A``."""
    return unicodedata.name(letter, "").partition(" ")[0]
