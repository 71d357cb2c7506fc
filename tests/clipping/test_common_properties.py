"""What holds for every clipping strategy."""

import pickle
from dataclasses import fields, replace

import pytest
import torch
from catalogue import CATALOGUE, Entry
from clip_batches import Batch, batches, by_hand, random_batch
from hypothesis import given, settings

from bapo_lightning.clipping import ClipBounds, ClippingStrategy, Surrogate

FEW = settings(max_examples=40, deadline=None)
REPORT = [item.name for item in fields(ClipBounds)]


def run(strategy: ClippingStrategy, batch: Batch) -> tuple[ClipBounds, Surrogate, torch.Tensor]:
    """Bounds, surrogate, and the gradient of the sum over unmasked tokens."""
    bounds = batch.bounds(strategy)
    log_ratio = batch.log_ratio.clone().requires_grad_()
    surrogate = strategy.surrogate(log_ratio, batch.advantages, bounds)
    torch.where(batch.mask, surrogate.objective, 0.0).sum().backward()
    return bounds, surrogate, log_ratio.grad


def only(condition) -> pytest.MarkDecorator:
    """Restrict a test to some strategies of the catalogue."""
    chosen = {name: entry for name, entry in CATALOGUE.items() if condition(entry)}
    return pytest.mark.parametrize("entry", chosen.values(), ids=chosen)


def suited(entry: Entry, batch: Batch) -> Batch:
    return batch.with_one_advantage_a_response() if entry.sequence_level else batch


def assert_same_report(actual: ClipBounds, expected: ClipBounds, mask=None, rel=0.0) -> None:
    for name in REPORT:
        a, b = getattr(actual, name), getattr(expected, name)
        if isinstance(b, torch.Tensor):
            a, b = (a[mask], b[mask]) if mask is not None and b.shape == mask.shape else (a, b)
            torch.testing.assert_close(a, b, rtol=rel, atol=0.0, equal_nan=True)
        else:
            assert a == pytest.approx(b, rel=rel, abs=0.0, nan_ok=True), name


@FEW
@given(batch=batches(max_log_ratio=80.0))
def test_gradient_is_zero_exactly_where_a_token_is_reported_as_clipped(entry, batch):
    batch = suited(entry, batch)
    _, surrogate, gradient = run(entry.strategy, batch)
    counts = batch.mask & (batch.advantages != 0) & (batch.advantages != entry.advantage_shift)
    assert torch.equal((gradient == 0)[counts], surrogate.clipped[counts])
    assert (gradient[~batch.mask] == 0).all()


@only(lambda entry: not entry.advantage_shift and not entry.penalty)
@FEW
@given(batch=batches(max_log_ratio=80.0))
def test_a_token_without_advantage_has_no_gradient(entry, batch):
    batch = suited(entry, batch)
    _, _, gradient = run(entry.strategy, batch)
    assert (gradient[batch.mask & (batch.advantages == 0)] == 0).all()


@FEW
@given(batch=batches(max_log_ratio=80.0))
def test_values_and_gradients_are_finite_at_far_ratios(entry, batch):
    single = replace(suited(entry, batch), log_ratio=batch.log_ratio.float())
    single = replace(single, advantages=single.advantages.float())
    bounds, surrogate, gradient = run(entry.strategy, single)
    assert surrogate.objective.dtype == torch.float32
    assert surrogate.objective.isfinite().all()
    assert gradient.isfinite().all()
    assert 0.0 <= bounds.value_share <= 1.0
    assert 0.0 <= bounds.gradient_share <= 1.0


@FEW
@given(batch=batches())
def test_clip_masks_look_at_the_sign_of_the_advantage(entry, batch):
    batch = suited(entry, batch)
    _, surrogate, _ = run(entry.strategy, batch)
    assert (batch.advantages[surrogate.clipped_high] > 0).all()
    assert (batch.advantages[surrogate.clipped_low] < 0).all()
    assert (batch.advantages[surrogate.clipped_dual] < 0).all()
    assert (batch.advantages[surrogate.dropped] != 0).all()
    reasons = torch.stack(
        [surrogate.clipped_low, surrogate.clipped_high, surrogate.clipped_dual, surrogate.dropped, surrogate.capped]
    )
    assert (reasons.sum(0) <= 1).all()


@only(lambda entry: entry.window)
@FEW
@given(batch=batches())
def test_unclipped_tokens_keep_the_gradient_ratio_times_advantage(entry, batch):
    _, surrogate, gradient = run(entry.strategy, batch)
    free = batch.mask & ~surrogate.clipped
    torch.testing.assert_close(gradient[free], (batch.log_ratio.exp() * batch.advantages)[free])


