"""KL penalties."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bapo_lightning.errors import InputError
from bapo_lightning.objective import aggregate, kl_penalty


def penalty_and_gradient(difference: float, estimator: str) -> tuple[float, float]:
    """At log π_ref − log π_θ = difference, in float32."""
    log_probs = torch.zeros(1, 1, requires_grad=True)
    penalty = kl_penalty(log_probs, torch.full((1, 1), difference), estimator)
    penalty.sum().backward()
    return penalty.item(), log_probs.grad.item()


@pytest.mark.parametrize(
    ("difference", "value", "gradient"),
    [(-100.0, 99.0, 1.0), (0.5, 0.14872, -0.64872), (-0.5, 0.10653, 0.39347), (0.0, 0.0, 0.0)],
)
def test_k3_by_hand(difference, value, gradient):
    """B061: exp(d) - d - 1, gradient 1 - exp(d)."""
    assert penalty_and_gradient(difference, "k3") == pytest.approx((value, gradient), abs=5e-6)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
@pytest.mark.parametrize("difference", [100.0, -100.0])
def test_finite_far_from_the_reference(estimator, difference):
    """B061: value and gradient finite at +100 and -100."""
    value, gradient = penalty_and_gradient(difference, estimator)
    assert math.isfinite(value)
    assert math.isfinite(gradient)


def test_k3_still_pulls_towards_the_reference_where_the_exponential_is_cut():
    """Clamped alone, the exponential would leave a gradient of +1, away from the reference."""
    near, far = penalty_and_gradient(19.0, "k3"), penalty_and_gradient(100.0, "k3")
    assert far[0] > near[0] > 0
    assert far[1] == pytest.approx(1 - math.exp(20), rel=1e-6)


def test_k1_and_k2_by_hand():
    """d = .5: -d, d squared over 2; gradients 1 and -d."""
    assert penalty_and_gradient(0.5, "k1") == (-0.5, 1.0)
    assert penalty_and_gradient(0.5, "k2") == (0.125, -0.5)


def test_k1_is_the_default():
    assert kl_penalty(torch.zeros(1, 1), torch.ones(1, 1)).item() == -1.0


@settings(max_examples=100, deadline=None)
@given(difference=st.floats(-80, 80))
def test_k3_agrees_with_its_formula_and_is_never_negative(difference):
    log_probs = torch.zeros(1, 1, dtype=torch.float64, requires_grad=True)
    penalty = kl_penalty(log_probs, torch.full((1, 1), difference, dtype=torch.float64), "k3")
    penalty.sum().backward()
    assert penalty.item() >= -1e-12
    if difference <= 20:
        assert penalty.item() == pytest.approx(math.expm1(difference) - difference, rel=1e-12, abs=1e-12)
        assert log_probs.grad.item() == pytest.approx(-math.expm1(difference), rel=1e-12, abs=1e-15)


def test_small_differences_keep_their_digits_in_float32():
    """exp(d) - 1 - d at d = 1e-3 is 5.0017e-7; taken naively in float32 it is off by several per cent."""
    assert penalty_and_gradient(1e-3, "k3")[0] == pytest.approx(5.0017e-7, rel=1e-3)


def test_means_estimate_the_divergence():
    """KL of (.5, .5) from (.9, .1) is .5108: k1 and k3 are exact in expectation."""
    policy, reference = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.9, 0.1]]).log()
    for estimator in ("k1", "k3"):
        assert kl_penalty(policy, reference, estimator).mean().item() == pytest.approx(0.5108, abs=1e-4)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_masked_positions_reach_neither_value_nor_gradient(estimator):
    log_probs = torch.tensor([[-1.0, math.nan, -math.inf]], requires_grad=True)
    reference = torch.tensor([[-1.5, math.inf, math.nan]])
    mask = torch.tensor([[True, False, False]])
    penalty = kl_penalty(log_probs, reference, estimator, mask=mask)
    aggregate(penalty, mask).backward()
    assert penalty[0, 1:].tolist() == [0.0, 0.0]
    assert log_probs.grad.isfinite().all()
    assert log_probs.grad[0, 1:].tolist() == [0.0, 0.0]
    assert log_probs.grad[0, 0] != 0


def test_reference_gets_no_gradient_and_half_precision_is_raised():
    reference = torch.zeros(1, 1, dtype=torch.bfloat16, requires_grad=True)
    log_probs = torch.ones(1, 1, dtype=torch.bfloat16, requires_grad=True)
    penalty = kl_penalty(log_probs, reference, "k2")
    penalty.sum().backward()
    assert penalty.dtype == torch.float32
    assert reference.grad is None


def test_unknown_estimator_is_refused():
    with pytest.raises(InputError, match="estimator must be one of k1, k2, k3, got 'k4'"):
        kl_penalty(torch.zeros(1, 1), torch.zeros(1, 1), "k4")
