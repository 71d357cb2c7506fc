"""Entropy from logits."""

import math

import pytest
import torch

from bapo_lightning.objective import entropy_from_logits


def test_uniform_and_certain_distributions():
    assert entropy_from_logits(torch.zeros(3, 8)).tolist() == pytest.approx([math.log(8)] * 3)
    assert entropy_from_logits(torch.tensor([200.0, 0.0])).item() == 0.0


def test_by_hand():
    """p = (.75, .25): .5623 nats. At temperature 2 the odds are √3: p = .634, .6568 nats."""
    logits = torch.tensor([math.log(3.0), 0.0])
    assert entropy_from_logits(logits).item() == pytest.approx(0.5623, abs=5e-5)
    assert entropy_from_logits(logits, temperature=2.0).item() == pytest.approx(0.6568, abs=5e-5)


def test_forbidden_tokens_count_nothing_in_value_and_gradient():
    logits = torch.tensor([[math.log(3.0), 0.0, -math.inf]], requires_grad=True)
    entropy = entropy_from_logits(logits)
    entropy.sum().backward()
    allowed = torch.tensor([[math.log(3.0), 0.0]], requires_grad=True)
    entropy_from_logits(allowed).sum().backward()
    assert entropy.item() == pytest.approx(0.5623, abs=5e-5)
    assert logits.grad[0].tolist() == pytest.approx([*allowed.grad[0].tolist(), 0.0])


def test_gradient_agrees_with_finite_differences():
    logits = torch.tensor([[0.3, -1.0, 2.0]], dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(entropy_from_logits, logits)


def test_half_precision_is_raised():
    assert entropy_from_logits(torch.zeros(2, 4, dtype=torch.bfloat16)).dtype == torch.float32