@FEW
@given(batch=batches())
def test_on_policy_nothing_is_clipped_and_the_gradient_is_the_advantage(entry, batch):
    batch = replace(suited(entry, batch), log_ratio=torch.zeros_like(batch.log_ratio))
    _, surrogate, gradient = run(entry.strategy, batch)
    assert not (surrogate.clipped_low | surrogate.clipped_high | surrogate.clipped_dual | surrogate.capped).any()
    assert entry.selects or not surrogate.dropped.any()
    weight = entry.damping * batch.rollout_log_probs.exp() + 1.0 - entry.damping
    expected = weight * (batch.advantages - entry.advantage_shift)
    expected = torch.where(batch.mask & ~surrogate.dropped, expected, 0.0)
    torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), -float("inf"), 1e30])
def test_what_stands_under_the_mask_never_matters(entry, garbage):
    batch = suited(entry, random_batch(seed=1))
    dirty = Batch(
        *(torch.where(batch.mask, t, garbage) for t in (batch.log_ratio, batch.advantages)),
        batch.mask,
        torch.where(batch.mask, batch.rollout_log_probs, garbage),
    )
    bounds, surrogate, gradient = run(entry.strategy, batch)
    dirty_bounds, dirty_surrogate, dirty_gradient = run(entry.strategy, dirty)
    assert_same_report(dirty_bounds, bounds, batch.mask)
    assert torch.equal(dirty_surrogate.objective[batch.mask], surrogate.objective[batch.mask])
    assert torch.equal(dirty_surrogate.clipped[batch.mask], surrogate.clipped[batch.mask])
    assert torch.equal(dirty_gradient, gradient)


@FEW
@given(batch=batches())
def test_order_of_responses_does_not_matter(entry, batch):
    batch = suited(entry, batch)
    turned = Batch(*(tensor.flip(0) for tensor in batch.inputs()))
    bounds, surrogate, gradient = run(entry.strategy, batch)
    turned_bounds, turned_surrogate, turned_gradient = run(entry.strategy, turned)
    for name in ("low", "high"):
        bound, turned_bound = getattr(bounds, name), getattr(turned_bounds, name)
        assert torch.equal(turned_bound.flip(0), bound) if isinstance(bound, torch.Tensor) else turned_bound == bound
    assert turned_bounds.measure == pytest.approx(bounds.measure, rel=1e-9)
    assert torch.equal(turned_surrogate.objective.flip(0), surrogate.objective)
    assert torch.equal(turned_surrogate.clipped.flip(0), surrogate.clipped)
    assert torch.equal(turned_gradient.flip(0), gradient)


@pytest.mark.parametrize("micro_batch_size", [1, 2, 3])
def test_micro_batches_repeat_the_choice_made_for_the_update(entry, micro_batch_size):
    """B068: cut into 1 or several micro-batches, an update has the same bounds and the same gradient."""
    batch = suited(entry, random_batch(seed=3))
    bounds, whole, gradient = run(entry.strategy, batch)
    for start in range(0, len(batch.mask), micro_batch_size):
        rows = slice(start, start + micro_batch_size)
        log_ratio = batch.log_ratio[rows].clone().requires_grad_()
        part = entry.strategy.surrogate(log_ratio, batch.advantages[rows], bounds.rows(rows.start, rows.stop))
        torch.where(batch.mask[rows], part.objective, 0.0).sum().backward()
        assert torch.equal(part.clipped, whole.clipped[rows])
        assert torch.equal(part.capped, whole.capped[rows])
        torch.testing.assert_close(log_ratio.grad, gradient[rows], rtol=1e-12, atol=0.0)


def test_a_narrow_micro_batch_gets_narrow_bounds(entry):
    """Micro-batches are cut to their longest response; what stands beyond was masked."""
    batch = suited(entry, random_batch(seed=8))
    bounds, whole, _ = run(entry.strategy, batch)
    row = int(batch.mask.sum(1).argmin())
    width = int(batch.mask[row].sum())
    assert width < batch.mask.shape[1]
    part = entry.strategy.surrogate(
        batch.log_ratio[row : row + 1, :width],
        batch.advantages[row : row + 1, :width],
        bounds.rows(row, row + 1, width),
    )
    torch.testing.assert_close(part.objective, whole.objective[row : row + 1, :width], rtol=1e-12, atol=0.0)


