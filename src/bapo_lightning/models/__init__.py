"""The policy and its reference: loading, scoring sampled tokens, LoRA.

What belongs here: anything that holds or reads weights. `Policy` wraps one Hugging Face causal language model;
`token_log_probs` turns hidden states into log-probs and entropies; `make_reference` gives the frozen model that a KL
term compares with. To train a model that transformers does not load, subclass `Policy` and override `build_model`.
"""

from bapo_lightning.models.digest import weights_digest
from bapo_lightning.models.lora import LoRA
from bapo_lightning.models.policy import Policy, TokenScores
from bapo_lightning.models.reference import Reference, make_reference

__all__ = ["LoRA", "Policy", "Reference", "TokenScores", "make_reference", "weights_digest"]
