"""Clipping strategies: which tokens of an update keep their gradient, and what the others count.

One strategy a file. A strategy answers two calls (see `ClippingStrategy`): ``bounds`` once per optimizer step
with the whole update, ``surrogate`` once per micro-batch. docs/clipping.md compares them all.

Windows, the same for every token: ``fixed.py``, ``clip_higher.py``, ``asymmetric.py``, ``dual_clip.py``,
``no_clip.py``; searched at every update: ``bapo.py`` with ``bapo_search.py``, ``m2po.py``; for each token:
``dcpo.py``. For each response: ``gspo.py``, ``gspo_token.py``, ``gmpo.py``. Weights instead of windows:
``cispo.py``, ``sapo.py``, ``topr.py``, ``asymre.py``. Around another strategy: ``decoupled.py``,
``truncated_is.py``, ``masked_is.py``, ``top_entropy.py``, ``clip_cov.py``, ``kl_cov.py``, ``low_probability.py``.

What they share: ``base.py`` and ``records.py`` (the interface and its two records), ``surrogate.py`` (objectives
token by token), ``shares.py`` and ``bound_table.py`` (what positive and negative tokens contribute),
``inputs.py`` (checks), ``ranks.py``; ``open_window.py`` for weights, ``sequence.py`` for responses; ``around.py``,
``reweighted.py``, ``selector.py`` and ``proximal.py`` for strategies around another one.

To add one: a new file with a subclass of `ClippingStrategy` whose defaults are its source's, an import and an
``__all__`` entry here, ``configs/clipping/<file name>.yaml`` stating every argument, a row in docs/clipping.md, and
an entry in the table of strategies in ``tests/clipping/catalogue.py``, which runs the common properties over it. A
class that lives outside this package works from YAML by its class path and needs none of that
(docs/your_own_strategy.md).
"""

from bapo_lightning.clipping.around import UpdateTokens
from bapo_lightning.clipping.asymmetric import AsymmetricClip
from bapo_lightning.clipping.asymre import AsymRE
from bapo_lightning.clipping.bapo import BAPOClip
from bapo_lightning.clipping.base import ClippingStrategy, call_bounds
from bapo_lightning.clipping.cispo import CISPO
from bapo_lightning.clipping.clip_cov import ClipCov
from bapo_lightning.clipping.clip_higher import ClipHigher
from bapo_lightning.clipping.dcpo import DCPO
from bapo_lightning.clipping.decoupled import DecoupledPPO
from bapo_lightning.clipping.dual_clip import DualClip
from bapo_lightning.clipping.fixed import FixedClip
from bapo_lightning.clipping.gmpo import GMPO
from bapo_lightning.clipping.gspo import GSPO
from bapo_lightning.clipping.gspo_token import GSPOToken
from bapo_lightning.clipping.kl_cov import KLCov
from bapo_lightning.clipping.low_probability import LowProbabilityDamping
from bapo_lightning.clipping.m2po import M2PO
from bapo_lightning.clipping.masked_is import MaskedIS
from bapo_lightning.clipping.no_clip import NoClip
from bapo_lightning.clipping.records import ClipBounds, Surrogate
from bapo_lightning.clipping.reweighted import ReweightedStrategy, TokenWeights
from bapo_lightning.clipping.sapo import SAPO
from bapo_lightning.clipping.selector import TokenSelector
from bapo_lightning.clipping.shares import measure_shares
from bapo_lightning.clipping.surrogate import clipped_surrogate, objective_with_derivative, weighted_objective
from bapo_lightning.clipping.top_entropy import TopEntropyTokens
from bapo_lightning.clipping.topr import TOPR
from bapo_lightning.clipping.truncated_is import TruncatedIS

__all__ = [
    "CISPO",
    "DCPO",
    "GMPO",
    "GSPO",
    "M2PO",
    "SAPO",
    "TOPR",
    "AsymRE",
    "AsymmetricClip",
    "BAPOClip",
    "ClipBounds",
    "ClipCov",
    "ClipHigher",
    "ClippingStrategy",
    "DecoupledPPO",
    "DualClip",
    "FixedClip",
    "GSPOToken",
    "KLCov",
    "LowProbabilityDamping",
    "MaskedIS",
    "NoClip",
    "ReweightedStrategy",
    "Surrogate",
    "TokenSelector",
    "TokenWeights",
    "TopEntropyTokens",
    "TruncatedIS",
    "UpdateTokens",
    "call_bounds",
    "clipped_surrogate",
    "measure_shares",
    "objective_with_derivative",
    "weighted_objective",
]
