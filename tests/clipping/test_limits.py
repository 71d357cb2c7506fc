"""Where one strategy becomes another, gradients against finite differences, and what is refused."""

import math

import pytest
import torch
from catalogue import CATALOGUE
from clip_batches import Batch, batches, by_hand, random_batch
from hypothesis import given, settings

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
    BAPOClip,
    ClipCov,
    ClipHigher,
    ClippingStrategy,
    DecoupledPPO,
    DualClip,
    FixedClip,
    GSPOToken,
    KLCov,
    LowProbabilityDamping,
    MaskedIS,
    NoClip,
    TokenSelector,
    TopEntropyTokens,
    TruncatedIS,
    call_bounds,
)
from bapo_lightning.errors import InputError

INFINITE = float("inf")
FEW = settings(max_examples=40, deadline=None)


def trained(strategy: ClippingStrategy, batch: Batch, proximal: torch.Tensor | None = None):
    """Gradient, objective and clip mask of the unmasked tokens."""
    bounds = call_bounds(
        strategy,
        *batch.inputs(),
        entropy=batch.entropy,
        proximal_log_probs=batch.rollout_log_probs if proximal is None else proximal,
    )
    log_ratio = batch.log_ratio.clone().requires_grad_()
    surrogate = strategy.surrogate(log_ratio, batch.advantages, bounds)
    torch.where(batch.mask, surrogate.objective, 0.0).sum().backward()
    return log_ratio.grad, surrogate.objective[batch.mask].detach(), surrogate.clipped[batch.mask]


def assert_equal(one: ClippingStrategy, other: ClippingStrategy, batch: Batch) -> None:
    for a, b in zip(trained(one, batch), trained(other, batch), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


FIXED_WINDOW = {"low_start": 0.8, "low_max": 0.8, "high_start": 1.2, "high_max": 1.2}
LIMITS = {
    "clip_higher": (ClipHigher(high=1.2), FixedClip()),
    "asymmetric": (AsymmetricClip(high=1.2), FixedClip()),
    "dual_clip": (DualClip(dual=INFINITE), FixedClip()),
    "bapo": (BAPOClip(**FIXED_WINDOW), FixedClip()),
    "bapo_gradient": (BAPOClip(contribution="gradient", order="low_first", **FIXED_WINDOW), FixedClip()),
    "fixed_open": (FixedClip(low=0.0, high=INFINITE), NoClip()),
    "m2po": (M2PO(max_second_moment=1e9), NoClip()),
    "cispo": (CISPO(low=0.0, high=INFINITE), NoClip()),
    "decoupled": (DecoupledPPO(), FixedClip()),
    "truncated_is": (TruncatedIS(), FixedClip()),
    "masked_is": (MaskedIS(), FixedClip()),
    "masked_is_open": (MaskedIS(low=0.0, high=INFINITE), DecoupledPPO(max_weight=None)),
    "top_entropy": (TopEntropyTokens(share=1.0), ClipHigher()),
    "clip_cov": (ClipCov(low=1e6, high=2e6), FixedClip()),
    "kl_cov": (KLCov(coefficient=0.0), NoClip()),
    "low_probability": (LowProbabilityDamping(alpha=0.0), ClipHigher(high=1.24)),
}


@pytest.mark.parametrize("name", LIMITS)
@FEW
@given(batch=batches())
def test_a_strategy_in_its_limit_is_another_one(name, batch):
    assert_equal(*LIMITS[name], batch)


@FEW
@given(batch=batches())
def test_asymre_and_topr_agree_on_successes(batch):
    """Without a shift both are A·log π where A > 0."""
    positive = Batch(batch.log_ratio, batch.advantages.abs(), *batch.inputs()[2:])
    assert_equal(AsymRE(baseline_shift=0.0), TOPR(), positive)


@pytest.mark.parametrize("strategy", [GSPO, GSPOToken, GMPO], ids=lambda kind: kind.__name__)
@FEW
@given(batch=batches())
def test_sequence_strategies_with_one_token_are_token_ppo(strategy, batch):
    one = Batch(*(tensor[:, :1] for tensor in batch.inputs()))
    gradient, _, clipped = trained(strategy(low=0.7, high=1.3), one)
    expected, _, expected_clipped = trained(FixedClip(low=0.7, high=1.3), one)
    torch.testing.assert_close(gradient, expected)
    assert torch.equal(clipped, expected_clipped)


@FEW
@given(batch=batches())
def test_gspo_and_gspo_token_agree_with_one_advantage_a_response(batch):
    batch = batch.with_one_advantage_a_response()
    assert_equal(GSPO(low=0.7, high=1.3), GSPOToken(low=0.7, high=1.3), batch)


@FEW
@given(batch=batches(max_log_ratio=0.19))
def test_topr_without_truncation_weighs_failures_by_their_ratio(batch):
    negative = Batch(batch.log_ratio, -batch.advantages.abs(), *batch.inputs()[2:])
    assert_equal(TOPR(max_negative_weight=1e9), NoClip(), negative)


@pytest.mark.parametrize("name", [name for name, entry in CATALOGUE.items() if not entry.stop_gradient])
def test_gradients_agree_with_finite_differences(name):
    entry, batch = CATALOGUE[name], random_batch(seed=12)
    batch = batch.with_one_advantage_a_response() if entry.sequence_level else batch
    bounds = batch.bounds(entry.strategy)

    def objective(log_ratio):
        return torch.where(batch.mask, entry.strategy.surrogate(log_ratio, batch.advantages, bounds).objective, 0.0)

    # The sum, as objectives of one response may share a ratio; away from kinks, at which a test would be luck.
    assert torch.autograd.gradcheck(lambda x: objective(x).sum(), batch.log_ratio.clone().requires_grad_(), eps=1e-7)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        (name, what)
        for name, entry in CATALOGUE.items()
        for what in ("log_ratio", "advantages", *(["rollout_log_probs"] if entry.strategy.weighs_shares else []))
    ],
)
def test_a_value_that_is_not_finite_is_named(name, what):
    strategy, batch = CATALOGUE[name].strategy, random_batch(seed=13)
    row = int(batch.mask.sum(1).argmax())
    inputs = dict(zip(("log_ratio", "advantages", "mask", "rollout_log_probs"), batch.inputs(), strict=True))
    inputs[what] = inputs[what].clone()
    inputs[what][row, :2] = torch.tensor([math.nan, math.inf])
    broken = Batch(**inputs)
    with pytest.raises(InputError, match=rf"2 of the tokens .*at response {row}, token 0"):
        call_bounds(strategy, *broken.inputs(), entropy=batch.entropy, proximal_log_probs=batch.proximal_log_probs)


