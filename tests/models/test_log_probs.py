"""Chunked log-probs and entropies against dense float64."""

import pytest
import torch
import torch.nn.functional as F

from bapo_lightning.models.log_probs import scores_from_logits, token_log_probs


def dense(hidden, weight, targets, temperature, bias=None):
    """Log-probs and entropies the plain way, in float64."""
    logits = (hidden.double() @ weight.double().T + (0 if bias is None else bias.double())) / temperature
    log_softmax = F.log_softmax(logits, -1)
    return log_softmax.gather(-1, targets[:, None])[:, 0], -(log_softmax.exp() * log_softmax).sum(-1)


@pytest.mark.parametrize("chunk_size", [1, 3, 7, 64])
@pytest.mark.parametrize("with_bias", [False, True])
def test_chunked_equals_dense_in_values_and_gradients(chunk_size, with_bias):
    torch.manual_seed(0)
    hidden = torch.randn(7, 5, requires_grad=True)
    weight = torch.randn(11, 5, requires_grad=True)
    bias = torch.randn(11, requires_grad=True) if with_bias else None
    targets = torch.randint(11, (7,))
    inputs = [hidden, weight] + ([bias] if with_bias else [])
    mix = torch.randn(2, 7)

    log_probs, entropy = token_log_probs(hidden, weight, targets, temperature=0.6, chunk_size=chunk_size, bias=bias)
    gradients = torch.autograd.grad((mix[0] * log_probs + mix[1] * entropy).sum(), inputs)
    expected_log_probs, expected_entropy = dense(hidden, weight, targets, 0.6, bias)
    expected = torch.autograd.grad((mix[0] * expected_log_probs + mix[1] * expected_entropy).sum(), inputs)

    assert log_probs.dtype == entropy.dtype == torch.float32
    torch.testing.assert_close(log_probs.double(), expected_log_probs, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(entropy.double(), expected_entropy, atol=1e-6, rtol=1e-6)
    for mine, theirs in zip(gradients, expected, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=1e-5)


def test_temperature_is_part_of_the_score():
    """B048: logits [2, 1, 0] at temperature .6 give token 0 a log-prob of -.20257."""
    hidden, weight = torch.eye(3)[:1], torch.tensor([[2.0, 0, 0], [1, 0, 0], [0, 0, 0]])
    log_probs, _ = token_log_probs(hidden, weight, torch.tensor([0]), temperature=0.6)
    assert log_probs.item() == pytest.approx(-0.20257, abs=1e-5)


def test_bf16_inputs_are_scored_in_float32():
    """B046: a log-softmax of float32, whatever the weights are held in."""
    torch.manual_seed(0)
    hidden, weight = torch.randn(4, 8).bfloat16(), torch.randn(100, 8).bfloat16()
    targets = torch.tensor([1, 2, 3, 4])
    log_probs, _ = token_log_probs(hidden, weight, targets)
    assert log_probs.dtype == torch.float32
    torch.testing.assert_close(log_probs.double(), dense(hidden, weight, targets, 1.0)[0], atol=1e-6, rtol=1e-6)


def test_autocast_does_not_reach_the_log_softmax():
    torch.manual_seed(0)
    hidden, weight, targets = torch.randn(4, 8), torch.randn(100, 8), torch.tensor([1, 2, 3, 4])
    outside = token_log_probs(hidden, weight, targets)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = token_log_probs(hidden, weight, targets)[0]
    assert torch.equal(inside, outside)


def test_no_tokens_give_empty_scores_that_still_run_backward():
    hidden, weight = torch.randn(0, 4, requires_grad=True), torch.randn(6, 4, requires_grad=True)
    log_probs, entropy = token_log_probs(hidden, weight, torch.zeros(0, dtype=torch.int64))
    (log_probs.sum() + entropy.sum()).backward()
    assert log_probs.shape == entropy.shape == (0,)
    assert torch.equal(weight.grad, torch.zeros_like(weight))


def test_entropy_is_finite_where_tokens_are_impossible():
    logits = torch.tensor([[0.0, 0.0, float("-inf")]], requires_grad=True)
    log_probs, entropy = scores_from_logits(logits, torch.tensor([0]), 1.0)
    entropy.sum().backward()
    assert log_probs.item() == pytest.approx(-0.693147, abs=1e-6)
    assert entropy.item() == pytest.approx(0.693147, abs=1e-6)
    assert bool(logits.grad[0, :2].isfinite().all())


@pytest.mark.parametrize(("name", "value"), [("temperature", 0.0), ("chunk_size", 0)])
def test_impossible_settings_are_refused(name, value):
    with pytest.raises(ValueError, match=name):
        token_log_probs(torch.randn(2, 3), torch.randn(4, 3), torch.tensor([0, 1]), **{name: value})
