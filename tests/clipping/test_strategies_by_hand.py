"""Each strategy of the catalogue against numbers worked out by hand."""

import math

import pytest
import torch
from clip_batches import Batch, by_hand

from bapo_lightning.clipping import (
    CISPO,
    DCPO,
    GMPO,
    GSPO,
    M2PO,
    SAPO,
    TOPR,
    AsymmetricClip,
    AsymRE,
    ClipCov,
    ClippingStrategy,
    DecoupledPPO,
    DualClip,
    FixedClip,
    GSPOToken,
    KLCov,
    LowProbabilityDamping,
    MaskedIS,
    NoClip,
    TopEntropyTokens,
    TruncatedIS,
    call_bounds,
)


class Result:
    """Objective, gradient of their sum, and masks of the first response, as lists."""

    def __init__(self, strategy: ClippingStrategy, batch: Batch, **further: torch.Tensor) -> None:
        self.bounds = call_bounds(
            strategy,
            *batch.inputs(),
            entropy=further.get("entropy", batch.entropy),
            proximal_log_probs=further.get("proximal_log_probs", batch.proximal_log_probs),
        )
        log_ratio = batch.log_ratio.clone().requires_grad_()
        surrogate = strategy.surrogate(log_ratio, batch.advantages, self.bounds)
        surrogate.objective.sum().backward()
        self.objective = surrogate.objective[0].tolist()
        self.gradient = log_ratio.grad[0].tolist()
        for name in ("clipped_low", "clipped_high", "clipped_dual", "dropped", "capped"):
            setattr(self, name, [i for i, on in enumerate(getattr(surrogate, name)[0].tolist()) if on])


def test_asymmetric_clip_keeps_what_the_symmetric_window_drops():
    """Fig. 7's [.8, 1.5]: r = 1.5 lies on the bound and keeps its gradient, 1.6 does not."""
    result = Result(AsymmetricClip(), by_hand([1.5, 1.6, 0.79], [1.0, 1.0, -1.0]))
    assert result.objective == pytest.approx([1.5, 1.5, -0.8])
    assert result.gradient == pytest.approx([1.5, 0.0, 0.0])
    assert (result.clipped_high, result.clipped_low) == ([1], [2])


def test_dual_clip_stops_runaway_negatives():
    """c = 3: A = -2, r = 4 counts -6 and has no gradient; r = 2.5 counts -5 and keeps it."""
    result = Result(DualClip(), by_hand([4.0, 2.5], [-2.0, -2.0]))
    assert result.objective == pytest.approx([-6.0, -5.0])
    assert result.gradient == pytest.approx([0.0, -5.0])
    assert result.clipped_dual == [0]


def test_no_clip_is_ratio_times_advantage():
    result = Result(NoClip(), by_hand([9.0, 0.1, 9.0], [1.0, -2.0, -0.5]))
    assert result.objective == result.gradient == pytest.approx([9.0, -0.2, -4.5])


@pytest.mark.parametrize(
    ("probability", "low", "high"),
    [
        (1.0, 0.8, 0.5 + 0.5 * math.sqrt(1.8)),
        (0.8, 0.5 + 0.5 * math.sqrt(0.2), 0.5 + 0.5 * math.sqrt(2.0)),
        (0.5, 0.5, 0.5 + 0.5 * math.sqrt(2.6)),
        (0.01, 0.5, 5.0),
        (0.001, 0.5, 10.0),
    ],
)
def test_dcpo_gives_rare_tokens_a_wide_window(probability, low, high):
    """q = .01: high = ½ + ½√(1 + .8/.01) = ½ + ½·9 = 5; below q = .64 the lower root is gone, so low = ½."""
    bounds = Result(DCPO(), by_hand([1.0], [1.0], [probability])).bounds
    assert bounds.low.item() == pytest.approx(low)
    assert bounds.high.item() == pytest.approx(high)


def test_dcpo_bounds_solve_their_equation():
    """r·|r - 1|·q = ε at both bounds."""
    batch = by_hand([1.0, 1.0], [1.0, -1.0], [0.7, 0.9])
    bounds = Result(DCPO(), batch).bounds
    q = batch.rollout_log_probs.exp()
    torch.testing.assert_close(bounds.high * (bounds.high - 1) * q, torch.full_like(q, 0.2))
    torch.testing.assert_close(bounds.low * (1 - bounds.low) * q, torch.full_like(q, 0.16))