@pytest.mark.parametrize("name", CATALOGUE)
def test_shapes_that_differ_are_named(name):
    strategy, batch = CATALOGUE[name].strategy, random_batch(seed=14)
    wrong = Batch(batch.log_ratio, batch.advantages[:, :-1], batch.mask, batch.rollout_log_probs)
    with pytest.raises(InputError, match=r"advantages \[6, 7\]"):
        call_bounds(strategy, *wrong.inputs(), entropy=batch.entropy, proximal_log_probs=batch.proximal_log_probs)


NEEDS = {
    "DCPO": (DCPO(), "rollout_log_probs"),
    "BAPOClip": (BAPOClip(), "rollout_log_probs"),
    "ClipCov": (ClipCov(), "rollout_log_probs"),
    "KLCov": (KLCov(), "rollout_log_probs"),
    "LowProbabilityDamping": (LowProbabilityDamping(), "rollout_log_probs"),
    "DecoupledPPO": (DecoupledPPO(), "rollout_log_probs"),
    "TopEntropyTokens": (TopEntropyTokens(), "entropy"),
}


@pytest.mark.parametrize("name", NEEDS)
def test_a_missing_input_is_named(name):
    strategy, missing = NEEDS[name]
    with pytest.raises(InputError, match=f"needs {missing}, got None"):
        call_bounds(strategy, *by_hand([1.0], [1.0]).inputs()[:3])


def test_proximal_log_probs_are_named():
    for strategy in (DecoupledPPO(), TruncatedIS(), MaskedIS()):
        with pytest.raises(InputError, match=f"{type(strategy).__name__} needs proximal_log_probs, got None"):
            call_bounds(strategy, *by_hand([1.0], [1.0]).inputs())


class KeepNothing(TokenSelector):
    def keep(self, tokens):
        return torch.zeros_like(tokens.mask)


