"""The clipped objective, by hand."""

import math

import pytest
import torch
from clip_batches import by_hand

from bapo_lightning.clipping import FixedClip, Surrogate, clipped_surrogate

F64 = torch.float64


def test_clip_fractions_and_losses_by_sign():
    """B052: r = [1.5, 1.5, .5, .5, 1], A = [1, -1, 1, -1, 1], window [.8, 1.2]."""
    batch = by_hand([1.5, 1.5, 0.5, 0.5, 1.0], [1.0, -1.0, 1.0, -1.0, 1.0])
    surrogate = FixedClip(0.8, 1.2).surrogate(
        batch.log_ratio, batch.advantages, FixedClip(0.8, 1.2).bounds(*batch.inputs())
    )
    assert surrogate.clipped_high.tolist() == [[True, False, False, False, False]]
    assert surrogate.clipped_low.tolist() == [[False, False, False, True, False]]
    assert surrogate.clipped.double().mean().item() == pytest.approx(0.4)
    assert (-surrogate.objective[0]).tolist() == pytest.approx([-1.2, 1.5, -0.5, 0.8, -1.0])
    assert -surrogate.objective.mean().item() == pytest.approx(-0.08)


def test_bounds_are_ratios_and_not_epsilons():
    """B069: bounds (.6, 1.2) give 1.2 for A = 1, r = 1.5 and -.6 for A = -1, r = .3."""
    batch = by_hand([1.5, 0.3], [1.0, -1.0])
    surrogate = clipped_surrogate(batch.log_ratio, batch.advantages, 0.6, 1.2)
    assert surrogate.objective[0].tolist() == pytest.approx([1.2, -0.6])


def test_equals_the_formula_as_printed():
    ratio = torch.linspace(0.051, 4.0, 80, dtype=F64).repeat(2, 1)
    advantages = torch.tensor([[0.7], [-1.3]], dtype=F64).expand_as(ratio)
    printed = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.28) * advantages)
    torch.testing.assert_close(clipped_surrogate(ratio.log(), advantages, 0.8, 1.28).objective, printed)
    printed = torch.where(advantages < 0, torch.maximum(printed, 3.0 * advantages), printed)
    dual = clipped_surrogate(ratio.log(), advantages, 0.8, 1.28, dual_clip=3.0)
    torch.testing.assert_close(dual.objective, printed)
    assert torch.equal(dual.clipped_dual, (advantages < 0) & (ratio > 3.0))


def test_dual_clip_silences_negative_tokens_with_a_far_ratio_only():
    log_ratio = torch.tensor([4.0, 2.0, 4.0], dtype=F64).log().requires_grad_()
    advantages = torch.tensor([-1.0, -1.0, 1.0], dtype=F64)
    surrogate = clipped_surrogate(log_ratio, advantages, 0.8, 5.0, dual_clip=3.0)
    surrogate.objective.sum().backward()
    assert surrogate.clipped_dual.tolist() == [True, False, False]
    assert surrogate.objective.tolist() == pytest.approx([-3.0, -2.0, 4.0])
    assert log_ratio.grad.tolist() == pytest.approx([0.0, -2.0, 4.0])


def test_a_ratio_on_the_bound_is_not_clipped():
    log_ratio = torch.zeros(2, dtype=F64, requires_grad=True)
    surrogate = clipped_surrogate(log_ratio, torch.tensor([1.0, -1.0], dtype=F64), 1.0, 1.0)
    surrogate.objective.sum().backward()
    assert not surrogate.clipped.any()
    assert log_ratio.grad.tolist() == [1.0, -1.0]


def test_far_negative_token_keeps_a_large_finite_gradient():
    """A clamp of the log-ratio would report this token as unclipped and yet drop its gradient."""
    log_ratio = torch.tensor([80.0, 1000.0, math.inf], requires_grad=True)
    surrogate = clipped_surrogate(log_ratio, torch.full((3,), -2.0), 0.8, 1.2)
    surrogate.objective.sum().backward()
    assert not surrogate.clipped.any()
    assert log_ratio.grad.tolist() == pytest.approx([-2.0 * math.exp(20.0)] * 3, rel=1e-6)


def test_gradient_agrees_with_finite_differences():
    advantages = torch.tensor([0.7, -1.3, 0.7, -1.3], dtype=F64)
    log_ratio = torch.tensor([0.1, -0.1, 0.5, -0.5], dtype=F64, requires_grad=True)
    torch.autograd.gradcheck(lambda x: clipped_surrogate(x, advantages, 0.8, 1.2).objective, log_ratio)


def test_nan_under_an_unmasked_token_is_not_hidden():
    log_ratio = torch.tensor([math.nan, 0.0], requires_grad=True)
    objective = clipped_surrogate(log_ratio, torch.ones(2), 0.8, 1.2).objective
    objective.sum().backward()
    assert objective.isnan().tolist() == [True, False]
    assert log_ratio.grad.isnan().tolist() == [True, False]


def test_bounds_may_differ_from_token_to_token():
    low, high = torch.tensor([[0.5, 0.9]]), torch.tensor([[1.1, 2.0]])
    batch = by_hand([1.5, 1.5], [1.0, 1.0])
    surrogate = clipped_surrogate(batch.log_ratio, batch.advantages, low, high)
    assert surrogate.clipped_high.tolist() == [[True, False]]
    assert surrogate.objective[0].tolist() == pytest.approx([1.1, 1.5])


def test_record_without_dual_clip_reads_as_nothing_dual_clipped():
    low, high = torch.tensor([True, False]), torch.tensor([False, False])
    surrogate = Surrogate(torch.zeros(2), clipped_low=low, clipped_high=high)
    assert surrogate.clipped_dual.tolist() == [False, False]
    assert surrogate.clipped.tolist() == [True, False]
