"""Random walks over a large graph: compiled if the library is available, otherwise all walks at once in numpy."""

import struct

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from popgeo.native import library
from popgeo.random_numbers import Words, below, hash64, keys_of, new_key, unit
from popgeo.sampling.compressed_graph import CompressedGraph, check_range


def random_walk(
    graph: CompressedGraph, start: Tensor, length: int, *, p: float = 1.0, q: float = 1.0, seed: int | None = None
) -> tuple[Tensor, Tensor]:
    """Walk from each start node to random neighbors, with the biases of node2vec (arXiv:1607.00653).

    A node without neighbors ends a walk: the walk stays there. A draw depends only on the seed, the walk's place in
    `start` and the step, so walks are the same for any number of threads.

    Args:
        graph: The graph; a step goes from a row to one of its neighbors.
        start: The first node of each walk. int32 or int64 [num_walks]
        length: The number of steps.
        p: A small p makes steps back to the previous node likely.
        q: A small q makes steps away from the previous node likely: to nodes that are not its neighbors.
        seed: Seed of the random numbers. Default: a new seed from torch's global generator.

    Returns:
        The nodes of each walk, int64 [num_walks, length + 1]; the place of each step in `graph.col`, or -1 where a walk
        stays, int64 [num_walks, length].

    Raises:
        ValueError: p or q is not in 1e-6 ... 1e6, the length is negative, or a start node is out of range.

    Example:
        >>> ring = CompressedGraph.from_edge_index(torch.tensor([[1, 2, 0], [0, 1, 2]]), num_nodes=3)
        >>> random_walk(ring, torch.tensor([0, 2]), 3)[0].tolist()
        [[0, 1, 2, 0], [2, 0, 1, 2]]
    """
    if not (1e-6 <= p <= 1e6 and 1e-6 <= q <= 1e6) or length < 0:
        raise ValueError(f"p is {p}, q is {q}, length is {length}; p and q are 1e-6 ... 1e6, length is 0 or more.")
    check_range("start", start, min(graph.num_rows, graph.num_cols))
    if graph.num_rows != graph.num_cols:
        raise ValueError(
            f"A walk needs one kind of node; the graph has {graph.num_rows} rows and {graph.num_cols} nodes."
        )
    start, key = library.as_read(start.long()), new_key(seed)
    nodes = torch.empty(len(start), length + 1, dtype=torch.int64)
    places = torch.empty(len(start), length, dtype=torch.int64)
    walk = library.packed("popgeo_random_walk")
    if walk is None:
        _walk(graph, start.numpy(), keys_of(key, np.arange(len(start))), (p, q), nodes.numpy(), places.numpy())
        return nodes, places
    addresses = map(library.address, (graph.rowptr, graph.col, start, nodes, places))
    sizes = (len(start), length, graph.col.element_size(), torch.get_num_threads())
    walk(struct.pack("9qQ2d", *addresses, *sizes, key, p, q))
    return nodes, places


def _walk(
    graph: CompressedGraph,
    start: NDArray[np.int64],
    keys: Words,
    biases: tuple[float, float],
    nodes: NDArray[np.int64],
    places: NDArray[np.int64],
) -> None:
    """Fill in the nodes [num_walks, length + 1] and places [num_walks, length] of all walks, step by step."""
    rowptr, col = graph.rowptr.numpy().astype(np.int64), graph.col.numpy()
    largest = max(1 / biases[0], 1.0, 1 / biases[1])
    pairs = (
        None
        if biases == (1.0, 1.0)
        else np.unique(np.repeat(np.arange(graph.num_rows), np.diff(rowptr)) * graph.num_cols + col)
    )
    nodes[:, 0] = start
    for step in range(places.shape[1]):
        here, streams = nodes[:, step], hash64(keys, np.full(len(keys), step, np.uint64))
        begin, degree = rowptr[here], rowptr[here + 1] - rowptr[here]
        places[:, step] = -1
        walks, attempt = np.flatnonzero(degree), 0
        while len(walks):
            stream, count = streams[walks], degree[walks]
            drawn = below(stream, np.full(len(walks), 2 * attempt, np.uint64), count.astype(np.uint64))
            place = begin[walks] + drawn.astype(np.int64)
            taken = np.ones(len(walks), bool)
            if pairs is not None and step > 0:
                before, there = nodes[walks, step - 1], col[place].astype(np.int64)
                weight = np.where(np.isin(before * graph.num_cols + there, pairs), 1.0, 1 / biases[1])
                weight = np.where(there == before, 1 / biases[0], weight)
                point = unit(stream, np.full(len(walks), 2 * attempt + 1, np.uint64))
                taken = (count == 1) | (point * largest < weight)
            places[walks[taken], step] = place[taken]
            walks, attempt = walks[~taken], attempt + 1
        stays = places[:, step] < 0
        nodes[:, step + 1] = np.where(stays, here, col[np.where(stays, 0, places[:, step])] if len(col) else here)