def test_a_selector_that_keeps_nothing_is_named():
    with pytest.raises(InputError, match=r"KeepNothing\(.*\) keeps none of the 2 tokens"):
        KeepNothing(FixedClip()).bounds(*by_hand([1.0, 1.0], [1.0, -1.0]).inputs())
    everything = ClipCov(share=1.0, low=-100.0, high=100.0)
    with pytest.raises(InputError, match="keeps none of the 2 tokens"):
        everything.bounds(*by_hand([1.0, 1.1], [1.0, -1.0]).inputs())


def test_a_selector_of_an_update_without_tokens_keeps_quiet():
    empty = Batch(torch.zeros(0, 3), torch.zeros(0, 3), torch.zeros(0, 3, dtype=torch.bool), torch.zeros(0, 3))
    assert empty.bounds(TopEntropyTokens()).empty
    assert empty.bounds(ClipCov()).empty


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FixedClip(low=1.2), "low must be a ratio bound in"),
        (lambda: ClipHigher(high=0.28), "high must be a ratio bound >= 1"),
        (lambda: GSPO(low=3e-4, high=4e-4), "high must be a ratio bound >= 1"),
        (lambda: CISPO(high=0.2), "high must be a ratio bound >= 1"),
        (lambda: MaskedIS(low=2.0), "low must be a ratio bound in"),
        (lambda: DualClip(dual=1.0), "dual must be a ratio above 1"),
        (lambda: DCPO(epsilon_low=0.0), "epsilon_low must be a finite number > 0"),
        (lambda: DCPO(max_ratio=0.5), "max_ratio must be a ratio above 1"),
        (lambda: SAPO(tau_positive=0.0), "tau_positive must be a finite number > 0"),
        (lambda: TOPR(max_negative_weight=math.inf), "max_negative_weight must be a finite number > 0"),
        (lambda: AsymRE(baseline_shift=math.nan), "baseline_shift must be a finite number"),
        (lambda: M2PO(max_second_moment=-1.0), "max_second_moment must be a finite number > 0"),
        (lambda: DecoupledPPO(max_weight=0.5), "max_weight must be a ratio above 1"),
        (lambda: TruncatedIS(cap=0.5), "cap must be a ratio >= 1"),
        (lambda: TopEntropyTokens(share=0.0), r"share must lie in \(0, 1\]"),
        (lambda: TopEntropyTokens(share=20), r"share must lie in \(0, 1\]"),
        (lambda: ClipCov(low=5.0, high=1.0), "high must be above low"),
        (lambda: KLCov(coefficient=-1.0), "coefficient must be a finite number >= 0"),
        (lambda: BAPOClip(low_step=1e-5), "low_step = 1e-05 makes 30000 steps"),
        (lambda: BAPOClip(high_max=1e9), "at most 1000 are searched"),
        (lambda: DecoupledPPO(inner=TruncatedIS()), "TruncatedIS splits the ratio .* already"),
        (lambda: MaskedIS(inner=TopEntropyTokens(inner=DecoupledPPO())), "cannot stand inside MaskedIS"),
        (lambda: LowProbabilityDamping(alpha=1.5), r"alpha must lie in \[0, 1\]"),
    ],
)
def test_arguments_out_of_range_are_named(make, message):
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize("name", [n for n, entry in CATALOGUE.items() if not isinstance(entry.strategy, BAPOClip)])
def test_inference_mode_is_refused_where_shares_are_measured_with_autograd(name):
    strategy, batch = CATALOGUE[name].strategy, random_batch(seed=15)
    with torch.inference_mode(), pytest.raises(RuntimeError, match=r"torch\.no_grad"):
        batch.bounds(strategy)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_torchs_default_type_changes_nothing(dtype):
    """Lightning sets it to bf16 in a bf16-true run."""
    batch = random_batch(seed=16)
    batch = Batch(batch.log_ratio.float(), batch.advantages.float(), batch.mask, batch.rollout_log_probs.float())
    for name, entry in CATALOGUE.items():
        expected = trained(entry.strategy, batch)
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            found = trained(entry.strategy, batch)
        finally:
            torch.set_default_dtype(before)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True)), name


