"""Between which candidate bounds each ratio lies, in time that does not depend on the number of candidates."""

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

_MAX_CELLS = 2**14
_SLACK_CELLS = 0.125
"""How far a ratio may lie outside the cell that rounding puts it into; the true error is below 2^-9."""


@dataclass(frozen=True)
class BoundTable:
    """Sorted edges, and a grid of equal cells that says near which edge a ratio lies.

    A binary search over the fifty candidates of BAPO's defaults mispredicts its branches; one look-up and one
    comparison do not, and are exact all the same.
    """

    edges: Tensor
    """[E + 1] increasing, the last one infinite."""

    cell_bins: Tensor
    """[C] int64; how many edges lie below every ratio of a cell."""

    cells_per_unit: float
    """Cells per unit of the ratio."""

    max_edges_per_cell: int
    """Comparisons that settle a ratio."""

    @property
    def num_bins(self) -> int:
        """Number of edges plus one."""
        return len(self.edges)

    def bins(self, ratio: Tensor) -> Tensor:
        """Count the edges strictly below each ratio.

        Args:
            ratio: [N]; finite, >= 0, in the type of the edges.

        Returns:
            [N] int64, in 0 … E.
        """
        cells = (ratio * self.cells_per_unit).clamp_(max=len(self.cell_bins) - 1).int()
        bins = self.cell_bins.index_select(0, cells)
        for _ in range(self.max_edges_per_cell):
            bins = bins + (ratio > self.edges.index_select(0, bins))
        return bins


@lru_cache(maxsize=32)
def bound_table(lows: tuple[float, ...], highs: tuple[float, ...], dtype: torch.dtype, device: str) -> BoundTable:
    """Build the table of some candidate bounds.

    A ratio on an upper bound is below it, one on a lower bound above it: neither is clipped.

    Args:
        lows: Lower bounds, increasing, <= 1.
        highs: Upper bounds, increasing, >= 1.
        dtype: Type of the ratios.
        device: Where they lie.

    Returns:
        A table with one edge for each bound, in this order.
    """
    below = torch.nextafter(torch.tensor(lows, dtype=dtype), torch.tensor(-1.0, dtype=dtype))
    edges = torch.cat([below, torch.tensor(highs, dtype=dtype)])
    exact = edges.double()
    gaps = exact.diff()
    smallest_gap = gaps.min().item() if len(gaps) else 1.0
    span = max(exact.max().item(), 1.0)
    cell = max(smallest_gap / 2.0, span / (_MAX_CELLS - 2))
    starts = torch.arange(math.ceil(span / cell) + 2, dtype=torch.float64)
    cell_bins = torch.searchsorted(exact, (starts - _SLACK_CELLS) * cell)
    bins_above = torch.searchsorted(exact, (starts + 1.0 + _SLACK_CELLS) * cell)
    return BoundTable(
        edges=torch.cat([edges, torch.tensor([math.inf], dtype=dtype)]).to(device),
        cell_bins=cell_bins.to(device),
        cells_per_unit=1.0 / cell,
        max_edges_per_cell=int((bins_above - cell_bins).max()),
    )
