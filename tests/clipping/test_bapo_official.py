"""`BAPOClip.official` against results of the authors' published code."""

import json

import pytest
import torch

from bapo_lightning.clipping import BAPOClip


@pytest.fixture(scope="session")
def golden_cases(shared_dir):
    path = shared_dir / "goldens" / "official_bapo.json"
    if not path.is_file():
        pytest.skip(f"needs {path}")
    return json.loads(path.read_text(encoding="utf-8"))


def test_bounds_loss_and_gradient_equal_the_authors(golden_cases):
    assert golden_cases
    for case in golden_cases:
        config, expected = case["config"], case["expected"]
        strategy = BAPOClip.official(
            target=config["adv_ratio_target"],
            low_start=config["ratio_lower_start"],
            low_max=config["ratio_lower_max"],
            low_step=config["ratio_lower_step"],
            high_start=config["ratio_upper_start"],
            high_max=config["ratio_upper_max"],
            high_step=config["ratio_upper_step"],
            dual_clip=case["dual_clip"],
        )
        log_probs, rollout, advantages = (
            torch.tensor(case[name], dtype=torch.float64) for name in ("log_probs", "rollout_log_probs", "advantages")
        )
        mask = torch.tensor(case["mask"], dtype=torch.bool)
        log_probs.requires_grad_()
        bounds = strategy.bounds(log_probs - rollout, advantages, mask)
        objective = strategy.surrogate(log_probs - rollout, advantages, bounds).objective
        loss = -torch.where(mask, objective, 0.0).sum() / mask.sum()
        loss.backward()
        assert bounds.low == pytest.approx(expected["low"], abs=1e-12), case["seed"]
        assert bounds.high == pytest.approx(expected["high"], abs=1e-12), case["seed"]
        assert bounds.measure == pytest.approx(expected["pos_neg_ratio"], rel=1e-12), case["seed"]
        assert loss.item() == pytest.approx(expected["loss"], rel=1e-12), case["seed"]
        # The golden gradients are rounded to eight decimals.
        gradient = torch.tensor(expected["grad_log_probs"], dtype=torch.float64)
        torch.testing.assert_close(log_probs.grad, gradient, rtol=1e-4, atol=2e-8)


def test_defaults_are_those_of_their_yaml():
    """B080: target 1.0 as P/N, .6-.8 and 1.2-2.0 by .05, dual clip 3."""
    official = BAPOClip.official()
    assert (official.target, official.measure, official.weighting) == (1.0, "pos_neg", "none")
    assert (official.low_start, official.low_max, official.low_step) == (0.6, 0.8, 0.05)
    assert (official.high_start, official.high_max, official.high_step) == (1.2, 2.0, 0.05)
    assert (official.order, official.contribution, official.dual_clip) == ("low_first", "value", 3.0)


def test_steps_are_clamped_to_the_limit():
    strategy = BAPOClip.official(low_max=0.72, high_max=1.33)
    bounds = strategy.bounds(torch.zeros(1, 1), -torch.ones(1, 1), torch.ones(1, 1, dtype=torch.bool))
    assert (bounds.low, bounds.high, bounds.steps) == (0.72, 1.33, 6)


def test_equal_sides_just_miss_their_target_of_one():
    """Their P/(N + 1e-8) is below 1 for P = N, so their loop walks to the limits."""
    bounds = BAPOClip.official().bounds(
        torch.zeros(1, 2), torch.tensor([[1.0, -1.0]]), torch.ones(1, 2, dtype=torch.bool)
    )
    assert (bounds.low, bounds.high, bounds.saturated) == (0.8, 2.0, True)
