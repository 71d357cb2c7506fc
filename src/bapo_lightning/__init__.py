"""bapo_lightning: off-policy RL for reasoning LLMs with BAPO (arXiv 2510.18927) and rival clipping rules."""

__version__ = "0.1.0.dev0"