def test_gspo_has_one_ratio_a_response():
    """s = √(1.2·.9) = 1.03923 for both tokens; above 1.03 the whole response is clipped."""
    batch = by_hand([1.2, 0.9], [1.0, 1.0])
    free = Result(GSPO(low=0.9, high=1.1), batch)
    assert free.objective == free.gradient == pytest.approx([1.0392305] * 2)
    clipped = Result(GSPO(low=0.9, high=1.03), batch)
    assert clipped.objective == pytest.approx([1.03] * 2)
    assert clipped.gradient == [0.0, 0.0]
    assert clipped.clipped_high == [0, 1]
    assert Result(GSPO(), batch).objective == pytest.approx([1.0004] * 2)


def test_gspo_and_gspo_token_differ_where_advantages_do():
    """s = 1.2: GSPO moves every token by s·mean(A) = 1.2·2, GSPO-token by s·A."""
    batch = by_hand([1.2, 1.2], [1.0, 3.0])
    window = {"low": 0.5, "high": 2.0}
    assert Result(GSPO(**window), batch).gradient == pytest.approx([2.4, 2.4])
    assert Result(GSPOToken(**window), batch).gradient == pytest.approx([1.2, 3.6])


def test_gmpo_averages_clipped_ratios_in_log_space():
    """r = 2 is clipped to e^.4; exp((.4 + ln .9)/2) = 1.158724; the free token has the whole gradient of it."""
    result = Result(GMPO(low=math.exp(-0.4), high=math.exp(0.4)), by_hand([2.0, 0.9], [1.0, 1.0]))
    expected = math.exp((0.4 + math.log(0.9)) / 2)
    assert expected == pytest.approx(1.158724, abs=1e-6)
    assert result.objective == pytest.approx([expected] * 2)
    assert result.gradient == pytest.approx([0.0, expected])
    assert result.clipped_high == [0]


def test_cispo_cuts_the_weight_and_keeps_the_gradient():
    """Cap 5: r = 8, A = -1 counts -5 with gradient -5; two-sided [.8, 1.2]: r = .5, A = 1 counts .8."""
    result = Result(CISPO(), by_hand([8.0, 0.01, 2.0], [-1.0, 1.0, 1.0]))
    assert result.objective == result.gradient == pytest.approx([-5.0, 0.01, 2.0])
    assert (result.capped, result.clipped_dual) == ([0], [])
    assert Result(CISPO(low=0.8, high=1.2), by_hand([0.5], [1.0])).gradient == pytest.approx([0.8])


def test_sapo_fades_tokens_out():
    """4σ(1) = 2.924234 with slope 4σ(1)σ(-1)·2 = 1.572895; (4/1.05)σ(-.525) = 1.415938 with slope .467071."""
    result = Result(SAPO(), by_hand([2.0, 0.5, 1.0, 1.0], [1.0, -1.0, 1.0, -1.0]))
    assert result.objective == pytest.approx([2.924234, -1.415938, 2.0, -2.0 / 1.05], abs=2e-6)
    assert result.gradient == pytest.approx([1.572895, -0.467071, 1.0, -1.0], abs=2e-6)


def test_topr_imitates_successes_and_truncates_failures():
    result = Result(TOPR(), by_hand([3.0, 0.1, 3.0, 0.4], [1.0, 1.0, -1.0, -1.0]))
    assert result.objective == result.gradient == pytest.approx([1.0, 1.0, -1.0, -0.4])
    assert result.capped == [2]


def test_asymre_lowers_the_baseline():
    """δV = -.1: 1.1, -.9 and .1, whatever the ratio."""
    result = Result(AsymRE(), by_hand([3.0, 0.2, 1.0], [1.0, -1.0, 0.0]))
    assert result.objective == result.gradient == pytest.approx([1.1, -0.9, 0.1])


def test_m2po_drops_the_farthest_until_the_mean_square_fits():
    """Active |log r|: .1, .2, .4, .5; means of squares .01, .025, .07, .115. τ = .04 keeps two: θ halfway, .3.

    A = -1 with log r = .3 pulls back towards 1 and does not count.
    """
    batch = by_hand([math.exp(x) for x in (0.1, 0.2, 0.5, 0.3, -0.4)], [1.0, 1.0, 1.0, -1.0, -1.0])
    result = Result(M2PO(), batch)
    assert result.bounds.high == pytest.approx(math.exp(0.3))
    assert result.bounds.low == pytest.approx(math.exp(-0.3))
    assert (result.clipped_high, result.clipped_low) == ([2], [4])
    assert result.objective == pytest.approx([math.exp(0.1), math.exp(0.2), 0.0, -math.exp(0.3), 0.0])


