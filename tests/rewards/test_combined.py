"""Rewards of several parts."""

import math
import pickle

import pytest
from reward_trajectories import respond

from bapo_lightning.errors import InputError
from bapo_lightning.rewards import AnswerFormat, CombinedReward, LengthPenalty, MathReward, RewardTerm, SoftOverlong


class Fixed(RewardTerm):
    """Gives the values it was made with."""

    def __init__(self, *values):
        self.given = list(values)
        self.closed = 0

    def values(self, trajectories):
        return self.given

    def close(self):
        self.closed += 1


def test_the_sum_is_weighted_and_parts_are_not():
    reward = CombinedReward(
        {"overlong": SoftOverlong(20, 10), "format": AnswerFormat()}, {"correctness": 2.0, "format": 0.25}
    )
    right, long = respond(r"\boxed{4}", num_tokens=5), respond("no", num_tokens=15)
    scores = reward.score_trajectories([right, long])
    assert [s.value for s in scores] == [2.0 * 1 + 1.0 * 0 + 0.25 * 1, 2.0 * 0 - 0.5 + 0]
    assert scores[0].parts == {"correctness": 1.0, "overlong": 0.0, "format": 1.0}
    assert scores[1].parts == {"correctness": 0.0, "overlong": -0.5, "format": 0.0}
    assert [s.status for s in scores] == ["correct", "no_answer"]
    assert scores[0].extracted == "4"


def test_terms_see_the_verdict():
    reward = CombinedReward({"brief": LengthPenalty(10)}, {"correctness": 0})
    right, wrong = respond(r"\boxed{4}", num_tokens=5, status=""), respond(r"\boxed{5}", num_tokens=5, status="")
    assert [s.value for s in reward.score_trajectories([right, wrong])] == [-0.5, 0.0]


def test_a_missing_part_makes_the_reward_missing_and_keeps_the_verdict():
    reward = CombinedReward({"a": Fixed(math.nan, 1.0)})
    missing, whole = reward.score_trajectories([respond(r"\boxed{4}"), respond(r"\boxed{4}")])
    assert missing.is_missing
    assert missing.status == "correct"
    assert missing.parts == {"correctness": 1.0, "a": None}
    assert whole.value == 2.0


def test_a_part_of_weight_0_is_watched_only():
    reward = CombinedReward({"a": Fixed(math.nan)}, {"a": 0.0})
    (score,) = reward.score_trajectories([respond(r"\boxed{4}")])
    assert score.value == 1.0
    assert score.parts["a"] is None


def test_a_bad_gold_counts_only_where_the_verdict_does():
    unjudged = respond(r"\boxed{4}", answer="None")
    assert CombinedReward({"a": Fixed(1.0)}).score_trajectories([unjudged])[0].is_missing
    watched = CombinedReward({"a": Fixed(1.0)}, {"correctness": 0}).score_trajectories([unjudged])[0]
    assert (watched.value, watched.status) == (1.0, "bad_gold")


def test_an_infinite_value_is_missing_and_said(caplog):
    (score,) = CombinedReward({"a": Fixed(math.inf)}).score_trajectories([respond(r"\boxed{4}")])
    assert score.is_missing
    assert "terms.a: 1 of 1 values are infinite" in caplog.text


def test_benchmarks_get_the_verdict_alone():
    reward = CombinedReward({"a": Fixed(5.0)}, {"correctness": 3.0})
    (score,) = reward.score([r"\boxed{4}"], ["4"], ["stop"])
    assert (score.value, score.status) == (1.0, "correct")


@pytest.mark.parametrize(
    ("terms", "weights", "message"),
    [
        ({"correctness": Fixed()}, {}, "cannot be named 'correctness'"),
        ({"a/b": Fixed()}, {}, "cannot be named 'a/b'"),
        ({"": Fixed()}, {}, "cannot be named ''"),
        ({"a": Fixed()}, {"b": 1.0}, "weights has 'b', which is no part of this reward; parts are correctness, a"),
        ({"a": Fixed()}, {"a": math.nan}, r"weights\.a must be a finite number"),
        ({"a": Fixed()}, {"a": 0, "correctness": 0}, "every weight is 0"),
    ],
)
def test_unusable_settings(terms, weights, message):
    with pytest.raises(InputError, match=message):
        CombinedReward(terms, weights)


@pytest.mark.parametrize("values", [[], [1.0, 2.0], ["1"], [None]])
def test_terms_that_return_something_else_are_named(values):
    with pytest.raises(InputError, match=r"data\.reward\.terms\.a: Fixed returned"):
        CombinedReward({"a": Fixed(*values)}).score_trajectories([respond()])


def test_close_reaches_every_part_and_pickling_works():
    term = Fixed(0.5)
    reward = CombinedReward({"a": term}, correctness=MathReward(num_workers=1))
    reward.close()
    assert term.closed == 1
    assert pickle.loads(pickle.dumps(reward)).score_trajectories([respond(r"\boxed{4}")])[0].value == 1.5
