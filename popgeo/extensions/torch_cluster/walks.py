"""torch_cluster's clusters and samples of nodes of a graph."""

import math

import torch
from torch import Tensor

from popgeo.random_numbers import new_key
from popgeo.sampling import random_walk as walks
from popgeo.sampling.compressed_graph import CompressedGraph
from popgeo.sampling.draw import Draw, draw_edges
from popgeo.sampling.pair_nodes import pair_nodes


def graclus_cluster(row: Tensor, col: Tensor, weight: Tensor | None = None, num_nodes: int | None = None) -> Tensor:
    """Join each node to at most one neighbor, in random order: the free neighbor with the largest weight.

    Args:
        row: Sources of the edges. [num_edges]
        col: Targets of the edges. [num_edges]
        weight: Weight of each edge. Default: random weights. [num_edges]
        num_nodes: Number of nodes. Default: read from the edges.

    Returns:
        The smaller number of each pair for both of its nodes, or the node's own number. [num_nodes]

    Example:
        >>> graclus_cluster(torch.tensor([0, 1]), torch.tensor([1, 0]), num_nodes=3)
        tensor([0, 0, 2])
    """
    rowptr = _first_edges(row, _above(row, col) if num_nodes is None else num_nodes)
    order = torch.argsort(row, stable=True)
    return pair_nodes(rowptr, col[order], None if weight is None else weight[order])


def random_walk(
    row: Tensor,
    col: Tensor,
    start: Tensor,
    walk_length: int,
    p: float = 1,
    q: float = 1,
    coalesced: bool = True,
    num_nodes: int | None = None,
    return_edge_indices: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Walk from each start node to random neighbors, with the biases of node2vec (arXiv:1607.00653).

    A walk stays at a node without neighbors. The seed is drawn from torch's global generator.

    Args:
        row: Sources of the edges. [num_edges]
        col: Targets of the edges. [num_edges]
        start: First node of each walk. [num_walks]
        walk_length: Number of steps.
        p: A small p makes steps back to the previous node likely.
        q: A small q makes steps to nodes that are not neighbors of the previous node likely.
        coalesced: Whether to sort the edges. If False, `row` must ascend.
        num_nodes: Number of nodes. Default: read from the edges and `start`.
        return_edge_indices: Whether to return the edges, too.

    Returns:
        Nodes of each walk [num_walks, walk_length + 1]; if asked for, also the sorted edge of each step, or -1 where a
        walk stays [num_walks, walk_length].

    Example:
        >>> random_walk(torch.tensor([0, 1, 2]), torch.tensor([1, 2, 0]), torch.tensor([0, 2]), 3)
        tensor([[0, 1, 2, 0],
                [2, 0, 1, 2]])
    """
    size = _above(row, col, start) if num_nodes is None else num_nodes
    if coalesced:
        col = col[torch.argsort(row * size + col, stable=True)]
    graph = CompressedGraph(rowptr=_first_edges(row, size), col=col, num_cols=size)
    nodes, edges = walks.random_walk(graph, start, walk_length, p=float(p), q=float(q))
    return (nodes, edges) if return_edge_indices else nodes


def neighbor_sampler(start: Tensor, rowptr: Tensor, size: float) -> Tensor:
    """Return random edges of some nodes, each at most once.

    Args:
        start: Nodes. [num_nodes]
        rowptr: First edge of each node of the graph, and the end of the last one.
        size: Number of edges per node; up to 1 it is the share of a node's edges, rounded up.

    Raises:
        ValueError: `size` is not above 0.

    Example:
        >>> neighbor_sampler(torch.tensor([0, 1]), torch.tensor([0, 2, 3]), 1.0)
        tensor([0, 1, 2])
    """
    if not size > 0:
        raise ValueError(f"neighbor_sampler got size {size}; pass a number of edges, or a share above 0.")
    graph = CompressedGraph(rowptr=rowptr, col=torch.zeros(int(rowptr[-1]), dtype=rowptr.dtype), num_cols=1)
    if size > 1:
        return draw_edges(graph, start, 0, None, Draw(number=int(size), replace=False, last=False, key=new_key(None)))[
            1
        ]
    degrees = (rowptr[1:] - rowptr[:-1])[start].tolist()
    draws = (Draw(number=math.ceil(size * degree), replace=False, last=False, key=new_key(None)) for degree in degrees)
    edges = [draw_edges(graph, start[at : at + 1], at, None, draw)[1] for at, draw in enumerate(draws)]
    return torch.cat([start.new_empty(0), *edges])


def _first_edges(row: Tensor, size: int) -> Tensor:
    """Return the first edge of each row, and the end, if the edges are sorted by row. [size + 1]."""
    return torch.cat([row.new_zeros(1), torch.bincount(row, minlength=size).cumsum(0)])


def _above(*nodes: Tensor) -> int:
    """Return the smallest number of nodes."""
    return max((int(one.max()) + 1 for one in nodes if one.numel()), default=0)
