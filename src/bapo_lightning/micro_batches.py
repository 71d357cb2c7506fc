"""How an update is cut into parts that fit into memory."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch

from bapo_lightning.errors import InputError
from bapo_lightning.packing import best_fit, pack
from bapo_lightning.types import TokenBatch


@dataclass(frozen=True)
class MicroBatch:
    """Some responses of an update, cut to their own width."""

    batch: TokenBatch
    """Responses ``start … stop-1`` of the update."""

    start: int
    stop: int

    @property
    def width(self) -> int:
        """Response tokens of the longest response in it."""
        return self.batch.response_ids.shape[1]


def cut_by_responses(batch: TokenBatch, size: int | None) -> list[MicroBatch]:
    """Cut an update into parts of at most ``size`` responses, in order; None leaves it whole."""
    size = size or max(batch.num_responses, 1)
    starts = range(0, batch.num_responses, size)
    return _parts(batch, [*starts, batch.num_responses] if batch.num_responses else [])


def cut_by_tokens(
    batch: TokenBatch, most_tokens: int, *, one_row: bool, packs: bool = True, at_least: int = 1
) -> tuple[TokenBatch, list[MicroBatch]]:
    """Cut an update into as few parts of at most so many tokens as there can be, all of about the same size.

    The first part has the longest responses, so an update that does not fit into memory fails at once.

    Args:
        batch: The update.
        most_tokens: Tokens in one part, prompts included.
        one_row: Parts are read as one row without padding; otherwise in rows as long as the longest response of the
            part, and what stays empty counts.
        packs: Whether a row may hold several responses.
        at_least: Make so many parts where there are as many responses, for ranks that wait for others anyway.

    Returns:
        The responses of the update, in the order of the parts; and the parts.

    Raises:
        InputError: One response alone has more tokens.
    """
    lengths: list[int] = batch.lengths.tolist()
    if not lengths:
        return batch, []
    longest = max(lengths)
    if longest > most_tokens:
        raise InputError(
            f"model.micro_batch_tokens is {most_tokens}, less than the {longest} tokens of one prompt and response; "
            f"raise it to at least {longest}"
        )

    def divide(limit: int) -> list[list[int]]:
        return _fill_rows(lengths, limit) if one_row else _fill_parts(lengths, limit, packs)

    wanted = max(len(divide(most_tokens)), min(at_least, len(lengths)))
    # The smallest limit that still gives as few parts makes them even.
    low, high = longest, most_tokens
    while low < high:
        middle = (low + high) // 2
        if len(divide(middle)) <= wanted:
            high = middle
        else:
            low = middle + 1
    division = divide(low)
    order = torch.tensor([number for part in division for number in part], device=batch.response_ids.device)
    cuts = [0, *accumulate(len(part) for part in division)]
    batch = batch.take(order)
    return batch, _parts(batch, cuts)


def _fill_rows(lengths: Sequence[int], limit: int) -> list[list[int]]:
    """Every part is one row of at most so many tokens."""
    return [list(row) for row in best_fit(lengths, limit)]


def _fill_parts(lengths: Sequence[int], limit: int, packs: bool) -> list[list[int]]:
    """Every part is as many rows as fit; the longest sequences first, and short ones where they fill a row up."""
    waiting = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    parts: list[list[int]] = []
    while waiting:
        sizes = [lengths[number] for number in waiting]
        if packs:
            part = sorted(place for row in pack(sizes, limit).rows for place in row)
        else:
            part = list(range(min(len(waiting), max(limit // max(sizes[0], 1), 1))))
        parts.append([waiting[place] for place in part])
        taken = set(part)
        waiting = [number for place, number in enumerate(waiting) if place not in taken]
    return parts


def _parts(batch: TokenBatch, cuts: Sequence[int]) -> list[MicroBatch]:
    return [MicroBatch(batch.rows(a, b), a, b) for a, b in pairwise(cuts)]
