"""A reward of several parts, from the YAML to the rollout file and the curves."""

import json

import pandas
import pytest
from command import finish, start, write_config
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

FUNCTION = "def brief(num_tokens):\n    return None if num_tokens == 1 else -num_tokens / 8\n"


@pytest.fixture
def config(tmp_path, model_folder):
    (tmp_path / "mine.py").write_text(FUNCTION)
    terms = {
        "overlong": {"class_path": "SoftOverlong", "init_args": {"max_tokens": 6, "cache_tokens": 3}},
        "brief": {"class_path": "PythonFunction", "init_args": {"function": f"{tmp_path}/mine.py:brief"}},
    }
    reward = {
        "class_path": "CombinedReward",
        "init_args": {
            "correctness": {"class_path": "counting_task.EvenLength"},
            "terms": terms,
            "weights": {"brief": 0.5},
        },
    }
    return write_config(tmp_path, model_folder(), data={"reward": reward})


def test_parts_are_added_kept_and_drawn(tmp_path, config):
    out = tmp_path / "rollouts"
    code, output = finish(start("rollout", "--config", config, "--out", out, "--phases", "1", cwd=tmp_path))
    assert code == 0, output
    frame = pandas.concat(map(pandas.read_parquet, sorted(out.glob("*.parquet"))))
    parts = [json.loads(text) for text in frame["reward_parts"]]
    for part, tokens, reward in zip(parts, frame["token_ids"].map(len), frame["reward"], strict=True):
        assert part["overlong"] == -max(tokens - 3, 0) / 3
        assert part["brief"] == (None if tokens == 1 else -tokens / 8)
        if tokens == 1:
            assert pandas.isna(reward)
        else:
            assert reward == part["correctness"] + part["overlong"] + 0.5 * part["brief"]
    code, output = finish(start("fit", "--config", config, f"--data.rollouts={out}", "--trainer.max_epochs=1"))
    assert code == 0, output
    events = EventAccumulator(str(tmp_path / "runs/test/version_0"))
    events.Reload()
    for name in ("correctness", "overlong", "brief"):
        known = [part[name] for part in parts if part[name] is not None]
        (point,) = events.Scalars(f"reward/{name}")
        assert point.value == pytest.approx(sum(known) / len(known), rel=1e-6)
        assert events.Scalars(f"reward/{name}_missing")[0].value == len(parts) - len(known)


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("--data.reward.init_args.weights.brevity=1", "weights has 'brevity', which is no part of this reward"),
        ("--data.reward.init_args.terms.overlong.init_args.cache_tokens=9", "cache_tokens must lie in 1"),
        ("--data.reward.init_args.terms.brief.init_args.function=nowhere:f", "cannot load function 'nowhere:f'"),
    ],
)
def test_mistakes_are_named(config, argument, words):
    code, output = finish(start("fit", "--config", config, argument))
    assert code == 2, output
    assert words in output
    assert "Traceback" not in output