def test_far_tokens_are_clipped_and_none_falls_silent():
    """log r = ±120 in float32: e^120 overflows, e^-120 underflows; M2PO's bound for 90 and 41 lies beyond the cap."""
    far = Batch(
        torch.tensor([[120.0, -120.0]]), torch.tensor([[-1.0, 1.0]]), torch.ones(1, 2).bool(), torch.zeros(1, 2)
    )
    gradient, _, clipped = trained(FixedClip(), far)
    assert not clipped.any()
    assert (gradient != 0).all()
    assert gradient.isfinite().all()
    distances = torch.tensor([[90.0, 41.0, 0.05]])
    gradient, _, clipped = trained(
        M2PO(), Batch(distances, torch.ones(1, 3), torch.ones(1, 3).bool(), torch.zeros(1, 3))
    )
    assert clipped.tolist() == [True, True, False]
    assert gradient[0].tolist() == pytest.approx([0.0, 0.0, math.exp(0.05)])


def test_kl_cov_holds_nothing_where_nothing_moves_together():
    """Equal advantages have no covariance with anything; holding every token would be a KL penalty on all."""
    batch = by_hand([1.1, 0.9, 1.3], [1.0, 1.0, 1.0], [0.5, 0.2, 0.9])
    assert_equal(KLCov(), NoClip(), batch)


@pytest.mark.parametrize("around", [DecoupledPPO, TruncatedIS, MaskedIS])
def test_an_inner_strategy_still_knows_the_policy_that_is_trained(around):
    """Shifted to the proximal policy, log π = log(π/π_prox) + log π_prox: the same tokens covary most."""
    batch = random_batch(seed=17)
    proximal = batch.rollout_log_probs + 0.3
    inner = KLCov(share=0.2)
    found = call_bounds(around(inner=inner), *batch.inputs(), proximal_log_probs=proximal)
    alone = inner.bounds(*batch.inputs())
    assert alone.held.any()
    assert torch.equal(found.inner.held, alone.held)


def test_an_entropy_that_is_nan_is_named():
    batch = random_batch(seed=18)
    entropy = batch.entropy.clone()
    entropy[batch.mask] = math.nan
    with pytest.raises(InputError, match=r"entropy is nan at response 0, token 0"):
        call_bounds(TopEntropyTokens(), *batch.inputs(), entropy=entropy)


def test_clip_cov_draws_alike_whatever_the_last_bit_of_a_log_prob():
    """Micro-batches of another size change log π_θ by rounding; a token must not be drawn for that."""
    batch = random_batch(seed=19, num_responses=20)
    strategy = ClipCov(inner=NoClip(), share=0.2, low=-10.0, high=10.0)
    nudged = Batch(batch.log_ratio * (1.0 + 1e-7), *batch.inputs()[1:])
    dropped = strategy.bounds(*batch.inputs()).dropped & batch.mask
    assert dropped.any()
    assert torch.equal(strategy.bounds(*nudged.inputs()).dropped & batch.mask, dropped)


def test_clip_cov_draws_among_tokens_with_equal_log_probs():
    """In trained models many log-probs are exactly 0; they must not all be drawn together."""
    shape = (8, 50)
    log_probs = torch.zeros(shape)
    log_probs[:, 0] = -torch.arange(1.0, 9.0)
    advantages = torch.tensor([1.0, -1.0] * 4)[:, None].expand(shape)
    batch = Batch(torch.zeros(shape), advantages, torch.ones(shape, dtype=torch.bool), log_probs)
    dropped = ClipCov(share=0.05, low=-10.0, high=10.0).bounds(*batch.inputs()).dropped
    assert dropped.sum() == 20
    assert dropped.any(1).sum() > 4


def test_a_tiny_weight_keeps_its_value():
    """alpha 1 at log π = -18: the objective is 1.5e-8·A, where (1 + (w - 1))·A would be 0."""
    batch = by_hand([1.0], [1.0], [math.exp(-18.0)])
    single = Batch(*(t.float() if t.is_floating_point() else t for t in batch.inputs()))
    gradient, objective, _ = trained(LowProbabilityDamping(inner=NoClip(), alpha=1.0), single)
    assert objective.item() == pytest.approx(math.exp(-18.0), rel=1e-5)
    assert gradient.item() == pytest.approx(math.exp(-18.0), rel=1e-5)
