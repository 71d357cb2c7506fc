"""How responses are laid out for the model: padding and neighbours change no score and no gradient."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_policy import batch_of

from bapo_lightning.models import LoRA, Policy
from bapo_lightning.models.sequences import in_one_row, in_packed_rows, in_rows, keeps_sequences_apart

ROWS = (([5, 6], [7, 8, 9]), ([9], [3]), ([4, 5, 6, 7, 8], [9, 9]), ([7], []), ([3, 4], [5, 6, 7, 8, 9, 3]))


def test_rows_by_hand():
    laid = in_rows(batch_of(([5, 6], [7, 8]), ([9], [3])))
    assert laid.inputs["input_ids"][0].tolist() == [5, 6, 7, 8]
    assert laid.inputs["input_ids"][1, :2].tolist() == [9, 3]
    # 7 is drawn from the state at 6, 8 from the one at 7; 3 from the one at 9.
    assert list(zip(laid.rows.tolist(), laid.positions.tolist(), strict=True)) == [(0, 1), (0, 2), (1, 0)]


def test_packed_rows_by_hand():
    laid = in_packed_rows(batch_of(([9], [3]), ([5, 6], [7, 8, 3]), ([4], []), ([4, 5], [6])))
    # Lengths 2, 5, 1, 3: rows of 5 need three, with 4 of 15 empty; rows of 6 need two, with 1 of 12 empty.
    assert laid.inputs["input_ids"].tolist() == [[5, 6, 7, 8, 3, 4], [4, 5, 6, 9, 3, 0]]
    assert laid.inputs["position_ids"].tolist() == [[0, 1, 2, 3, 4, 0], [0, 1, 2, 0, 1, 0]]
    states = list(zip(laid.rows.tolist(), laid.positions.tolist(), strict=True))
    assert states == [(1, 3), (0, 1), (0, 2), (0, 3), (1, 1)]


def test_one_row_by_hand():
    laid = in_one_row(batch_of(([5, 6], [7, 8]), ([9], [3]), ([4], [])))
    assert laid.inputs["input_ids"].tolist() == [[5, 6, 7, 8, 9, 3, 4]]
    assert laid.inputs["position_ids"].tolist() == [[0, 1, 2, 3, 0, 1, 0]]
    assert laid.rows.tolist() == [0, 0, 0]
    assert laid.positions.tolist() == [1, 2, 4]


@given(
    st.lists(
        st.tuples(st.lists(st.integers(3, 60), min_size=1, max_size=4), st.lists(st.integers(3, 60), max_size=5)),
        min_size=1,
        max_size=5,
    )
)
def test_every_sampled_token_follows_its_state(rows):
    """In both layouts the id after the state of a token is that token, and the states lie in the right sequence."""
    batch = batch_of(*rows)
    for laid in (in_rows(batch), in_packed_rows(batch), in_one_row(batch)):
        ids = laid.inputs["input_ids"]
        following = ids[laid.rows, laid.positions + 1]
        assert following.tolist() == [i for _, response in rows for i in response]
    assert in_one_row(batch).inputs["input_ids"].numel() == sum(len(p) + len(r) for p, r in rows)
    one_each = in_rows(batch).inputs["input_ids"]
    assert one_each.shape == (len(rows), max(len(p) + len(r) for p, r in rows))
    assert in_packed_rows(batch).inputs["input_ids"].numel() <= one_each.numel()


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("kind", ["qwen2", "llama", "gpt2"])
def test_layouts_agree_in_values_and_gradients(model_folder, kind, attention):
    """Against each response alone, without any neighbour or padding."""
    alone = Policy(str(model_folder(kind)), attn_implementation=attention).load()
    weights = torch.linspace(-1, 1, 12)
    start = 0
    expected = []
    for row in ROWS:
        scores = alone.score(batch_of(row))
        count = len(row[1])
        expected.append((scores.log_probs[0, :count].detach(), scores.entropy[0, :count].detach()))
        total = scores.log_probs[0, :count] + 0.3 * scores.entropy[0, :count]
        (total * weights[start : start + count]).sum().backward()
        start += count
    for lay_out in (in_rows, in_packed_rows, in_one_row):
        policy = Policy(str(model_folder(kind)), attn_implementation=attention).load()
        policy._lay_out = lay_out
        batch = batch_of(*ROWS)
        scores = policy.score(batch)
        for i, (log_probs, entropy) in enumerate(expected):
            torch.testing.assert_close(scores.log_probs[i, : len(log_probs)], log_probs, atol=2e-6, rtol=1e-6)
            torch.testing.assert_close(scores.entropy[i, : len(log_probs)], entropy, atol=2e-6, rtol=1e-6)
        mask = batch.response_mask
        ((scores.log_probs + 0.3 * scores.entropy)[mask] * weights).sum().backward()
        for (name, parameter), other in zip(policy.named_parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(
                parameter.grad, other.grad, atol=2e-5, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}"
            )


@pytest.mark.parametrize("packing", [False, True])
def test_no_responses_run_forward_and_backward(model_folder, packing):
    policy = Policy(str(model_folder()), packing=packing, lora=LoRA(rank=2)).load()
    batch = batch_of(*ROWS)
    for nothing in (batch.rows(0, 0), batch.rows(3, 4)):
        scores = policy.score(nothing)
        assert not scores.log_probs.any()
        scores.log_probs.sum().backward()


def test_rows_are_shared_where_the_model_keeps_sequences_apart(model_folder, caplog):
    caplog.set_level("INFO")
    assert Policy(str(model_folder())).load().packs
    assert not Policy(str(model_folder()), packing=False).load().packs
    policy = Policy(str(model_folder())).load()
    blind = policy.model.base_model.forward

    def without_positions(position_ids=None, **inputs):
        return blind(**inputs)

    policy.model.base_model.forward = without_positions
    assert not policy.packs
    assert "lets those of a row see each other" in caplog.text
    assert policy._lay_out(batch_of(*ROWS)).inputs.keys() == {"input_ids"}


def test_all_in_one_row_goes_by_the_attention_kernel(model_folder):
    policy = Policy(str(model_folder())).load()
    assert not policy.reads_one_row
    assert keeps_sequences_apart(policy.model)
    policy.__dict__["packs"] = True
    policy.model.config._attn_implementation = "flash_attention_2"
    assert policy.reads_one_row
