"""Cuts flat graphs into blocks of some bytes, and writes blocks to a folder, behind those that are there."""

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
"""Bytes of graphs that a writer holds at a time, by default."""
Blocks = Callable[[int], Iterator[Columns]]
"""`blocks(start)`: all graphs from number `start` on."""


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


def extend(writer: FolderWriter, source: Blocks, total: int | None, progress_bar: bool | None) -> None:
    """Writes what is not written yet of a source, and finishes.

    Args:
        writer: What may have been begun.
        source: Blocks of the graphs.
        total: How many graphs there are, if that is known.
        progress_bar: Whether to show a bar.

    Raises:
        ValueError: the source differs from the one that the writer was started with, or a graph cannot be added.
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
    """Writes flat graphs, also a view of some, as `FlatStore.save` says."""
    with FolderWriter(folder) as writer:
        extend(writer, partial(blocks, columns, max_bytes=buffer_bytes), len(columns), progress_bar)
