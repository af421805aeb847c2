"""A random order that reads a disk in chunks: chunks are shuffled, and graphs are shuffled within a window of chunks.

While batches are made, the operating system already reads the graphs of later batches.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import torch

from popgeo.data.flat_store import FlatStore
from popgeo.data.store.mapped import file_of
from popgeo.data.store.save_columns import bytes_of_graphs
from popgeo.packing import Packs

SHUFFLE_BYTES = 1 << 28
"""Default number of bytes of graphs among which a store on disk is shuffled."""
_CHUNKS_OF_A_WINDOW = 64
_BYTES_AT_ONCE = 1 << 20
"""Bytes of one request to read ahead; the system may shorten it to the limit of the disk."""
_GRAPHS_AT_ONCE, _MOST_PENDING = 1024, 4096


@dataclass(frozen=True, kw_only=True)
class ChunkOrder:
    """A random order of a store on disk.

    The graphs are cut into chunks in their order on disk. Each epoch draws an order of the chunks. It then takes chunks
    that contain `window` graphs together, and draws an order of these graphs. Every graph comes once per epoch, at a
    uniformly random place, with one exception: two graphs of the same chunk are always within one window. In a plain
    shuffle the chance of this is `window / num_graphs`. Two graphs of one window share a batch with the same chance as
    in a plain shuffle of that window.

    Args:
        chunk: Number of consecutive graphs that stay in one window.
        window: Number of graphs, from many chunks, that are shuffled with each other.
    """

    chunk: int
    window: int

    @classmethod
    def of(cls, store: FlatStore, shuffle_bytes: int) -> "ChunkOrder | None":
        """Return the order for a store, or None if the store is in memory or fits one window."""
        if all(file_of(attribute.values) is None for attribute in store.attributes):
            return None
        num_bytes = max(1.0, float(bytes_of_graphs(store).mean())) if len(store) else 1.0
        window = max(_CHUNKS_OF_A_WINDOW, int(shuffle_bytes / num_bytes))
        return cls(chunk=window // _CHUNKS_OF_A_WINDOW, window=window) if window < len(store) else None

    def draw(self, places: np.ndarray, generator: torch.Generator) -> np.ndarray:
        """Draw a random order of positions.

        Args:
            places: Place on disk of the graph at each position. int64 [num_graphs]
            generator: Source of randomness.

        Returns:
            Each position once. int64 [num_graphs]

        Example:
            >>> order = ChunkOrder(chunk=2, window=4).draw(np.arange(9), torch.Generator().manual_seed(0))
            >>> sorted(order.tolist())
            [0, 1, 2, 3, 4, 5, 6, 7, 8]
        """
        on_disk = np.argsort(places, kind="stable")
        chunks = torch.randperm(-(-len(places) // self.chunk), generator=generator).numpy()
        inside = chunks[:, None] * self.chunk + np.arange(self.chunk)
        order = on_disk[inside[inside < len(places)]]
        for start in range(0, len(order), self.window):
            part = order[start : start + self.window]
            part[:] = part[torch.randperm(len(part), generator=generator).numpy()]
        return order


class ByteRanges:
    """The byte ranges of a store's graphs in its files.

    Args:
        columns: A flat store; arrays in memory are left out.
    """

    def __init__(self, columns: FlatStore) -> None:
        self.runs: list[tuple[Path, int, int, np.ndarray]] = []
        """For each stretch of a file: the file, the first byte of graph 0, the bytes of a row, and the row pointer."""
        for attribute in columns.attributes:
            file = file_of(attribute.values)
            if file is None:
                continue
            shape, dim = attribute.tensor.shape, attribute.dim
            row_bytes = prod(shape[dim + 1 :]) * attribute.tensor.element_size()
            pointer = columns.row_pointers[attribute.axis].numpy()
            for outer in range(prod(shape[:dim])):
                self.runs.append((file.path, outer * shape[dim] * row_bytes, row_bytes, pointer))

    def of(self, first: int, stop: int) -> list[tuple[Path, int, int]]:
        """Return the file, first byte and end of each byte range with the stored graphs `first` to `stop - 1`."""
        spans = ((path, start + row_bytes * pointer[[first, stop]]) for path, start, row_bytes, pointer in self.runs)
        return [(path, int(begin), int(end)) for path, (begin, end) in spans if end > begin]


class ReadAhead:
    """A reader of a store on disk that is one window of `ChunkOrder` ahead of the batches.

    Args:
        store: The store.
        order: Its random order.
    """

    def __init__(self, store: FlatStore, order: ChunkOrder) -> None:
        self.store, self.order, self.ranges = store, order, ByteRanges(store)
        self._process: int | None = None
        self._packs: Packs | None = None
        self._asked = 0
        self._known: dict[int, int] = {}

    def expect(self, packs: Packs, start: int) -> None:
        """Request the graphs of batch `start` and later batches from the operating system."""
        if packs is not self._packs:
            self._packs, self._asked, self._known = packs, 0, {}
        if self._process != os.getpid():  # a forked child has no thread of its parent
            self._thread, self._process = ThreadPoolExecutor(1, "popgeo-read-ahead"), os.getpid()
        position, at_once = int(packs.ptr[start]), max(1, min(_GRAPHS_AT_ONCE, self.order.window // 8))
        # With more new chunks than this the packs are not in the order of chunks, so requests would cover the file.
        most_chunks = 2 * max(self.order.window, _MOST_PENDING) // self.order.chunk
        while self._asked < min(position + self.order.window, packs.num_graphs):
            ids = packs.indices[self._asked : self._asked + at_once]
            self._asked += len(ids)
            chunks = np.unique(self.store.rows(ids) // self.order.chunk).tolist()
            new = [chunk for chunk in chunks if chunk not in self._known]
            self._known.update(dict.fromkeys(chunks, self._asked))
            if 0 < len(new) <= most_chunks:
                self._known = {c: seen for c, seen in self._known.items() if seen > self._asked - 2 * self.order.window}
                self._thread.submit(self._read, new)

    def _read(self, chunks: list[int]) -> None:
        for chunk in chunks:
            first = chunk * self.order.chunk
            for path, start, stop in self.ranges.of(first, min(first + self.order.chunk, self.store.num_stored)):
                with path.open("rb", buffering=0) as file:
                    for offset in range(start, stop, _BYTES_AT_ONCE):
                        if hasattr(os, "posix_fadvise"):
                            os.posix_fadvise(file.fileno(), offset, _BYTES_AT_ONCE, os.POSIX_FADV_WILLNEED)
                        else:
                            os.pread(file.fileno(), _BYTES_AT_ONCE, offset)
