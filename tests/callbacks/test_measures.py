"""Sums and counts of an update, worked out by hand."""

import math

import pytest
import torch

from bapo_lightning.callbacks.age import AGE_BINS, age_sums, effective_sizes
from bapo_lightning.callbacks.measures import percentiles, update_sums, update_values
from bapo_lightning.clipping import ClipBounds, FixedClip
from bapo_lightning.types import TokenBatch
from bapo_lightning.update import UpdateRecord


def record(ratios, advantages, mask, *, entropy=None, versions=None, version=5, bounds=None):
    """An update of rows of tokens; what stands under the mask must not matter, so it is NaN."""
    mask = torch.tensor(mask, dtype=torch.bool)
    log_ratio = torch.tensor(ratios).log().masked_fill(~mask, float("nan"))
    advantages = torch.tensor(advantages)
    rollout = torch.full(mask.shape, -1.0)
    strategy = FixedClip()
    bounds = bounds or strategy.bounds(log_ratio, advantages, mask)
    surrogate = strategy.surrogate(log_ratio, advantages, bounds)
    batch = TokenBatch(
        prompt_ids=torch.zeros(mask.shape[0], 1, dtype=torch.int64),
        prompt_mask=torch.ones(mask.shape[0], 1, dtype=torch.bool),
        response_ids=torch.zeros(mask.shape, dtype=torch.int64),
        response_mask=mask,
        loss_mask=mask,
        rollout_log_probs=rollout,
        policy_versions=torch.zeros(mask.shape, dtype=torch.int64) if versions is None else torch.tensor(versions),
        advantages=advantages,
        rewards=torch.zeros(mask.shape[0]),
        temperature=1.0,
        length_limit=8,
    )
    return UpdateRecord(
        batch=batch,
        bounds=bounds,
        log_probs=rollout + log_ratio,
        entropy=torch.zeros(mask.shape) if entropy is None else torch.tensor(entropy),
        clipped_low=surrogate.clipped_low,
        clipped_high=surrogate.clipped_high,
        clipped_dual=surrogate.clipped_dual,
        dropped=surrogate.dropped,
        capped=surrogate.capped,
        reference_log_probs=None,
        loss=0.25,
        grad_norm=1.5,
        learning_rate=1e-3,
        version=version,
        skipped=False,
    )


def means(update):
    return {tag: float(s.total) / float(s.count) for tag, s in update_sums(update).items() if float(s.count)}


def test_clip_fractions_look_at_the_sign_of_the_advantage():
    """B052: clipped high 1 of 5, clipped low 1 of 5."""
    found = means(record([[1.5, 1.5, 0.5, 0.5, 1.0]], [[1.0, -1.0, 1.0, -1.0, 1.0]], [[1] * 5]))
    assert found["clip/fraction_high"] == pytest.approx(0.2)
    assert found["clip/fraction_low"] == pytest.approx(0.2)
    assert found["clip/fraction_high_of_positive"] == pytest.approx(1 / 3)
    assert found["clip/fraction_low_of_negative"] == pytest.approx(1 / 2)
    assert found["clip/fraction_dual"] == 0.0
    assert found["ratio/mean"] == pytest.approx(1.0)
    # Behaviour log-probs are -1 throughout.
    assert found["policy/probability_clipped_high"] == pytest.approx(math.exp(-1))


def test_means_leave_masked_tokens_out():
    """B064: entropies [.5, .5, 0, 0] under mask [1, 1, 0, 0] have mean .5; NaN under the mask stays there."""
    update = record(
        [[1.0, 1.0, 1.0, 1.0], [2.0, 1.0, 1.0, 1.0]],
        [[1.0, 1.0, 1.0, 1.0], [-1.0, -1.0, -1.0, -1.0]],
        [[1, 1, 0, 0], [1, 0, 0, 0]],
        entropy=[[0.5, 0.5, 0.0, 0.0], [2.0, 9.0, 9.0, 9.0]],
        versions=[[3, 4, 0, 0], [5, 0, 0, 0]],
    )
    found = means(update)
    assert found["policy/entropy"] == pytest.approx(1.0)
    assert found["policy/entropy_positive"] == pytest.approx(0.5)
    assert found["policy/entropy_negative"] == pytest.approx(2.0)
    # B110: ages 2, 1 and 0 under version 5.
    assert found["staleness/mean"] == pytest.approx(1.0)
    assert found["balance/token_share"] == pytest.approx(2 / 3)
    assert found["balance/length_positive"] == pytest.approx(2.0)
    assert found["balance/length_negative"] == pytest.approx(1.0)
    assert found["ratio/mean"] == pytest.approx(4 / 3)
    # k3 of the sampled log-ratio: (2 - 1 - ln 2) / 3.
    assert found["policy/kl"] == pytest.approx((1 - math.log(2)) / 3, abs=1e-6)
    assert found["optim/loss"] == 0.25


