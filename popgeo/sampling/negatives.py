"""Negatives for link prediction: a fixed number of pairs of nodes without an edge, or of random pairs.

    non_edges = NonEdges.from_edge_index(edge_index, num_nodes)  # once
    negatives = sample_negatives(edge_index[:, batch], non_edges, amount=2, seed=step)

No pair is drawn and then rejected for its edge. A number is drawn below the count of pairs without an edge, and two
binary searches find the pair of this number. So all pairs have the same probability in graphs of any density, and a
node without a negative is an error instead of an endless search.
"""

import math
from dataclasses import dataclass
from enum import Enum

import numpy as np
import torch
from torch import Tensor

from popgeo.random_numbers import Words, hash64, keys_of, new_key
from popgeo.sampling.compressed_graph import CompressedGraph, check_edge_index
from popgeo.sampling.draw import Places, first_place


class NegativeMode(str, Enum):
    """The kind of negatives for the positive edges of a batch."""

    BINARY = "binary"
    """Pairs of a source and a destination; only their number depends on the positives."""
    TRIPLET = "triplet"
    """Destinations for the source of each positive."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class NonEdges:
    """The pairs of nodes without an edge, from which negatives are drawn.

    Args:
        rowptr: The start of the destinations of each source, and the end. int64 [num_sources + 1]
        col: Destinations of each source's edges, ascending, each once. int64 [num_unique_edges]
        num_destinations: The number of destinations.

    Example:
        >>> non_edges = NonEdges.from_edge_index(torch.tensor([[0, 0, 1], [0, 2, 1]]), 3)
        >>> non_edges
        NonEdges(3 sources, 3 destinations, 6 pairs without an edge)
        >>> sample_negatives(torch.tensor([[0, 0], [0, 2]]), non_edges, mode="triplet", seed=0).tolist()
        [[0, 0], [1, 1]]
    """

    rowptr: Tensor
    col: Tensor
    num_destinations: int

    @staticmethod
    def from_edge_index(edge_index: Tensor, num_nodes: int | tuple[int, int]) -> "NonEdges":
        """Return all pairs except the edges of `edge_index`.

        Args:
            edge_index: Source and destination of each edge. int32 or int64 [2, num_edges]
            num_nodes: The number of nodes; for two node types, the numbers of sources and of destinations.

        Raises:
            ValueError: an index is negative or too large, or a shape is wrong.
        """
        graph = CompressedGraph.from_edge_index(edge_index, num_nodes, direction="outgoing")
        row = torch.repeat_interleave(torch.arange(graph.num_rows), graph.rowptr.diff())
        numbers = (row * graph.num_cols + graph.col).numpy()
        numbers.sort()  # np.unique takes ten times as long
        pairs = torch.unique_consecutive(torch.from_numpy(numbers))
        rowptr = torch.searchsorted(pairs, torch.arange(graph.num_rows + 1) * graph.num_cols)
        return NonEdges(rowptr=rowptr, col=pairs % max(1, graph.num_cols), num_destinations=graph.num_cols)

    @staticmethod
    def none(num_nodes: int | tuple[int, int]) -> "NonEdges":
        """Return all pairs, edges included, for random negatives as in PyTorch Geometric's loaders."""
        return NonEdges.from_edge_index(torch.empty(2, 0, dtype=torch.int64), num_nodes)

    def __post_init__(self) -> None:
        if self.num_sources * self.num_destinations >= 2**62:
            raise ValueError(f"{self.num_sources} x {self.num_destinations} pairs cannot be numbered in 64 bits.")

    @property
    def num_sources(self) -> int:
        """The number of sources."""
        return len(self.rowptr) - 1

    def __len__(self) -> int:
        """Return the number of pairs without an edge."""
        return self.num_sources * self.num_destinations - len(self.col)

    def __repr__(self) -> str:
        return (
            f"NonEdges({self.num_sources:,} sources, {self.num_destinations:,} destinations, "
            f"{len(self):,} pairs without an edge)"
        )

    def pairs_before(self, sources: Places) -> Places:
        """Return the number of pairs without an edge that have a smaller source."""
        return sources * self.num_destinations - self.rowptr.numpy()[sources]

    def num_free(self, sources: Places) -> Places:
        """Return the number of destinations without an edge from each source, [num_sources]."""
        return self.pairs_before(sources + 1) - self.pairs_before(sources)


