"""The strategies that run the common suite. A new strategy gets an entry here."""

from dataclasses import dataclass

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
    TopEntropyTokens,
    TruncatedIS,
)


@dataclass(frozen=True)
class Entry:
    """A strategy, and in what it is not like the others."""

    strategy: ClippingStrategy
    sequence_level: bool = False
    """Defined for one advantage a response."""
    window: bool = False
    """An unclipped token has the gradient r·A."""
    selects: bool = False
    """Leaves tokens out even at r = 1."""
    advantage_shift: float = 0.0
    """What is taken off every advantage."""
    penalty: bool = False
    """Pulls on tokens with A = 0, too."""
    stop_gradient: bool = False
    """The objective is a constant weight times log π, so that it is not the integral of its gradient."""
    damping: float = 0.0
    """alpha of a weight alpha·π_rollout + 1 − alpha."""


CATALOGUE: dict[str, Entry] = {
    "fixed": Entry(FixedClip(), window=True),
    "fixed_one_sided": Entry(FixedClip(low=0.0, high=float("inf")), window=True),
    "clip_higher": Entry(ClipHigher(), window=True),
    "asymmetric": Entry(AsymmetricClip(), window=True),
    "dual_clip": Entry(DualClip(), window=True),
    "no_clip": Entry(NoClip(), window=True),
    "bapo": Entry(BAPOClip(), window=True),
    "bapo_gradient_low_first": Entry(
        BAPOClip(contribution="gradient", order="low_first", weighting="none"), window=True
    ),
    "bapo_official": Entry(BAPOClip.official(), window=True),
    "m2po": Entry(M2PO(), window=True),
    "m2po_wide": Entry(M2PO(max_second_moment=2.0), window=True),
    "dcpo": Entry(DCPO(), window=True),
    "gspo": Entry(GSPO(), sequence_level=True),
    "gspo_wide": Entry(GSPO(low=0.7, high=1.3), sequence_level=True),
    "gspo_token": Entry(GSPOToken(low=0.7, high=1.3), stop_gradient=True),
    "gmpo": Entry(GMPO(), sequence_level=True),
    "cispo": Entry(CISPO(), stop_gradient=True),
    "cispo_two_sided": Entry(CISPO(low=0.8, high=1.2), stop_gradient=True),
    "sapo": Entry(SAPO()),
    "topr": Entry(TOPR(), stop_gradient=True),
    "asymre": Entry(AsymRE(), advantage_shift=-0.1, stop_gradient=True),
    "decoupled": Entry(DecoupledPPO()),
    "truncated_is": Entry(TruncatedIS()),
    "masked_is": Entry(MaskedIS()),
    "masked_is_around_bapo": Entry(MaskedIS(inner=BAPOClip())),
    "top_entropy": Entry(TopEntropyTokens(), selects=True),
    "top_entropy_of_gspo": Entry(
        TopEntropyTokens(inner=GSPO(), share=0.5), sequence_level=True, selects=True, stop_gradient=True
    ),
    "top_entropy_of_bapo": Entry(TopEntropyTokens(inner=BAPOClip(), share=0.5), selects=True),
    "clip_cov": Entry(ClipCov(share=0.3, low=0.1), selects=True),
    "kl_cov": Entry(KLCov(share=0.3), penalty=True),
    "kl_cov_of_fixed": Entry(KLCov(inner=FixedClip(), share=0.3), penalty=True),
    "decoupled_asymre": Entry(DecoupledPPO(inner=AsymRE()), advantage_shift=-0.1, stop_gradient=True),
    "masked_is_around_kl_cov": Entry(MaskedIS(inner=KLCov(share=0.3)), penalty=True),
    "low_probability_of_gmpo": Entry(
        LowProbabilityDamping(inner=GMPO()), sequence_level=True, damping=0.2, stop_gradient=True
    ),
    "low_probability": Entry(LowProbabilityDamping(), damping=0.2),
    "low_probability_of_top_entropy": Entry(
        LowProbabilityDamping(inner=TopEntropyTokens(share=0.5)), damping=0.2, selects=True
    ),
}
