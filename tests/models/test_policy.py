"""Loading and scoring with real tiny models."""

import json

import pytest
import torch
import torch.nn.functional as F

from bapo_lightning.errors import InputError
from bapo_lightning.models import LoRA, Policy, make_reference
from bapo_lightning.types import Completion, Prompt, TokenBatch, Trajectory


def batch_of(*rows, temperature=1.0):
    """Rows of (prompt ids, response ids) as a batch."""
    trajectories = [
        Trajectory(
            prompt=Prompt(str(i), "", ""),
            prompt_ids=tuple(prompt),
            completion=Completion(tuple(response), (0.0,) * len(response), (0,) * len(response), "length"),
            group_id=0,
            sample_index=i,
            sampled_version=0,
            reward=1.0,
        )
        for i, (prompt, response) in enumerate(rows)
    ]
    return TokenBatch.from_trajectories(trajectories, pad_id=2, temperature=temperature, length_limit=8)


@pytest.mark.parametrize("kind", ["qwen2", "llama", "gpt2"])
def test_each_response_token_is_scored_by_the_logits_before_it(model_folder, kind):
    """B045: prompt [5, 6], completion [7, 8]: 7 by the logits at index 1, 8 by those at index 2."""
    policy = Policy(str(model_folder(kind))).load()
    scores = policy.score(batch_of(([5, 6], [7, 8]), temperature=0.7))
    logits = policy.model(torch.tensor([[5, 6, 7, 8]])).logits[0].double() / 0.7
    expected = [F.log_softmax(logits[1], -1)[7].item(), F.log_softmax(logits[2], -1)[8].item()]
    assert scores.log_probs[0].tolist() == pytest.approx(expected, abs=1e-5)
    probabilities = F.softmax(logits[1], -1)
    assert scores.entropy[0, 0].item() == pytest.approx(-(probabilities * probabilities.log()).sum().item(), abs=1e-5)


@pytest.mark.parametrize("kind", ["qwen2", "gpt2"])
def test_padding_does_not_change_scores(model_folder, kind):
    """B082: GPT-2 has absolute positions, which show a position id that ignores the mask."""
    policy = Policy(str(model_folder(kind))).load()
    alone = policy.score(batch_of(([5, 6], [7, 8, 9])))
    padded = policy.score(batch_of(([9, 9, 9, 5, 6], [7, 8, 9, 3, 4]), ([5, 6], [7, 8, 9])))
    torch.testing.assert_close(padded.log_probs[1, :3], alone.log_probs[0], atol=1e-5, rtol=0)
    assert padded.log_probs[1, 3:].tolist() == [0.0, 0.0]
    assert padded.entropy[1, 3:].tolist() == [0.0, 0.0]


def test_masks_come_from_lengths_and_not_from_ids(model_folder):
    """B065: an end token that is also the padding stays in the mask of the response that sampled it."""
    rows = [([5], [9, 9, 2, 2, 2]), ([5], [9, 2]), ([5], [9] * 5), ([5], [2])]
    assert batch_of(*rows).response_mask.int().tolist() == [[1] * 5, [1, 1, 0, 0, 0], [1] * 5, [1, 0, 0, 0, 0]]


def test_dropout_is_off_in_every_pass(model_folder):
    """B047: GPT-2's config asks for dropout .1; two passes in train mode agree to the bit."""
    policy = Policy(str(model_folder("gpt2"))).load()
    assert policy.model.training
    batch = batch_of(([5, 6], [7, 8, 9]))
    assert torch.equal(policy.score(batch).log_probs, policy.score(batch).log_probs)


def test_an_empty_response_scores_nothing_and_runs_backward(model_folder):
    policy = Policy(str(model_folder())).load()
    scores = policy.score(batch_of(([5, 6], [])))
    scores.log_probs.sum().backward()
    assert not scores.log_probs.any()
    assert all(bool(p.grad.isfinite().all()) for p in policy.parameters() if p.grad is not None)


def test_stop_ids_are_the_union_of_tokenizer_and_generation_config(model_folder, tmp_path):
    """B084: a second end token that only the generation config knows."""
    import shutil

    folder = tmp_path / "model"
    shutil.copytree(model_folder(), folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 40], "top_p": 0.5}))
    policy = Policy(str(folder)).load()
    assert policy.stop_ids == (1, 40)
    # A sampling default of the model must not reach training rollouts.
    assert policy.model.generation_config.top_p in (None, 1.0)


def test_lora_trains_adapters_only_and_the_reference_is_the_base(model_folder):
    torch.manual_seed(0)
    plain = Policy(str(model_folder())).load()
    policy = Policy(str(model_folder()), lora=LoRA(rank=4)).load()
    trainable = [name for name, p in policy.named_parameters() if p.requires_grad]
    assert trainable
    assert all("lora_" in name for name in trainable)
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if "lora_B" in name:
                parameter.normal_()
    batch = batch_of(([5, 6], [7, 8, 9]))
    reference = make_reference(policy, needed=True)
    torch.testing.assert_close(reference.log_probs(batch), plain.score(batch).log_probs, atol=1e-6, rtol=0)
    assert (policy.score(batch).log_probs - plain.score(batch).log_probs).abs().max() > 0.01
    assert not list(reference.parameters()), "with adapters the reference costs no memory"


def test_a_frozen_copy_is_the_reference_without_adapters(model_folder):
    policy = Policy(str(model_folder())).load()
    batch = batch_of(([5, 6], [7, 8, 9]))
    before = policy.score(batch).log_probs.detach()
    reference = make_reference(policy, needed=True)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(1.1)
    torch.testing.assert_close(reference.log_probs(batch), before, atol=1e-6, rtol=0)
    assert not any(p.requires_grad for p in reference.parameters())
    assert make_reference(policy, needed=False) is None


def break_nothing(folder):
    return folder / "missing"


def break_empty(folder):
    empty = folder.parent / "empty"
    empty.mkdir()
    return empty


def break_config(folder):
    (folder / "config.json").write_text("{")
    return folder


def break_weights(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    return folder


def break_part_of_the_weights(folder):
    from safetensors.torch import load_file, save_file

    path = folder / "model.safetensors"
    weights = load_file(path)
    weights.pop("model.layers.0.mlp.up_proj.weight")
    save_file(weights, path, metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (break_nothing, "there is no folder"),
        (break_empty, "is empty"),
        (break_config, "cannot load"),
        (break_weights, "cannot load"),
        (break_part_of_the_weights, "lack 1 weights"),
    ],
)
def test_an_unusable_folder_gets_one_message_that_names_the_key(model_folder, tmp_path, damage, message):
    import shutil

    folder = tmp_path / "model"
    shutil.copytree(model_folder(), folder)
    with pytest.raises(InputError, match=message) as caught:
        Policy(str(damage(folder))).load()
    assert "model.policy.path" in str(caught.value)


@pytest.mark.parametrize("path", ["package:no_such_package/model", "package:json/no_such_folder"])
def test_a_package_that_is_not_there_is_named(path):
    with pytest.raises(InputError, match=r"model\.policy\.path"):
        Policy(path).load()
