"""A random order that reads a disk in stretches: chunks are shuffled, and graphs within a window of chunks."""

from dataclasses import dataclass

import numpy as np
import torch

from popgeo.data.flat_store import FlatStore
from popgeo.data.store.byte_ranges import is_on_disk, mean_bytes

SHUFFLE_BYTES = 1 << 28
"""Bytes of graphs among which a store on disk is shuffled, unless the loader is told otherwise."""
_CHUNKS_OF_A_WINDOW = 64


@dataclass(frozen=True, kw_only=True)
class ChunkOrder:
    """How a store on disk is shuffled.

    Its graphs are cut, as they lie, into chunks. Each epoch draws an order of the chunks, takes `window` graphs' worth
    of them at a time, and draws an order of the graphs of these. So every graph comes once an epoch, at a place that is
    uniformly random but for the chunk that it shares with its neighbours on disk: two graphs of one chunk always come
    within one window of each other, where in a plain shuffle they would with a chance of `window / num_graphs`. In a
    batch two given graphs of one window meet as in a plain shuffle of that window.

    Args:
        chunk: Graphs that lie beside each other and stay in one window.
        window: Graphs that are shuffled with each other: those of many chunks.
    """

    chunk: int
    window: int

    @classmethod
    def of(cls, store: FlatStore, shuffle_bytes: int) -> "ChunkOrder | None":
        """How to shuffle a store; None where it lies in memory, or where all of it is one window."""
        if not is_on_disk(store):
            return None
        window = max(_CHUNKS_OF_A_WINDOW, int(shuffle_bytes / max(1.0, mean_bytes(store))))
        return cls(chunk=window // _CHUNKS_OF_A_WINDOW, window=window) if window < len(store) else None

    def draw(self, places: np.ndarray, generator: torch.Generator) -> np.ndarray:
        """Positions in a random order.

        Args:
            places: Where on disk the graph at each position lies. int64 [num_graphs]
            generator: Source of randomness.

        Returns:
            Each position once. int64 [num_graphs]

        Example:
            >>> order = ChunkOrder(chunk=2, window=4).draw(np.arange(9), torch.Generator().manual_seed(0))
            >>> sorted(order.tolist())
            [0, 1, 2, 3, 4, 5, 6, 7, 8]
        """
        on_disk = np.argsort(places, kind="stable")
        num_chunks = -(-len(places) // self.chunk)
        chunks = torch.randperm(num_chunks, generator=generator).numpy()
        inside = chunks[:, None] * self.chunk + np.arange(self.chunk)
        order = on_disk[inside[inside < len(places)]]
        for start in range(0, len(order), self.window):
            part = order[start : start + self.window]
            part[:] = part[torch.randperm(len(part), generator=generator).numpy()]
        return order
