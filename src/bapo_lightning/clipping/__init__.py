"""Clipping strategies: which tokens of an update keep their gradient, and what the others count.

One strategy a file. A strategy answers two calls (see `ClippingStrategy`): ``bounds`` once per optimizer step
with the whole update, ``surrogate`` once per micro-batch.

- ``base.py``: the interface and the two records, `ClipBounds` and `Surrogate`
- ``surrogate.py``: the clipped PPO objective that window strategies share
- ``shares.py``: how much positive and negative tokens contribute, summed over tokens and ranks
- ``fixed.py``, ``clip_higher.py``: windows that never move
- ``bapo.py``, ``bapo_search.py``: the window that is searched at every update (arXiv 2510.18927)

To add one: a new file with a subclass of `ClippingStrategy` whose defaults are its paper's, an import and an
``__all__`` entry here, ``configs/clipping/<file name>.yaml`` stating every argument, and an entry in the
table of strategies in ``tests/clipping/conftest.py``, which runs the common properties over it. A class that
lives outside this package works from YAML by its class path and needs none of that.
"""

from bapo_lightning.clipping.bapo import BAPOClip
from bapo_lightning.clipping.base import ClipBounds, ClippingStrategy, Surrogate
from bapo_lightning.clipping.clip_higher import ClipHigher
from bapo_lightning.clipping.fixed import FixedClip
from bapo_lightning.clipping.surrogate import clipped_surrogate

__all__ = [
    "BAPOClip",
    "ClipBounds",
    "ClipHigher",
    "ClippingStrategy",
    "FixedClip",
    "Surrogate",
    "clipped_surrogate",
]
