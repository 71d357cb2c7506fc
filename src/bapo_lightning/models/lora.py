"""Low-rank adapters through peft, as settings that a YAML can hold."""

from dataclasses import dataclass

from bapo_lightning.errors import InputError


@dataclass(frozen=True)
class LoRA:
    """Train low-rank adapters and freeze everything else; the reference is then the policy with adapters off.

    Dropout is not offered: a log-prob pass with dropout is not the policy that sampled (rule 1 of the design).

    Raises:
        InputError: A value is out of its range.
    """

    rank: int = 16
    """Rank of each adapter, ≥ 1."""

    alpha: int = 32
    """Scale: the adapter's output is multiplied by alpha / rank; > 0."""

    target_modules: str | list[str] = "all-linear"
    """Names of the layers that get an adapter, or ``all-linear`` for every linear layer except the head."""

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise InputError(f"model.policy.lora.rank must be at least 1, got {self.rank}")
        if self.alpha <= 0:
            raise InputError(f"model.policy.lora.alpha must be > 0, got {self.alpha}")