@only(lambda entry: not entry.strategy.needs_statistics)
def test_strategies_without_statistics_choose_before_any_forward_pass(entry):
    """They are called with log-ratios of zero first, and the surrogate must not notice."""
    batch = suited(entry, random_batch(seed=9))
    blind = replace(batch, log_ratio=torch.zeros_like(batch.log_ratio))
    if entry.strategy.needs_proximal:
        blind = _with_proximal(blind, batch.proximal_log_probs)
    early, late = blind.bounds(entry.strategy), batch.bounds(entry.strategy)
    results = [entry.strategy.surrogate(batch.log_ratio, batch.advantages, bounds) for bounds in (early, late)]
    assert torch.equal(results[0].objective[batch.mask], results[1].objective[batch.mask])
    assert torch.equal(results[0].clipped[batch.mask], results[1].clipped[batch.mask])


def _with_proximal(batch: Batch, proximal: torch.Tensor) -> Batch:
    class Given(Batch):
        proximal_log_probs = proximal

    return Given(*batch.inputs())


def test_bounds_report_plain_numbers(entry):
    bounds = suited(entry, random_batch(seed=4)).bounds(entry.strategy)
    shape = (6, 8)
    for bound in (bounds.low, bounds.high):
        assert type(bound) is float or tuple(bound.shape) == shape
    floats = ("measure", "value_share", "gradient_share", "value_share_before", "gradient_share_before")
    assert {type(getattr(bounds, name)) for name in floats} == {float}
    assert type(bounds.steps) is int
    assert {type(bounds.saturated), type(bounds.reachable), type(bounds.empty)} == {bool}


def test_the_gradient_share_is_that_of_the_gradients(entry):
    """Against the definition: Σ|gradient| of positive tokens over that of all, weighted by π_rollout."""
    batch = suited(entry, random_batch(seed=10))
    bounds, _, gradient = run(entry.strategy, batch)
    weighted = entry.strategy.weighting != "none" if isinstance(vars(entry.strategy).get("weighting"), str) else True
    size = gradient.abs() * (batch.rollout_log_probs.exp() if weighted else 1.0)
    positive, negative = (size[batch.mask & side].sum() for side in (batch.advantages > 0, batch.advantages < 0))
    assert bounds.gradient_share == pytest.approx((positive / (positive + negative)).item(), rel=1e-9)


def test_bounds_of_batch_and_of_its_padded_copy_are_equal(entry):
    batch = suited(entry, random_batch(seed=5))
    padded = Batch(*(torch.nn.functional.pad(t, (0, 3, 0, 2)) for t in batch.inputs()))
    cut = padded.bounds(entry.strategy).rows(0, 6, 8)
    assert_same_report(cut, batch.bounds(entry.strategy), batch.mask, rel=1e-12)


def test_no_graph_is_kept_by_bounds_nor_advantages_changed(entry):
    batch = random_batch(seed=6)
    before = batch.advantages.clone()
    differentiable = replace(batch, log_ratio=batch.log_ratio.clone().requires_grad_())
    bounds = differentiable.bounds(entry.strategy)
    tensors = [value for value in vars(bounds).values() if isinstance(value, torch.Tensor)]
    assert not any(tensor.requires_grad for tensor in tensors)
    assert torch.equal(batch.advantages, before)


def test_bounds_work_without_gradient_mode(entry):
    batch = suited(entry, random_batch(seed=6))
    with torch.no_grad():
        silent = batch.bounds(entry.strategy)
    assert_same_report(silent, batch.bounds(entry.strategy))


def test_half_precision_log_ratios_are_raised_to_float32(entry):
    batch = by_hand([1.0, 2.5, 0.3], [1.0, 1.0, 1.0], [0.5, 0.25, 0.125])
    half = Batch(batch.log_ratio.bfloat16(), batch.advantages.bfloat16(), batch.mask, batch.rollout_log_probs.float())
    bounds = half.bounds(entry.strategy)
    log_ratio = half.log_ratio.requires_grad_()
    surrogate = entry.strategy.surrogate(log_ratio, half.advantages, bounds)
    surrogate.objective.sum().backward()
    assert surrogate.objective.dtype == torch.float32
    assert log_ratio.grad.isfinite().all()


def test_strategy_can_be_pickled_and_rebuilt_from_its_repr(entry):
    copy = pickle.loads(pickle.dumps(entry.strategy))
    assert repr(copy) == repr(entry.strategy)
    batch = suited(entry, random_batch(seed=7))
    assert_same_report(batch.bounds(copy), batch.bounds(entry.strategy))
