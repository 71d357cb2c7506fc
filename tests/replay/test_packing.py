"""Trajectories through tensors and a file: equal to what they were."""

import io
from dataclasses import fields, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from trajectory_samples import float32, make_group, make_trajectory, trajectories

from bapo_lightning.errors import InputError
from bapo_lightning.replay import pack_trajectories, unpack_trajectories
from bapo_lightning.types import Completion, Prompt, Trajectory


def through_a_file(rows):
    file = io.BytesIO()
    torch.save(pack_trajectories(rows), file)
    file.seek(0)
    return unpack_trajectories(torch.load(file, weights_only=True))


@settings(max_examples=100, deadline=None)
@given(st.lists(trajectories(), max_size=4))
def test_any_trajectories_come_back_equal(rows):
    assert through_a_file(rows) == rows


def test_every_field_is_packed():
    """A field added to a record must be added to the packing too, or checkpoints would lose it silently."""
    names = {field.name for record in (Trajectory, Completion, Prompt) for field in fields(record)}
    packed = pack_trajectories([make_trajectory(0)])
    stored = packed.keys() | packed["prompts"][0].keys()
    assert names - {"prompt", "completion"} == stored - {
        "prompts", "prompt_index", "prompt_length", "response_length", "has_reward", "has_proximal",
    }  # fmt: skip


def test_log_probs_of_the_phases_start_where_there_are_any():
    plain, scored = make_trajectory(0), make_trajectory(1)
    scored = replace(scored, proximal_log_probs=tuple(-0.25 * i for i in range(len(scored.completion.token_ids))))
    assert through_a_file([plain, scored, plain]) == [plain, scored, plain]


def test_empty_responses_missing_rewards_and_no_rows():
    rows = [make_trajectory(0, versions=()), make_trajectory(1, reward=None), make_trajectory(2, reward=0.0)]
    back = through_a_file(rows)
    assert back == rows
    assert [t.reward for t in back] == [1.0, None, 0.0]
    assert through_a_file([]) == []


def test_log_probs_are_exact():
    narrow = make_trajectory(0, log_probs=[float32(-0.1), float32(-1e-8)])
    wide = make_trajectory(1, log_probs=[-0.1, -1 / 3])
    assert pack_trajectories([narrow])["log_probs"].dtype == torch.float32
    assert pack_trajectories([wide])["log_probs"].dtype == torch.float64
    for rows in ([narrow], [wide], [narrow, wide]):
        assert [t.completion.log_probs for t in through_a_file(rows)] == [t.completion.log_probs for t in rows]


def test_impossible_log_probs_survive_too():
    row = make_trajectory(0, versions=(0, 0, 0), log_probs=[-float("inf"), float("nan"), -0.0])
    (back,) = through_a_file([row])
    assert str(back.completion.log_probs) == "(-inf, nan, -0.0)"


def test_shared_prompts_are_stored_once():
    prompt = make_trajectory(0).prompt
    rows = [make_trajectory(0, i) for i in range(3)]
    assert len(pack_trajectories(rows)["prompts"]) == 3  # made apart
    shared = [type(t)(**{**vars(t), "prompt": prompt}) for t in rows]
    packed = pack_trajectories(shared)
    assert len(packed["prompts"]) == 1
    assert unpack_trajectories(packed) == shared
    assert len(pack_trajectories(unpack_trajectories(packed))["prompts"]) == 1


@pytest.mark.parametrize("name", ["token_ids", "log_probs", "policy_versions", "prompt_ids", "text", "reward"])
def test_damage_is_noticed(name):
    packed = pack_trajectories(make_group(0))
    with pytest.raises(InputError, match=f"damaged: {name} has"):
        unpack_trajectories({**packed, name: packed[name][:-1]})
    with pytest.raises(InputError, match="damaged"):
        unpack_trajectories({key: value for key, value in packed.items() if key != name})
    with pytest.raises(InputError, match="damaged"):
        unpack_trajectories({**packed, "prompts": []})
