"""Cuts flat graphs into blocks that stay below a number of bytes."""

from collections.abc import Iterator

import numpy as np

from popgeo.data.columns import Columns
from popgeo.data.subset import take

BUFFER_BYTES = 1 << 26
"""Bytes of graphs that a writer holds at a time, by default."""


def blocks(columns: Columns, start: int, max_bytes: int) -> Iterator[Columns]:
    """Copies of the graphs from `start` on, in order, in blocks of at most that many bytes, or of one graph.

    Args:
        columns: Flat graphs, also a view of some.
        start: How many graphs to leave out.
        max_bytes: The most that a block holds, all its copies in memory together.
    """
    ends = np.cumsum(bytes_of_graphs(columns))
    while start < len(columns):
        before = int(ends[start - 1]) if start else 0
        # `take` holds the row numbers of a block, and its arrays, at the same time.
        stop = max(start + 1, int(np.searchsorted(ends, before + max_bytes // 2, side="right")))
        yield take(columns, np.arange(start, stop))
        start = stop


def bytes_of_graphs(columns: Columns) -> np.ndarray:
    """How many bytes the tensors of each graph have. int64 [num_graphs]"""
    total = np.zeros(len(columns), dtype=np.int64)
    for axis in columns.row_pointers:
        width = sum(
            a.tensor[(slice(None),) * a.dim + (slice(0, 1),)].numel() * a.tensor.element_size()
            for a in columns.attributes
            if a.axis == axis and a.is_tensor
        )
        total += columns.counts(axis) * (width + 8)
    return total
