"""What `bounds` is given, checked and ready for sums; and checks on arguments that several strategies share."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bapo_lightning.errors import InputError


@dataclass(frozen=True)
class Tokens:
    """The tokens of an update, [B, T]. What is masked has advantage and weight 0 and a ratio of 1."""

    log_ratio: Tensor
    """Nats; float32 or wider."""

    advantages: Tensor
    """In the type of ``log_ratio``."""

    weight: Tensor
    """What a token weighs in a share: π_rollout where it is given, else 1; 0 where it is masked."""

    mask: Tensor
    """Bool; True for tokens in the loss."""

    unusable: Tensor
    """Bool; unmasked tokens with something that is NaN or infinite. They take part in nothing."""

    origin: dict[str, Tensor]
    """What was given, by name."""

    def require_usable(self, num_unusable: float) -> None:
        """Refuse values that are NaN or infinite.

        Args:
            num_unusable: The sum of ``unusable`` over all ranks. It travels with the sums of a strategy, so that the
                check costs no transfer and stops every rank alike.

        Raises:
            InputError: There are such values; names how many, and the first one of this rank.
        """
        refuse_unusable(num_unusable, self.unusable, **self.origin)


def refuse_unusable(num_unusable: float, here: Tensor, **tensors: Tensor) -> None:
    """Refuse values that are NaN or infinite, on every rank alike.

    Args:
        num_unusable: How many there are over all ranks.
        here: [B, T] bool; where they are on this rank.
        tensors: [B, T]; what may hold them, by name.

    Raises:
        InputError: There are such values; names how many, and the first one of this rank.
    """
    if num_unusable == 0:
        return
    positions = here.nonzero()
    names = " or ".join(tensors)
    if len(positions) == 0:
        raise InputError(f"{num_unusable:.0f} tokens of other ranks have a {names} that is NaN or infinite")
    row, column = positions[0].tolist()
    values = {name: float(tensor[row, column]) for name, tensor in tensors.items()}
    name, value = next((n, v) for n, v in values.items() if not math.isfinite(v))
    raise InputError(
        f"{num_unusable:.0f} of the tokens in the loss have a {names} that is NaN or infinite; the first: {name} is "
        f"{value} at response {row}, token {column}. If it is not the data, the weights have diverged: go back to a "
        "checkpoint with a lower learning rate"
    )


def clean_tokens(
    log_ratio: Tensor, advantages: Tensor, mask: Tensor, rollout_log_probs: Tensor | None = None
) -> Tokens:
    """Check the inputs of `bounds` and drop what is masked. No transfer to the host.

    Args:
        log_ratio: [B, T] nats; half precision is raised to float32.
        advantages: [B, T].
        mask: [B, T] bool.
        rollout_log_probs: [B, T] nats. None: tokens weigh 1.

    Returns:
        The tokens.

    Raises:
        InputError: Shapes differ.
    """
    origin = {"log_ratio": log_ratio.detach(), "advantages": advantages}
    if rollout_log_probs is not None:
        origin["rollout_log_probs"] = rollout_log_probs
    require_shapes(mask=mask, **origin)
    dtype = torch.float64 if log_ratio.dtype == torch.float64 else torch.float32
    mask = mask.bool()
    usable = mask
    for tensor in origin.values():
        usable = usable & tensor.isfinite()

    def kept(tensor: Tensor) -> Tensor:
        return torch.where(usable, tensor.to(dtype), 0.0)

    weight = usable.to(dtype)
    if rollout_log_probs is not None:
        weight = weight * kept(rollout_log_probs).exp()
    return Tokens(
        log_ratio=kept(origin["log_ratio"]),
        advantages=kept(advantages),
        weight=weight,
        mask=mask,
        unusable=mask & ~usable,
        origin=origin,
    )


def require_shapes(**tensors: Tensor | None) -> None:
    """Refuse inputs of different shapes.

    Raises:
        InputError: Names all of them.
    """
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items() if tensor is not None}
    if len(set(shapes.values())) > 1 or any(len(shape) != 2 for shape in shapes.values()):
        listed = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
        raise InputError(f"the inputs of a clipping strategy must all be [responses, tokens], got {listed}")


def require_given(tensor: Tensor | None, name: str, why: str) -> Tensor:
    """Refuse to go on without an input.

    Returns:
        The tensor.

    Raises:
        InputError: It is None.
    """
    if tensor is None:
        raise InputError(f"{why} needs {name}, got None")
    return tensor


def require_window(low: float, high: float) -> None:
    """Check a pair of fixed ratio bounds.

    Raises:
        InputError: A bound is on the wrong side of 1, as an epsilon would be.
    """
    if not 0.0 <= low <= 1.0:
        raise InputError(f"low must be a ratio bound in [0, 1], got {low}; for an epsilon e give 1 - e")
    if not high >= 1.0:
        raise InputError(f"high must be a ratio bound >= 1, got {high}; for an epsilon e give 1 + e")


def require_number(name: str, value: float, *, above: float = -math.inf, at_least: float = -math.inf) -> float:
    """Check an argument that must be a finite number.

    Returns:
        The value, as a float.

    Raises:
        InputError: It is NaN, infinite, or too small.
    """
    if not (math.isfinite(value) and value > above and value >= at_least):
        limit = f" > {above:g}" if above > -math.inf else f" >= {at_least:g}" if at_least > -math.inf else ""
        raise InputError(f"{name} must be a finite number{limit}, got {value}")
    return float(value)


def require_fraction(name: str, value: float) -> float:
    """Check an argument that must lie in (0, 1].

    Returns:
        The value, as a float.

    Raises:
        InputError: It does not.
    """
    if not 0.0 < value <= 1.0:
        raise InputError(f"{name} must lie in (0, 1], got {value}")
    return float(value)
