"""Rewards: what a response is worth. A reward reads text and a gold answer and returns one `Score` per response.

The parts of `MathReward`, in the order a response meets them: `extraction` finds the answer, `golds` reads the
gold and decides integers (`integers`), choices, words and numerals with a base on the spot; what is left goes
through `pool` to `worker` processes, which ask math-verify. `characters` evens out spelling for all of them.

`CombinedReward` adds weighted terms to such a verdict. A term (`RewardTerm`) is one file or one class: `answer_format`,
`length`, `language`, `python_function` (the user's own) and `remote` (asked over HTTP).

To add a reward, write a file with one subclass of `Reward`, export it here, and describe its rules, with one
example each, in ``docs/rewards.md``. A reward is usable from YAML by class path. A response it cannot score gets
the value NaN (missing), never 0; what belongs to one response must not be able to stop the batch.
"""

from bapo_lightning.rewards.answer_format import AnswerFormat
from bapo_lightning.rewards.base import Reward
from bapo_lightning.rewards.combined import CombinedReward
from bapo_lightning.rewards.language import LanguageConsistency
from bapo_lightning.rewards.length import CosineLength, LengthPenalty, Repetition, SoftOverlong
from bapo_lightning.rewards.math_reward import MathReward
from bapo_lightning.rewards.python_function import PythonFunction
from bapo_lightning.rewards.remote import RemoteReward
from bapo_lightning.rewards.term import RewardTerm
from bapo_lightning.types import Score

__all__ = [
    "AnswerFormat",
    "CombinedReward",
    "CosineLength",
    "LanguageConsistency",
    "LengthPenalty",
    "MathReward",
    "PythonFunction",
    "RemoteReward",
    "Repetition",
    "Reward",
    "RewardTerm",
    "Score",
    "SoftOverlong",
]