def test_m2po_treats_equal_distances_alike():
    """Squares .01, .09, .09: two of them have mean .05 <= .06, but the third is as far as the second."""
    batch = by_hand([math.exp(x) for x in (0.1, 0.3, 0.3)], [1.0, 1.0, 1.0])
    assert Result(M2PO(max_second_moment=0.06), batch).clipped_high == [1, 2]


def test_m2po_with_room_for_all_has_no_bounds():
    result = Result(M2PO(), by_hand([1.1, 0.9], [1.0, -1.0]))
    assert (result.bounds.low, result.bounds.high) == (0.0, math.inf)


def _three_policies(rollout: list[float], proximal: list[float], current: list[float], advantages: list[float]):
    """Log-probs in nats; a batch, and what `Result` needs besides."""
    tensors = [torch.tensor([row], dtype=torch.float64) for row in (rollout, proximal, current, advantages)]
    mask = torch.ones(1, len(rollout), dtype=torch.bool)
    batch = Batch(tensors[2] - tensors[0], tensors[3], mask, tensors[0])
    return batch, {"proximal_log_probs": tensors[1]}


def test_decoupled_ppo_clips_around_the_proximal_policy():
    """Weight e^.5 = 1.648721; ratio e^.2 = 1.2214 > 1.2: 1.2·1.648721 = 1.978466 and no gradient for A > 0.

    A weight of e^2 = 7.4 > 5 leaves the token out.
    """
    batch, proximal = _three_policies([-1.0, -1.0, -3.0], [-0.5, -0.5, -1.0], [-0.3, -0.3, -1.0], [1.0, -1.0, 1.0])
    result = Result(DecoupledPPO(), batch, **proximal)
    assert result.objective == pytest.approx([1.978466, -2.013753, 0.0], abs=1e-6)
    assert result.gradient == pytest.approx([0.0, -2.013753, 0.0], abs=1e-6)
    assert (result.clipped_high, result.dropped) == ([0], [2])
    assert Result(DecoupledPPO(max_weight=None), batch, **proximal).objective[2] == pytest.approx(math.exp(2.0))


def test_truncated_is_cuts_the_weight():
    """Weights min(e^.5, 2) = 1.648721 and min(e^2, 2) = 2; the ratio to the proximal policy is 1."""
    batch, proximal = _three_policies([-1.0, -3.0], [-0.5, -1.0], [-0.5, -1.0], [1.0, 1.0])
    result = Result(TruncatedIS(), batch, **proximal)
    assert result.objective == result.gradient == pytest.approx([1.648721, 2.0], abs=1e-6)
    assert result.capped == [1]


def test_masked_is_leaves_out_and_does_not_clamp():
    """[.5, 5]: weights e^-1 = .37 and e^2 = 7.4 are out, e^.5 stays as it is."""
    batch, proximal = _three_policies([-1.0, -1.0, -3.0], [-2.0, -0.5, -1.0], [-2.0, -0.5, -1.0], [1.0, -1.0, -1.0])
    result = Result(MaskedIS(), batch, **proximal)
    assert result.objective == result.gradient == pytest.approx([0.0, -1.648721, 0.0], abs=1e-6)
    assert result.dropped == [0, 2]


@pytest.mark.parametrize(
    ("share", "kept"), [(0.2, [3, 7]), (0.25, [1, 3, 7, 9]), (0.4, [1, 3, 7, 9]), (1.0, list(range(10)))]
)
def test_top_entropy_keeps_the_most_uncertain(share, kept):
    """Ten tokens: 20 % are two; 25 % are rounded up to three, and the fourth is as uncertain as the third."""
    entropy = torch.tensor([[0.1, 0.8, 0.0, 1.2, 0.3, 0.2, 0.4, 0.9, 0.1, 0.8]])
    result = Result(TopEntropyTokens(share=share), by_hand([1.0] * 10, [1.0] * 10), entropy=entropy)
    assert [i for i in range(10) if i not in result.dropped] == kept
    assert result.gradient == [1.0 if i in kept else 0.0 for i in range(10)]


COVARIANCES = Batch(
    torch.zeros(1, 4, dtype=torch.float64),
    torch.tensor([[2.0, 2.0, -2.0, -2.0]], dtype=torch.float64),
    torch.ones(1, 4, dtype=torch.bool),
    torch.tensor([[-1.0, -3.0, -1.0, -3.0]], dtype=torch.float64),
)
"""Means -2 and 0, so covariances 2, -2, -2, 2."""


def test_clip_cov_drops_from_its_range_only():
    """Range (1, 5) holds tokens 0 and 3; a share of 1 takes both, .25 of four one of them, (2, 5) neither."""
    assert Result(ClipCov(share=1.0), COVARIANCES).dropped == [0, 3]
    assert Result(ClipCov(share=0.25), COVARIANCES).dropped in ([0], [3])
    assert Result(ClipCov(share=1.0, low=2.0), COVARIANCES).dropped == []


