"""Several sequences in one row of a batch: which go together, so that rows hold little padding."""

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass

_WIDTHS = (1.0, 1.25, 1.5, 1.75, 2.0)
"""Row widths that are tried, in units of the longest sequence. Wider rows pad less and cost more attention."""
_FULL = 0.98
"""Share of the room at which no wider row is tried."""


@dataclass(frozen=True)
class PackedRows:
    """Which sequences stand in which row."""

    rows: tuple[tuple[int, ...], ...]
    """For each row the numbers of its sequences, in the order in which they stand."""

    width: int
    """Tokens of a row."""

    num_tokens: int
    """Tokens of all sequences in the rows."""

    @property
    def num_positions(self) -> int:
        """Tokens and padding."""
        return len(self.rows) * self.width

    @property
    def padding_share(self) -> float:
        """Share of the positions without a token, in [0, 1)."""
        return 1.0 - self.num_tokens / self.num_positions


def pack(lengths: Sequence[int], most_positions: int | None = None) -> PackedRows:
    """Put sequences into rows of one width that hold little padding.

    Args:
        lengths: Tokens of each sequence, at least one sequence.
        most_positions: What all rows may have together, at least the longest sequence; sequences that no longer fit
            are left out, short ones first. None is no bound: all are placed.

    Returns:
        The narrowest rows with little padding that leave no room for more, or those that hold the most.
    """
    longest = max(max(lengths), 1)
    best: PackedRows | None = None
    for factor in _WIDTHS:
        width = int(longest * factor)
        if most_positions is not None and width > most_positions:
            break
        rows = best_fit(lengths, width, None if most_positions is None else most_positions // width)
        # A row that nothing fills is as wide as it must be.
        width = max(sum(lengths[number] for number in row) for row in rows)
        found = PackedRows(rows, max(width, 1), sum(lengths[number] for row in rows for number in row))
        if best is None or (found.num_tokens, -found.num_positions) > (best.num_tokens, -best.num_positions):
            best = found
        full = sum(lengths) if most_positions is None else min(_FULL * most_positions, sum(lengths))
        if best.num_tokens >= full and (most_positions is not None or best.num_positions == best.num_tokens):
            break
    assert best is not None
    return best


def best_fit(lengths: Sequence[int], width: int, most_rows: int | None = None) -> tuple[tuple[int, ...], ...]:
    """The longest sequence first, each into the fullest row with room for it (best-fit decreasing).

    Args:
        lengths: Tokens of each sequence; none longer than ``width``.
        width: Tokens of a row.
        most_rows: Sequences that need more rows than these are left out; None is no bound.

    Returns:
        For each row the numbers of its sequences.
    """
    rows: list[list[int]] = []
    free: list[tuple[int, int]] = []
    """Room and number of every row, in rising order."""
    for number in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        place = bisect_left(free, (lengths[number], 0))
        if place < len(free):
            room, row = free.pop(place)
        elif most_rows is None or len(rows) < most_rows:
            room, row = width, len(rows)
            rows.append([])
        else:
            continue
        rows[row].append(number)
        insort(free, (room - lengths[number], row))
    return tuple(map(tuple, rows))
