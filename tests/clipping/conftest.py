"""The strategies that run the common suite. A new strategy gets an entry here."""

import pytest

from bapo_lightning.clipping import BAPOClip, ClipHigher, ClippingStrategy, FixedClip

STRATEGIES: dict[str, ClippingStrategy] = {
    "fixed": FixedClip(),
    "fixed_one_sided": FixedClip(low=0.0, high=float("inf")),
    "clip_higher": ClipHigher(),
    "bapo": BAPOClip(),
    "bapo_gradient_low_first": BAPOClip(contribution="gradient", order="low_first", weighting="none"),
    "bapo_official": BAPOClip.official(),
}


@pytest.fixture(scope="session", params=STRATEGIES.values(), ids=STRATEGIES)
def strategy(request: pytest.FixtureRequest) -> ClippingStrategy:
    return request.param