def test_clip_cov_does_not_draw_what_is_clipped_anyway():
    batch = by_hand([1.5, 1.0, 1.0, 1.0], [2.0, 2.0, -2.0, -2.0], [math.exp(p) for p in (-1.4, -3.0, -1.0, -3.0)])
    result = Result(ClipCov(share=1.0), batch)
    assert (result.clipped_high, result.dropped) == ([0], [3])


def test_clip_cov_draws_exactly_its_share_without_a_pattern():
    """10,000 tokens, 5 %: 500 of them, from all over the update (mean position 5000 ± 5·2887/√500)."""
    generator = torch.Generator().manual_seed(0)
    shape = (1, 10_000)
    log_probs = -torch.rand(shape, generator=generator)
    batch = Batch(torch.zeros(shape), torch.ones(shape), torch.ones(shape, dtype=torch.bool), log_probs)
    dropped = Result(ClipCov(share=0.05, low=-1.0), batch).dropped
    assert len(dropped) == 500
    assert abs(sum(dropped) / 500 - 5000) < 5 * 2887 / math.sqrt(500)


def test_kl_cov_holds_the_largest_covariances_back():
    """Tokens 0 and 3 tie for the largest: r·A - |log r| there, r·A elsewhere."""
    shifted = Batch(COVARIANCES.log_ratio + 0.125, *COVARIANCES.inputs()[1:])
    result = Result(KLCov(share=0.25), shifted)
    r = math.exp(0.125)
    assert result.objective == pytest.approx([2 * r - 0.125, 2 * r, -2 * r, -2 * r - 0.125])
    assert result.gradient == pytest.approx([2 * r - 1, 2 * r, -2 * r, -2 * r - 1])


def test_low_probability_damping():
    """alpha .2: π = .5 weighs .9, π = .01 weighs .802."""
    result = Result(LowProbabilityDamping(), by_hand([1.0, 1.0], [1.0, -1.0], [0.5, 0.01]))
    assert result.objective == result.gradient == pytest.approx([0.9, -0.802])


def test_a_selector_changes_what_bapo_balances():
    """B6: positive tokens that are left out cannot count towards the target."""
    from bapo_lightning.clipping import BAPOClip

    batch = by_hand([1.0, 1.0, 1.0, 1.0], [1.0, 1.0, -1.0, -1.0])
    entropy = torch.tensor([[0.0, 0.0, 1.0, 1.0]])
    assert Result(BAPOClip(), batch).bounds.steps == 0
    chosen = Result(TopEntropyTokens(inner=BAPOClip(), share=0.5), batch, entropy=entropy).bounds
    assert (chosen.steps, chosen.value_share, chosen.reachable) == (51, 0.0, False)


def test_weights_multiply_through_nested_strategies():
    """Damping .9 times a truncated weight of 2 times r = 1."""
    batch, proximal = _three_policies(
        [math.log(0.5)] * 2, [math.log(0.5) + 2.0] * 2, [math.log(0.5) + 2.0] * 2, [1, -1]
    )
    result = Result(LowProbabilityDamping(inner=TruncatedIS()), batch, **proximal)
    assert result.gradient == pytest.approx([1.8, -1.8])


def test_selection_leaves_a_token_its_own_gradient_in_sequence_strategies():
    """Three of four tokens kept: each moves by s·A = 1 as in GSPO itself, the fourth not at all."""
    entropy = torch.tensor([[1.0, 2.0, 3.0, 0.0]])
    result = Result(
        TopEntropyTokens(inner=GSPO(low=0.5, high=2.0), share=0.75), by_hand([1.0] * 4, [1.0] * 4), entropy=entropy
    )
    assert result.gradient == pytest.approx([1.0, 1.0, 1.0, 0.0])
    assert result.objective == pytest.approx([1.0, 1.0, 1.0, 0.0])


def test_fixed_is_what_inner_strategies_are_made_of():
    assert repr(DecoupledPPO().inner) == repr(TruncatedIS().inner) == repr(MaskedIS().inner) == repr(FixedClip())
    assert repr(ClipCov().inner) == repr(FixedClip())
    assert repr(KLCov().inner) == repr(NoClip())
    assert repr(TopEntropyTokens().inner) == "ClipHigher(low=0.8, high=1.28)"
    assert repr(LowProbabilityDamping().inner) == "ClipHigher(low=0.8, high=1.24)"
