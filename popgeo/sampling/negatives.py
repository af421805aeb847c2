"""Negatives for link prediction: a fixed number of pairs of nodes that no edge joins, or that are merely random.

    non_edges = NonEdges.from_edge_index(edge_index, num_nodes)  # once
    negatives = sample_negatives(edge_index[:, batch], non_edges, amount=2, seed=step)

No pair is drawn and then rejected for its edge: a number is drawn below the count of pairs without one, and the pair of
this number is found by two binary searches. So each is exactly as likely as the next however dense the graph is, and a
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
    """What is drawn for the positive edges of a batch."""

    BINARY = "binary"
    """Pairs of a source and a destination, independent of the positives but for their number."""
    TRIPLET = "triplet"
    """Destinations for the source of each positive."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class NonEdges:
    """The pairs of nodes that negatives are drawn from: those that no edge joins.

    Args:
        rowptr: Where the destinations of each source start, and the end. int64 [num_sources + 1]
        col: Destinations of each source's edges, ascending, each once. int64 [num_unique_edges]
        num_destinations: How many destinations there are.

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
        """All pairs but the edges of `edge_index`.

        Args:
            edge_index: Source and destination of each edge. int32 or int64 [2, num_edges]
            num_nodes: How many nodes there are; of two node types, how many sources and how many destinations.

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
        """All pairs, edges among them: negatives that are merely random, as PyTorch Geometric's loaders draw them."""
        return NonEdges.from_edge_index(torch.empty(2, 0, dtype=torch.int64), num_nodes)

    def __post_init__(self) -> None:
        if self.num_sources * self.num_destinations >= 2**62:
            raise ValueError(f"{self.num_sources} x {self.num_destinations} pairs cannot be numbered in 64 bits.")

    @property
    def num_sources(self) -> int:
        """How many sources there are."""
        return len(self.rowptr) - 1

    def __len__(self) -> int:
        """How many pairs have no edge."""
        return self.num_sources * self.num_destinations - len(self.col)

    def __repr__(self) -> str:
        return (
            f"NonEdges({self.num_sources:,} sources, {self.num_destinations:,} destinations, "
            f"{len(self):,} pairs without an edge)"
        )

    def pairs_before(self, sources: Places) -> Places:
        """How many pairs without an edge have a smaller source."""
        return sources * self.num_destinations - self.rowptr.numpy()[sources]

    def num_free(self, sources: Places) -> Places:
        """Return how many destinations have no edge from each source, [num_sources]."""
        return self.pairs_before(sources + 1) - self.pairs_before(sources)


def sample_negatives(
    positives: Tensor,
    non_edges: NonEdges,
    *,
    mode: NegativeMode | str = NegativeMode.BINARY,
    amount: float = 1,
    seed: int | None = None,
) -> Tensor:
    """Draw negatives for some positive edges, each pair that may be drawn being as likely as the next.

    Args:
        positives: Source and destination of the positive edges. int64 [2, num_positives]
        non_edges: The pairs to draw from.
        mode: `"binary"` draws pairs; `"triplet"` draws destinations for the source of each positive.
        amount: Negatives for each positive. In binary mode it may be a fraction; the number is rounded up.
        seed: Names the random numbers; None takes a new name from torch's own generator.

    Returns:
        Source and destination of each negative, those of a positive side by side in triplet mode.
        int64 [2, ceil(num_positives * amount)]

    Raises:
        ValueError: `amount` is not positive, or no whole number in triplet mode; a positive is out of range; every
            pair, or in triplet mode every pair of a source, has an edge.

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
        # The source of the pair of each rank is the last one that has at most `rank` pairs before it.
        every = np.zeros_like(ranks), np.full_like(ranks, non_edges.num_sources)
        sources = first_place(*every, lambda sources, rows: non_edges.pairs_before(sources + 1) > ranks[rows])
        ranks = ranks - non_edges.pairs_before(sources)
    return torch.from_numpy(np.stack([sources, destinations_of(non_edges, sources, ranks)]))


def below(keys: Words, limits: Places) -> Places:
    """Whole numbers below limits of up to 62 bits: as many random bits as the limit has, again if they reach it."""
    bits = np.frexp(np.maximum(limits - 1, 1).astype(np.float64))[1]  # one too many near powers of 2 beyond 2^53
    shift = (64 - bits).astype(np.uint64)
    drawn = np.empty(len(keys), np.int64)
    waiting, attempt = np.arange(len(keys)), 0
    while len(waiting):
        numbers = np.full(len(waiting), attempt, np.uint64)
        drawn[waiting] = (hash64(keys[waiting], numbers) >> shift[waiting]).astype(np.int64)
        waiting, attempt = waiting[drawn[waiting] >= limits[waiting]], attempt + 1
    return drawn


def destinations_of(non_edges: NonEdges, sources: Places, ranks: Places) -> Places:
    """The destination of rank r among those that a source has no edge to.

    Joined destination d, the i-th of them, has d - i unjoined ones before it: the answer is r + the number of those
    with d - i <= r.
    """
    rowptr, col = non_edges.rowptr.numpy(), non_edges.col.numpy()
    first, end = rowptr[sources], rowptr[sources + 1]
    behind = first_place(first, end, lambda places, rows: col[places] - (places - first[rows]) > ranks[rows])
    return ranks + behind - first