def sample_negatives(
    positives: Tensor,
    non_edges: NonEdges,
    *,
    mode: NegativeMode | str = NegativeMode.BINARY,
    amount: float = 1,
    seed: int | None = None,
) -> Tensor:
    """Draw negatives for some positive edges; all allowed pairs have the same probability.

    Args:
        positives: Source and destination of the positive edges. int64 [2, num_positives]
        non_edges: The allowed pairs.
        mode: `"binary"` draws pairs; `"triplet"` draws destinations for the source of each positive.
        amount: Negatives per positive. In binary mode a fraction is allowed; the total is rounded up.
        seed: Seed of the random numbers. Default: a new seed from torch's global generator.

    Returns:
        Source and destination of each negative. In triplet mode the negatives of a positive are adjacent.
        int64 [2, ceil(num_positives * amount)]

    Raises:
        ValueError: `amount` is not positive, or is a fraction in triplet mode; a positive is out of range; or every
            pair, in triplet mode every pair of a source, has an edge.

    Example:
        >>> ring = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
        >>> sample_negatives(ring, NonEdges.from_edge_index(ring, 4), amount=0.5, seed=1).shape
        torch.Size([2, 2])
    """
    mode = NegativeMode(mode)
    if not 0 < amount < 2**31 or (mode is NegativeMode.TRIPLET and amount != int(amount)):
        kind = "a whole number of 1 or more" if mode is NegativeMode.TRIPLET else "more than 0"
        raise ValueError(f"amount is {amount}; in mode {mode.value!r} it must be {kind}.")
    positives = positives.cpu()
    check_edge_index("positives", positives, non_edges.num_sources, non_edges.num_destinations)
    number = math.ceil(positives.shape[1] * amount)
    keys = keys_of(new_key(seed), np.arange(number))
    if mode is NegativeMode.TRIPLET:
        sources = positives[0].long().repeat_interleave(int(amount)).numpy()
        free = non_edges.num_free(sources)
        if number and free.min() == 0:
            node = sources[free.argmin()]
            raise ValueError(
                f"Source {node} is joined to all {non_edges.num_destinations} destinations, or is one of them itself: "
                "no negative."
            )
        ranks = below(keys, free)
    else:
        if number and not len(non_edges):
            raise ValueError(f"{non_edges}: every pair has an edge, so there is no negative to draw.")
        ranks = below(keys, np.full(number, len(non_edges)))
        # The source of the pair of each rank is the last source with at most `rank` pairs before it.
        every = np.zeros_like(ranks), np.full_like(ranks, non_edges.num_sources)
        sources = first_place(*every, lambda sources, rows: non_edges.pairs_before(sources + 1) > ranks[rows])
        ranks = ranks - non_edges.pairs_before(sources)
    return torch.from_numpy(np.stack([sources, destinations_of(non_edges, sources, ranks)]))


def below(keys: Words, limits: Places) -> Places:
    """Draw whole numbers below limits of up to 62 bits: draw random bits, and draw again if the number is too large."""
    bits = np.frexp(np.maximum(limits - 1, 1).astype(np.float64))[1]  # one bit too many near powers of 2 beyond 2^53
    shift = (64 - bits).astype(np.uint64)
    drawn = np.empty(len(keys), np.int64)
    waiting, attempt = np.arange(len(keys)), 0
    while len(waiting):
        numbers = np.full(len(waiting), attempt, np.uint64)
        drawn[waiting] = (hash64(keys[waiting], numbers) >> shift[waiting]).astype(np.int64)
        waiting, attempt = waiting[drawn[waiting] >= limits[waiting]], attempt + 1
    return drawn


def destinations_of(non_edges: NonEdges, sources: Places, ranks: Places) -> Places:
    """Return the destination of rank r among the destinations without an edge from a source.

    The i-th joined destination d has d - i unjoined destinations before it. So the result is r plus the number of
    joined destinations with d - i <= r.
    """
    rowptr, col = non_edges.rowptr.numpy(), non_edges.col.numpy()
    first, end = rowptr[sources], rowptr[sources + 1]
    behind = first_place(first, end, lambda places, rows: col[places] - (places - first[rows]) > ranks[rows])
    return ranks + behind - first
