"""Asks the system for the graphs of coming batches, stretch by stretch, while batches are made from what is there."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from popgeo.data.flat_store import FlatStore
from popgeo.data.store.byte_ranges import ByteRanges
from popgeo.loader.chunk_order import ChunkOrder
from popgeo.packing import Packs

_BYTES_AT_ONCE = 1 << 20
"""Of one request to read ahead; the system may cut it to what the disk takes at once."""
_GRAPHS_AT_ONCE, _MOST_PENDING = 1024, 4096


class ReadAhead:
    """Reads a store on disk ahead of its use, one window of `ChunkOrder` before the batches.

    Args:
        store: A store on disk.
        order: How it is shuffled.
    """

    def __init__(self, store: FlatStore, order: ChunkOrder) -> None:
        self.store, self.order, self.ranges = store, order, ByteRanges(store)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="popgeo-read-ahead")
        self._packs: Packs | None = None
        self._asked = 0
        self._known: dict[int, int] = {}

    def expect(self, packs: Packs, start: int) -> None:
        """Says that the batches from number `start` on come next."""
        if packs is not self._packs:
            self._packs, self._asked, self._known = packs, 0, {}
        position, at_once = int(packs.ptr[start]), max(1, min(_GRAPHS_AT_ONCE, self.order.window // 8))
        # More chunks than packing can have pending: the order knows no chunks, and would ask for everything.
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
        for path, start, stop in self._stretches(chunks):
            handle = os.open(path, os.O_RDONLY)
            try:
                for offset in range(start, stop, _BYTES_AT_ONCE):
                    if hasattr(os, "posix_fadvise"):
                        os.posix_fadvise(handle, offset, _BYTES_AT_ONCE, os.POSIX_FADV_WILLNEED)
                    else:
                        os.pread(handle, _BYTES_AT_ONCE, offset)
            finally:
                os.close(handle)

    def _stretches(self, chunks: list[int]) -> Iterator[tuple[Path, int, int]]:
        for chunk in sorted(chunks):
            first = chunk * self.order.chunk
            last = min(first + self.order.chunk, self.store.num_stored)
            for path, start, length in self.ranges.of(first, last):
                yield path, start, start + length
