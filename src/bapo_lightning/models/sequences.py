"""Prompts and responses as the sequences that a model reads: no padding between them, and little or none after them."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bapo_lightning.packing import pack
from bapo_lightning.types import TokenBatch

log = logging.getLogger(__name__)

_LARGEST_DIFFERENCE = 0.03
"""Relative; rounding to bf16 stays below, and attention to the wrong tokens does not."""


@dataclass(frozen=True)
class Sequences:
    """What a model reads, and where it says something about the sampled tokens.

    K is the number of sampled tokens of the batch, in the order of ``batch.response_ids[batch.response_mask]``.
    """

    inputs: dict[str, Tensor]
    """Arguments for the model."""

    rows: Tensor
    """[K] int64; row of the hidden states."""

    positions: Tensor
    """[K] int64; position of the state that each sampled token was drawn from, one before the token."""

    def select(self, states: Tensor) -> Tensor:
        """Pick the states of the sampled tokens.

        Args:
            states: [rows, positions, …]; hidden states or logits of the model.

        Returns:
            [K, …]
        """
        return states[self.rows, self.positions]


def in_rows(batch: TokenBatch) -> Sequences:
    """One row a response, padded at its end only.

    A causal model does not look ahead, so padding at the end needs no mask, and attention may use its fast causal
    kernels.

    Args:
        batch: B responses.

    Returns:
        ``input_ids`` [B, L], L being the longest prompt with its response.
    """
    aligned = _Aligned(batch)
    ids = aligned.ids if len(aligned.ids) else aligned.ids.new_zeros(1, 1)  # a model cannot read nothing
    return Sequences({"input_ids": ids}, aligned.rows, aligned.positions)


def in_packed_rows(batch: TokenBatch) -> Sequences:
    """Rows of one width, each holding as many responses as fit.

    Position ids tell where a response begins, and transformers keeps attention within it.

    Args:
        batch: B responses.

    Returns:
        ``input_ids`` and ``position_ids`` [R, L], R ≤ B; what `in_rows` gives where no row would hold two.
    """
    lengths: list[int] = batch.lengths.tolist()
    if not lengths:
        return in_rows(batch)
    packed = pack(lengths)
    if len(packed.rows) == len(lengths):
        return in_rows(batch)
    row_of, start_of = [0] * len(lengths), [0] * len(lengths)
    for row, members in enumerate(packed.rows):
        start = 0
        for member in members:
            row_of[member], start_of[member] = row, start
            start += lengths[member]
    return _placed(batch, row_of, start_of, len(packed.rows), packed.width)


def in_one_row(batch: TokenBatch) -> Sequences:
    """All responses one after the other, without any padding: what flash-attention kernels take sequence by sequence.

    Args:
        batch: B responses.

    Returns:
        ``input_ids`` and ``position_ids`` [1, N], N being all tokens.
    """
    lengths: list[int] = batch.lengths.tolist()
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    return _placed(batch, [0] * len(lengths), starts, 1, max(sum(lengths), 1))


def _placed(batch: TokenBatch, row_of: Sequence[int], start_of: Sequence[int], num_rows: int, width: int) -> Sequences:
    aligned = _Aligned(batch)
    device = aligned.ids.device
    row, start = (torch.tensor(values, device=device, dtype=torch.int64).unsqueeze(1) for values in (row_of, start_of))
    steps = torch.arange(aligned.ids.shape[1], device=device)
    is_token = steps < aligned.lengths.unsqueeze(1)
    places = (row.expand_as(is_token)[is_token], (start + steps)[is_token])
    # Position 0 again and again: every padding token is a sequence of its own.
    ids, position_ids = (torch.zeros(num_rows, width, device=device, dtype=torch.int64) for _ in range(2))
    ids[places] = aligned.ids[is_token]
    position_ids[places] = steps.expand_as(is_token)[is_token]
    inputs = {"input_ids": ids, "position_ids": position_ids}
    return Sequences(inputs, row[aligned.rows, 0], start[aligned.rows, 0] + aligned.positions)


@torch.no_grad()
def keeps_sequences_apart(model: Any) -> bool:
    """Try whether position ids that begin again keep the sequences of a row from seeing each other.

    Args:
        model: A causal language model of transformers.

    Returns:
        False, with a line in the log, if states of the second sequence differ by more than rounding from those that it
        has alone.
    """
    device = model.get_input_embeddings().weight.device
    ids = torch.arange(3, 11, device=device).remainder(model.get_input_embeddings().num_embeddings)
    places = torch.tensor([0, 1, 2, 3, 0, 1, 2, 3], device=device)
    try:
        together = model.base_model(input_ids=ids[None], position_ids=places[None], use_cache=False).last_hidden_state
    except (TypeError, ValueError) as error:  # a model without position ids
        log.info("responses are scored one in a row: %s", error)
        return False
    alone = model.base_model(input_ids=ids[None, 4:], use_cache=False).last_hidden_state[0].float()
    difference = float((together[0, 4:].float() - alone).norm() / alone.norm())
    if difference > _LARGEST_DIFFERENCE:
        log.info("responses are scored one in a row: %s lets those of a row see each other", type(model).__name__)
    return difference <= _LARGEST_DIFFERENCE


class _Aligned:
    """Every response moved to the end of its prompt, and both to the left.

    Attributes:
        ids: [B, L]
        lengths: [B]
        rows: [K]; response of each sampled token.
        positions: [K]; where the state before it stands.
    """

    def __init__(self, batch: TokenBatch) -> None:
        prompt_lengths = batch.prompt_mask.sum(1)
        self.lengths = batch.lengths
        joined = torch.cat([batch.prompt_ids, batch.response_ids], dim=1)
        longest = int(self.lengths.max()) if self.lengths.numel() else 1
        shift = batch.prompt_ids.shape[1] - prompt_lengths
        places = torch.arange(max(longest, 1), device=joined.device) + shift.unsqueeze(1)
        self.ids = joined.gather(1, places.clamp(max=joined.shape[1] - 1))
        self.rows, tokens = batch.response_mask.nonzero(as_tuple=True)
        self.positions = (prompt_lengths[self.rows] + tokens - 1).clamp(min=0)
