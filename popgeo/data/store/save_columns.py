"""Writes blocks of graphs to a folder, behind those that are there; flat graphs too."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, count, islice
from pathlib import Path

import numpy as np

from popgeo.data.columns import Columns
from popgeo.data.store.cut_blocks import blocks
from popgeo.data.store.write_folder import FolderWriter
from popgeo.data.subset import take
from popgeo.progress import progress

Blocks = Callable[[int], Iterator[Columns]]
"""`blocks(start)`: all graphs from number `start` on."""


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
