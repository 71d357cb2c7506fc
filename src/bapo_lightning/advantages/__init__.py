"""Advantage estimators: from one reward per response to one advantage per response.

One estimator a file. Every token of a response carries its advantage.

- ``base.py``: the interface
- ``group.py``: rewards compared with those of the same prompt (GRPO, Dr. GRPO, RLOO)

To add one: a new file with a subclass of `AdvantageEstimator` whose defaults are its paper's, an import and
an ``__all__`` entry here, a test with numbers worked out by hand. A class that lives outside this package
works from YAML by its class path.
"""

from bapo_lightning.advantages.base import AdvantageEstimator
from bapo_lightning.advantages.group import GroupAdvantage, uniform_groups

__all__ = ["AdvantageEstimator", "GroupAdvantage", "uniform_groups"]