def test_at_ratio_one_nothing_is_clipped_and_kl_is_zero():
    found = means(record([[1.0, 1.0]], [[1.0, -1.0]], [[1, 1]]))
    assert (found["policy/kl"], found["clip/fraction_low"], found["clip/fraction_high"]) == (0.0, 0.0, 0.0)


def test_nothing_to_measure_has_no_balance():
    values = update_values(record([[1.0, 1.0]], [[0.0, 0.0]], [[1, 1]]))
    assert not [tag for tag in values if tag.startswith("balance/")]
    assert "clip/measure" not in values
    assert "optim/grad_norm" in values


def test_bounds_per_token_are_averaged_over_tokens():
    bounds = ClipBounds(low=torch.tensor([[0.5, 0.7, 0.0]]), high=torch.tensor([[1.5, 2.5, 9.0]]))
    found = means(record([[1.0, 1.0, 1.0]], [[1.0, 1.0, 1.0]], [[1, 1, 0]], bounds=bounds))
    assert found["clip/bound_low"] == pytest.approx(0.6)
    assert found["clip/bound_high"] == pytest.approx(2.0)


def test_what_a_strategy_does_not_measure_is_not_logged():
    update = record([[1.0, 1.0]], [[1.0, -1.0]], [[1, 1]], bounds=ClipBounds(low=0.0, high=math.inf))
    assert not [tag for tag in update_values(update) if tag.startswith("balance/")]
    found = means(update)
    assert found["clip/bound_low"] == 0.0
    assert "clip/bound_high" not in found


def test_percentiles():
    found = percentiles(torch.arange(101.0), "x")
    assert found == {"x/p05": 5.0, "x/p50": 50.0, "x/p95": 95.0, "x/max": 100.0}
    assert percentiles(torch.tensor([]), "x") == {}


def test_by_age_each_token_counts_once():
    """Ages 5, 5, 0, 1 of version 5: ratios [2, .5], [1], [1.5]; A = 1, -1, 1, -1; window [.8, 1.2], π_rollout e^-1."""
    update = record(
        [[2.0, 0.5, 1.0, 1.5]], [[1.0, -1.0, 1.0, -1.0]], [[1, 1, 1, 1]], versions=[[0, 0, 5, 4]], version=5
    )
    found = effective_sizes(
        {tag: float(s.total) / float(s.count) for tag, s in age_sums(update).items() if float(s.count)}
    )
    assert found["age/4-7/token_share"] == 0.5
    assert found["age/0/token_share"] == found["age/1/token_share"] == 0.25
    assert found["age/4-7/ratio"] == pytest.approx(1.25)
    # (2.5)² / (2·(4 + .25)) = .735294
    assert found["age/4-7/effective_size"] == pytest.approx(0.735294, abs=1e-6)
    assert found["age/0/effective_size"] == pytest.approx(1.0)
    # Both old tokens are clipped: nothing pulls, so their share is left out; a fresh positive one has share 1.
    assert found["age/4-7/fraction_clipped"] == 1.0
    assert "age/4-7/gradient_share" not in found
    assert found["age/0/gradient_share"] == 1.0
    assert found["age/1/gradient_share"] == 0.0
    # k3 for r = 1.5: r - 1 - ln r = .094535
    assert found["age/1/kl"] == pytest.approx(0.094535, abs=1e-6)
    assert not [tag for tag in found if tag.startswith(("age/2-3", "age/8-15", "age/16", "age/32"))]


def test_the_bins_of_age_leave_nothing_out():
    labels = [
        [label for label, (first, last) in AGE_BINS.items() if first <= age and (last is None or age <= last)]
        for age in range(100)
    ]
    assert all(len(found) == 1 for found in labels)
