"""The scripted engine: canned answers, counted."""

import pytest

from bapo_lightning.errors import InputError
from bapo_lightning.models import Policy
from bapo_lightning.rollout import ScriptedEngine
from bapo_lightning.types import GenerationRequest, SamplingSettings


def attached(model_folder, *args, **kwargs):
    engine = ScriptedEngine(*args, **kwargs)
    engine.attach(Policy(str(model_folder())).load())
    engine.sync_weights(0)
    return engine


def test_answers_go_round_or_by_key(model_folder):
    engine = attached(model_folder, {"a": "1", "a/1": "2", "*": "3"})
    asked = [GenerationRequest((0,), 0, key) for key in ("a/0", "a/1", "b/0")]
    completions = engine.generate(asked, SamplingSettings(max_new_tokens=8))
    assert [engine.policy.decode(c) for c in completions] == ["1", "2", "3"]
    assert [c.finish_reason for c in completions] == ["stop"] * 3
    assert (engine.num_calls, engine.num_requests) == (1, 3)

    engine = attached(model_folder, ["x", "y"])
    texts = [engine.policy.decode(c) for c in engine.generate(asked, SamplingSettings(max_new_tokens=8))]
    assert texts == ["x", "y", "x"]


def test_an_answer_over_the_limit_is_cut_and_truncated(model_folder):
    engine = attached(model_folder, ["12345"])
    (completion,) = engine.generate([GenerationRequest((0,), 0)], SamplingSettings(max_new_tokens=3))
    assert completion.finish_reason == "length"
    assert len(completion.token_ids) == 3


def test_one_cache_reset_after_each_weight_update(model_folder):
    """B094: update then generate, three times."""
    engine = attached(model_folder, ["1"])
    engine.cache_resets = 0
    for version in (1, 2, 3):
        before = engine.cache_resets
        engine.sync_weights(version)
        assert (engine.version, engine.cache_resets) == (version, before + 1)
        engine.generate([GenerationRequest((0,), 0)], SamplingSettings(max_new_tokens=3))
        assert engine.cache_resets == before + 1


def test_a_missing_answer_names_the_request(model_folder):
    engine = attached(model_folder, {"a": "1"})
    with pytest.raises(InputError, match="b/0"):
        engine.generate([GenerationRequest((0,), 0, "b/0")], SamplingSettings(max_new_tokens=3))


def test_impossible_scripts_are_refused():
    with pytest.raises(InputError, match="answers"):
        ScriptedEngine([])
    with pytest.raises(InputError, match="log_prob"):
        ScriptedEngine(["x"], log_prob=0.5)
