"""Negatives in graphs with times: both nodes of a negative exist at the time of its link."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from popgeo.random_numbers import keys_of, new_key
from popgeo.sampling.draw import Places, first_place
from popgeo.sampling.negatives import NegativeMode, NonEdges, below, destinations_of

_ATTEMPTS = 32  # pairs to try before the pairs without an edge are counted


@dataclass(frozen=True, kw_only=True, eq=False)
class TimedNonEdges:
    """The pairs of nodes without an edge, with the nodes in the order of their times.

    Args:
        non_edges: The pairs, as places in that order.
        nodes: The source and the destination at each place. int64 [num_sources], [num_destinations]
        times: The times of sources and of destinations, ascending.
    """

    non_edges: NonEdges
    nodes: tuple[Places, Places]
    times: tuple[NDArray, NDArray]

    @staticmethod
    def from_edge_index(
        edge_index: Tensor, num_nodes: tuple[int, int], times: tuple[Tensor | None, Tensor | None]
    ) -> "TimedNonEdges":
        """Return all pairs except the edges of `edge_index`.

        Args:
            edge_index: Source and destination of each edge. [2, num_edges]
            num_nodes: The numbers of sources and of destinations.
            times: The times of sources and of destinations; None if these nodes always exist.
        """
        known = [np.full(n, -np.inf) if t is None else t.numpy() for n, t in zip(num_nodes, times, strict=True)]
        source, destination = (np.argsort(of, kind="stable") for of in known)
        places = [torch.from_numpy(np.argsort(order)) for order in (source, destination)]
        ends = torch.stack([place[row.long()] for place, row in zip(places, edge_index, strict=True)])
        return TimedNonEdges(
            non_edges=NonEdges.from_edge_index(ends, num_nodes),
            nodes=(source, destination),
            times=(known[0][source], known[1][destination]),
        )

    def draw(
        self, positives: Tensor, times: Tensor, *, mode: NegativeMode | str, amount: float, seed: int
    ) -> tuple[Tensor, Tensor]:
        """Draw negatives for some positive edges; all pairs that exist at that time have the same probability.

        Args:
            positives: Source and destination of the positive edges. int64 [2, num_positives]
            times: The time of each positive. [num_positives]
            mode: See `sample_negatives`.
            amount: See `sample_negatives`.
            seed: Seed of the random numbers.

        Returns:
            Source and destination of each negative, with the negatives of a positive adjacent; and a mask, False if
            every pair that exists at that time has an edge. The positive is then in its place. [2, number], bool
            [number]

        Example:
            >>> edges, time = torch.tensor([[0, 1], [1, 2]]), torch.tensor([0, 1, 2, 9])
            >>> timed = TimedNonEdges.from_edge_index(edges, (4, 4), (time, time))
            >>> timed.draw(edges[:, :1], torch.tensor([1]), mode="triplet", amount=1, seed=0)
            (tensor([[0],
                    [0]]), tensor([True]))
        """
        number = math.ceil(positives.shape[1] * amount)
        of_positive = np.repeat(np.arange(positives.shape[1]), math.ceil(amount))[:number]
        # The nodes that exist at a time come first.
        sources, destinations = (np.searchsorted(own, times.numpy()[of_positive], side="right") for own in self.times)
        key = new_key(seed)
        if NegativeMode(mode) is NegativeMode.TRIPLET:
            source = np.argsort(self.nodes[0])[positives[0].numpy()][of_positive]
            free = destinations - self._joined(source, destinations)
            exists = free > 0
            rank = below(keys_of(key, np.arange(number)), np.maximum(free, 1))
            destination = destinations_of(self.non_edges, source, np.where(exists, rank, 0))
        else:
            source, destination, exists = self._pairs(sources, destinations, key)
        ends = [self.nodes[0][source], self.nodes[1][np.minimum(destination, len(self.nodes[1]) - 1)]]
        own = positives.numpy()[:, of_positive]
        return torch.from_numpy(np.where(exists, np.stack(ends), own)), torch.from_numpy(exists)

    def _joined(self, source: Places, limit: Places) -> Places:
        """Return the number of edges from each source to the first destinations."""
        rowptr, col = self.non_edges.rowptr.numpy(), self.non_edges.col.numpy()
        first = rowptr[source]
        return first_place(first, rowptr[source + 1], lambda places, rows: col[places] >= limit[rows]) - first

    def _pairs(self, sources: Places, destinations: Places, key: int) -> tuple[Places, Places, NDArray[np.bool_]]:
        """Return a pair without an edge among the first nodes for each entry, and whether there is such a pair."""
        number = len(sources)
        made, exists = np.zeros((2, number), np.int64), np.zeros(number, bool)
        waiting = np.flatnonzero((sources > 0) & (destinations > 0))
        for attempt in range(_ATTEMPTS):
            drawn = [
                below(keys_of(key, waiting + number * (2 * attempt + end)), limits[waiting])
                for end, limits in enumerate((sources, destinations))
            ]
            is_edge = self._joined(drawn[0], drawn[1] + 1) > self._joined(drawn[0], drawn[1])
            made[:, waiting], exists[waiting] = drawn, ~is_edge
            waiting = waiting[is_edge]
            if not len(waiting):
                break
        for i in waiting.tolist():  # nearly all pairs have an edge, so pairs without an edge are counted
            free = destinations[i] - self._joined(np.arange(sources[i]), np.full(sources[i], destinations[i]))
            total = np.cumsum(free)
            exists[i] = total[-1] > 0
            if exists[i]:
                rank = below(keys_of(key, np.array([i + 2 * number * _ATTEMPTS])), total[-1:])
                source = np.searchsorted(total, rank, side="right")
                rank = rank - (total[source] - free[source])
                made[:, i] = source[0], destinations_of(self.non_edges, source, rank)[0]
        return made[0], made[1], exists
