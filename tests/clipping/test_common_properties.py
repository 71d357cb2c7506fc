"""What holds for every clipping strategy."""

import pickle
from dataclasses import asdict, replace

import pytest
import torch
from clip_batches import Batch, batches, by_hand, random_batch
from hypothesis import given, settings

from bapo_lightning.clipping import ClipBounds, ClippingStrategy, Surrogate

FEW = settings(max_examples=40, deadline=None)


def run(strategy: ClippingStrategy, batch: Batch) -> tuple[ClipBounds, Surrogate, torch.Tensor]:
    """Bounds, surrogate, and the gradient of the sum over unmasked tokens."""
    bounds = strategy.bounds(*batch.inputs())
    log_ratio = batch.log_ratio.clone().requires_grad_()
    surrogate = strategy.surrogate(log_ratio, batch.advantages, bounds)
    torch.where(batch.mask, surrogate.objective, 0.0).sum().backward()
    return bounds, surrogate, log_ratio.grad


@FEW
@given(batch=batches(max_log_ratio=80.0))
def test_gradient_is_zero_exactly_where_a_token_is_reported_as_clipped(strategy, batch):
    _, surrogate, gradient = run(strategy, batch)
    counts = batch.mask & (batch.advantages != 0)
    assert torch.equal((gradient == 0)[counts], surrogate.clipped[counts])
    assert (gradient[~counts] == 0).all()


@FEW
@given(batch=batches(max_log_ratio=80.0))
def test_values_and_gradients_are_finite_at_far_ratios(strategy, batch):
    single = replace(batch, log_ratio=batch.log_ratio.float(), advantages=batch.advantages.float())
    bounds, surrogate, gradient = run(strategy, single)
    assert surrogate.objective.dtype == torch.float32
    assert surrogate.objective.isfinite().all()
    assert gradient.isfinite().all()
    assert 0.0 <= bounds.value_share <= 1.0
    assert 0.0 <= bounds.gradient_share <= 1.0


@FEW
@given(batch=batches())
def test_clip_masks_look_at_the_sign_of_the_advantage(strategy, batch):
    _, surrogate, _ = run(strategy, batch)
    assert (batch.advantages[surrogate.clipped_high] > 0).all()
    assert (batch.advantages[surrogate.clipped_low] < 0).all()
    assert (batch.advantages[surrogate.clipped_dual] < 0).all()
    assert not (surrogate.clipped_low & surrogate.clipped_dual).any()


@FEW
@given(batch=batches())
def test_unclipped_tokens_keep_the_gradient_ratio_times_advantage(strategy, batch):
    _, surrogate, gradient = run(strategy, batch)
    free = batch.mask & ~surrogate.clipped
    torch.testing.assert_close(gradient[free], (batch.log_ratio.exp() * batch.advantages)[free])


@FEW
@given(batch=batches())
def test_on_policy_nothing_is_clipped_and_the_gradient_is_the_advantage(strategy, batch):
    _, surrogate, gradient = run(strategy, replace(batch, log_ratio=torch.zeros_like(batch.log_ratio)))
    assert not surrogate.clipped.any()
    assert torch.equal(gradient, torch.where(batch.mask, batch.advantages, 0.0))


@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), -float("inf"), 1e30])
def test_what_stands_under_the_mask_never_matters(strategy, garbage):
    batch = random_batch(seed=1)
    dirty = Batch(
        *(torch.where(batch.mask, t, garbage) for t in (batch.log_ratio, batch.advantages)),
        batch.mask,
        torch.where(batch.mask, batch.rollout_log_probs, garbage),
    )
    bounds, surrogate, gradient = run(strategy, batch)
    dirty_bounds, dirty_surrogate, dirty_gradient = run(strategy, dirty)
    assert dirty_bounds == bounds
    assert torch.equal(dirty_surrogate.objective[batch.mask], surrogate.objective[batch.mask])
    assert torch.equal(dirty_gradient, gradient)


@FEW
@given(batch=batches())
def test_order_of_responses_does_not_matter(strategy, batch):
    turned = Batch(*(tensor.flip(0) for tensor in batch.inputs()))
    bounds, surrogate, gradient = run(strategy, batch)
    turned_bounds, turned_surrogate, turned_gradient = run(strategy, turned)
    assert (turned_bounds.low, turned_bounds.high) == (bounds.low, bounds.high)
    assert turned_bounds.measure == pytest.approx(bounds.measure, rel=1e-9)
    assert torch.equal(turned_surrogate.objective.flip(0), surrogate.objective)
    assert torch.equal(turned_gradient.flip(0), gradient)


@pytest.mark.parametrize("micro_batch_size", [1, 2, 3])
def test_micro_batches_repeat_the_choice_made_for_the_update(strategy, micro_batch_size):
    """B068: cut into 1 or several micro-batches, an update has the same bounds and the same gradient."""
    batch = random_batch(seed=3)
    bounds, whole, gradient = run(strategy, batch)
    for start in range(0, len(batch.mask), micro_batch_size):
        rows = slice(start, start + micro_batch_size)
        log_ratio = batch.log_ratio[rows].clone().requires_grad_()
        part = strategy.surrogate(log_ratio, batch.advantages[rows], bounds.rows(rows.start, rows.stop))
        torch.where(batch.mask[rows], part.objective, 0.0).sum().backward()
        assert torch.equal(part.clipped, whole.clipped[rows])
        assert torch.equal(log_ratio.grad, gradient[rows])


def test_bounds_are_plain_numbers(strategy):
    bounds = strategy.bounds(*random_batch(seed=4).inputs())
    floats = ("low", "high", "measure", "value_share", "gradient_share")
    assert {type(getattr(bounds, name)) for name in floats} == {float}
    assert {type(getattr(bounds, f"{name}_before")) for name in floats[3:]} == {float}
    assert type(bounds.steps) is int
    assert {type(bounds.saturated), type(bounds.reachable), type(bounds.empty)} == {bool}


def test_bounds_of_batch_and_of_its_padded_copy_are_equal(strategy):
    batch = random_batch(seed=5)
    padded = Batch(*(torch.nn.functional.pad(t, (0, 3, 0, 2)) for t in batch.inputs()))
    assert asdict(strategy.bounds(*padded.inputs())) == pytest.approx(
        asdict(strategy.bounds(*batch.inputs())), rel=1e-12
    )


def test_no_graph_is_kept_by_bounds_nor_advantages_changed(strategy):
    batch = random_batch(seed=6)
    before = batch.advantages.clone()
    strategy.bounds(batch.log_ratio.clone().requires_grad_(), *batch.inputs()[1:])
    assert torch.equal(batch.advantages, before)


def test_half_precision_log_ratios_are_raised_to_float32(strategy):
    batch = by_hand([1.0, 2.5, 0.3], [1.0, 1.0, -1.0])
    log_ratio = batch.log_ratio.bfloat16().requires_grad_()
    bounds = strategy.bounds(log_ratio, *batch.inputs()[1:])
    surrogate = strategy.surrogate(log_ratio, batch.advantages.bfloat16(), bounds)
    surrogate.objective.sum().backward()
    assert surrogate.objective.dtype == torch.float32
    assert log_ratio.grad.isfinite().all()


def test_strategy_can_be_pickled_and_rebuilt_from_its_repr(strategy):
    copy = pickle.loads(pickle.dumps(strategy))
    assert repr(copy) == repr(strategy)
    batch = random_batch(seed=7)
    assert copy.bounds(*batch.inputs()) == strategy.bounds(*batch.inputs())
