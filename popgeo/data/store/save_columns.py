"""Division of flat graphs into blocks, and writing of blocks to a new or an unfinished folder."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, count, islice
from pathlib import Path

import numpy as np

from popgeo.data.columns import Columns
from popgeo.data.store.write_folder import FolderWriter
from popgeo.data.subset import take
from popgeo.progress import progress

BUFFER_BYTES = 1 << 26
"""Default number of bytes of graphs that a writer has in memory at a time."""
Blocks = Callable[[int], Iterator[Columns]]
"""A function that yields all graphs from number `start` on, in blocks."""


def blocks(columns: Columns, start: int, max_bytes: int) -> Iterator[Columns]:
    """Yield copies of the graphs from `start` on, in order, in blocks of at most `max_bytes` or of one graph.

    Args:
        columns: Flat graphs, also a view.
        start: The number of graphs to leave out.
        max_bytes: The largest number of bytes of a block with its copies.
    """
    ends = np.cumsum(bytes_of_graphs(columns))
    while start < len(columns):
        before = int(ends[start - 1]) if start else 0
        # `take` has the row numbers of a block and its arrays in memory at the same time.
        stop = max(start + 1, int(np.searchsorted(ends, before + max_bytes // 2, side="right")))
        yield take(columns, np.arange(start, stop))
        start = stop


def bytes_of_graphs(columns: Columns) -> np.ndarray:
    """Return the number of bytes of the tensors of each graph, int64 [num_graphs]."""
    total = np.zeros(len(columns), dtype=np.int64)
    for axis in columns.row_pointers:
        width = sum(
            a.tensor[(slice(None),) * a.dim + (slice(0, 1),)].numel() * a.tensor.element_size()
            for a in columns.attributes
            if a.axis == axis and a.is_tensor
        )
        total += columns.counts(axis) * (width + 8)
    return total


def extend(writer: FolderWriter, source: Blocks, total: int | None, progress_bar: bool | None) -> None:
    """Write the missing graphs of a source and finish the store.

    Args:
        writer: A writer of a new store, or of a store with a beginning.
        source: Blocks of the graphs.
        total: The number of graphs, if known.
        progress_bar: Whether to show a bar.

    Raises:
        ValueError: the beginning of the store has other graphs, or a graph cannot be added.
    """
    start = writer.num_graphs
    if not writer.is_complete:
        numbers = range(start, total) if total else count()
        bar = progress(numbers, f"writing {writer.folder.name}", "graph", progress_bar)
        parts = source(max(0, start - 1))
        if start:
            first = next(parts, None)
            if first is None:
                raise ValueError(f"{writer.part} was begun with more graphs: {start:,}. Remove it to start again.")
            writer.check_goes_on(first)
            rest = np.arange(1, first.num_stored)
            parts = chain([take(first, rest)] if len(rest) else [], parts)
        for part in parts:
            writer.append(part)
            for _ in islice(bar, part.num_stored):
                pass
    writer.finish()


def save_columns(columns: Columns, folder: Path, *, buffer_bytes: int, progress_bar: bool | None) -> None:
    """Write flat graphs, also a view, see `FlatStore.save`."""
    with FolderWriter(folder) as writer:
        extend(writer, partial(blocks, columns, max_bytes=buffer_bytes), len(columns), progress_bar)
