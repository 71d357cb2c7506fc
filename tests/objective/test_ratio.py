"""Log-ratios and the effective sample size."""

import math

import pytest
import torch

from bapo_lightning.objective import effective_sample_size, log_ratio


def test_ratio_to_the_behaviour_log_probs():
    """B115: behaviour [-1, -1], current [-1.2, -.8]: ratios .8187 and 1.2214."""
    ratio = log_ratio(torch.tensor([[-1.2, -0.8]]), torch.tensor([[-1.0, -1.0]])).exp()
    assert ratio[0].tolist() == pytest.approx([0.8187, 1.2214], abs=5e-5)


def test_gradient_goes_to_the_policy_only_and_nothing_comes_from_under_the_mask():
    log_probs = torch.tensor([[-1.0, math.nan, -math.inf]], requires_grad=True)
    rollout = torch.tensor([[-2.0, -math.inf, math.nan]], requires_grad=True)
    result = log_ratio(log_probs, rollout, torch.tensor([[1, 0, 0]]))
    result.sum().backward()
    assert result.tolist() == [[1.0, 0.0, 0.0]]
    assert log_probs.grad.tolist() == [[1.0, 0.0, 0.0]]
    assert rollout.grad is None


def test_far_ratios_are_not_clamped():
    assert log_ratio(torch.tensor([[-80.0, -1.0]]), torch.tensor([[-1.0, -80.0]])).tolist() == [[-79.0, 79.0]]


@pytest.mark.parametrize(
    ("policy", "rollout", "expected"),
    [
        (torch.bfloat16, torch.float32, torch.float32),
        (torch.float32, torch.float32, torch.float32),
        (torch.float32, torch.float64, torch.float32),
        (torch.float64, torch.float64, torch.float64),
    ],
)
def test_result_is_float32_or_wider(policy, rollout, expected):
    assert log_ratio(torch.zeros(1, 1, dtype=policy), torch.zeros(1, 1, dtype=rollout)).dtype == expected


def test_effective_sample_size_by_hand():
    """r = [1, 3]: 16 / (2·10) = .8; equal ratios 1; one that dominates 1/n."""
    everything = torch.ones(1, 2, dtype=torch.bool)
    assert effective_sample_size(torch.tensor([[1.0, 3.0]]).log(), everything).item() == pytest.approx(0.8)
    assert effective_sample_size(torch.full((1, 2), 0.7), everything).item() == pytest.approx(1.0)
    assert effective_sample_size(torch.tensor([[80.0, -80.0]]), everything).item() == pytest.approx(0.5)


def test_effective_sample_size_ignores_the_mask_and_is_zero_for_nothing():
    logs = torch.tensor([[0.0, math.nan, math.log(3.0)]])
    assert effective_sample_size(logs, torch.tensor([[1, 0, 1]])).item() == pytest.approx(0.8)
    assert effective_sample_size(logs, torch.zeros(1, 3)).item() == 0.0
    assert effective_sample_size(torch.zeros(0, 3), torch.zeros(0, 3)).item() == 0.0
