"""Samplers of large graphs with pyg-lib's arguments and results, over popgeo's samplers.

A draw depends only on torch's global seed and on the node's place in the sample: results are the same for any number of
threads, and with and without the compiled library.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from popgeo.sampling import random_walk as walks
from popgeo.sampling.compressed_graph import CompressedGraph, Direction, check_range
from popgeo.sampling.node_table import NodeTable
from popgeo.sampling.sample_neighbors import sample_neighbors

from .known_graphs import known_graph, size_above

__all__ = ["hetero_neighbor_sample", "neighbor_sample", "random_walk", "subgraph"]

EdgeType = tuple[str, str, str]
Sample = tuple[Tensor, Tensor, Tensor, Tensor | None, list[int], list[int]]
HeteroSample = tuple[
    dict[EdgeType, Tensor],
    dict[EdgeType, Tensor],
    dict[str, Tensor],
    dict[EdgeType, Tensor] | None,
    dict[str, list[int]],
    dict[EdgeType, list[int]],
]


def neighbor_sample(
    rowptr: Tensor,
    col: Tensor,
    seed: Tensor,
    num_neighbors: Sequence[int],
    node_time: Tensor | None = None,
    edge_time: Tensor | None = None,
    seed_time: Tensor | None = None,
    edge_weight: Tensor | None = None,
    csc: bool = False,
    replace: bool = False,
    directed: bool = True,
    disjoint: bool = False,
    temporal_strategy: str = "uniform",
    return_edge_id: bool = True,
) -> Sample:
    """Sample the neighbors of seeds, then their neighbors, and so on, one hop per entry of `num_neighbors`.

    Args:
        rowptr: The start of the neighbors of each node in `col`, and the end. int32 or int64 [num_nodes + 1]
        col: Neighbors. The same dtype [num_edges]
        seed: The first nodes. The same dtype [num_seeds]
        num_neighbors: The number of neighbors per node and hop, -1 for all.
        node_time: The time of each node: neighbors newer than their seed are not sampled. Each row of `col` must be
            sorted by time. int64 [num_nodes]
        edge_time: The time of each edge, instead of times of nodes. It must ascend in each row. int64 [num_edges]
        seed_time: The time of each seed. Default: its time in `node_time`. int64 [num_seeds]
        edge_weight: The probability of each edge, relative to other edges of its row. float [num_edges]
        csc: Whether the neighbors are the sources of edges, instead of the destinations.
        replace: Whether to draw with replacement.
        directed: False takes all edges between sampled nodes.
        disjoint: Whether every seed has a separate tree; times need it.
        temporal_strategy: With times: `"uniform"` draws neighbors at random, `"last"` takes the latest neighbors.
        return_edge_id: Whether to return the places of the edges in `col`.

    Returns:
        Source and destination of each edge as places among the nodes [num_sampled_edges]; the nodes, seeds first
        [num_sampled_nodes], or the tree and the node in each row if the sample is disjoint [num_sampled_nodes, 2];
        the place of each edge in `col`, or None; the numbers of new nodes, of the seeds and then of each hop; the
        numbers of edges of each hop.

    Raises:
        ValueError: the graph or a seed is out of range, rows are not sorted by time, or times are given for a sample
            that is not disjoint.

    Example:
        >>> rowptr, col = torch.tensor([0, 1, 2, 3]), torch.tensor([1, 2, 0])
        >>> row, col, node, edge, num_nodes, num_edges = neighbor_sample(rowptr, col, torch.tensor([2]), [1, 1])
        >>> row.tolist(), col.tolist(), node.tolist(), edge.tolist(), num_nodes, num_edges
        ([0, 1], [1, 2], [2, 0, 1], [2, 0], [1, 1, 1], [1, 1])
    """
    only = ("", "", "")
    sample = hetero_neighbor_sample(
        {only: rowptr},
        {only: col},
        {"": seed},
        {only: num_neighbors},
        None if node_time is None else {"": node_time},
        None if edge_time is None else {only: edge_time},
        None if seed_time is None else {"": seed_time},
        None if edge_weight is None else {only: edge_weight},
        csc,
        replace,
        directed,
        disjoint,
        temporal_strategy,
        return_edge_id,
    )
    row, column, node, edge, num_nodes, num_edges = (
        None if part is None else next(iter(part.values())) for part in sample
    )
    return row, column, node, edge, num_nodes, num_edges  # type: ignore[return-value]  # only the edges may be None


def hetero_neighbor_sample(
    rowptr_dict: Mapping[EdgeType, Tensor],
    col_dict: Mapping[EdgeType, Tensor],
    seed_dict: Mapping[str, Tensor],
    num_neighbors_dict: Mapping[EdgeType, Sequence[int]],
    node_time_dict: Mapping[str, Tensor] | None = None,
    edge_time_dict: Mapping[EdgeType, Tensor] | None = None,
    seed_time_dict: Mapping[str, Tensor] | None = None,
    edge_weight_dict: Mapping[EdgeType, Tensor] | None = None,
    csc: bool = False,
    replace: bool = False,
    directed: bool = True,
    disjoint: bool = False,
    temporal_strategy: str = "uniform",
    return_edge_id: bool = True,
) -> HeteroSample:
    """Sample neighbors in a heterogeneous graph: `neighbor_sample` with mappings from node type or edge type.

    Trees are numbered through all types of seeds.

    Example:
        >>> buys = ("user", "buys", "item")
        >>> rowptr, col = {buys: torch.tensor([0, 2, 2])}, {buys: torch.tensor([3, 5])}
        >>> sample = hetero_neighbor_sample(rowptr, col, {"user": torch.tensor([0])}, {buys: [2]})
        >>> sample[2]["item"].tolist(), sample[4]
        ([3, 5], {'user': [1, 0], 'item': [0, 2]})
    """
    graphs = _graphs(rowptr_dict, col_dict, seed_dict, node_time_dict, edge_time_dict, edge_weight_dict, csc)
    hops = len(next(iter(num_neighbors_dict.values()), ()))
    alone = [
        (node_type, "", node_type) for node_type in seed_dict if not any(node_type in (a, c) for a, _, c in graphs)
    ]
    lonely = {key: _without_edges(seed_dict[key[0]], csc) for key in alone}
    timed = any(graph.time is not None for graph in graphs.values())
    if timed and not disjoint:
        raise ValueError("Times are given, but disjoint=False: each seed needs a separate tree. Pass disjoint=True.")
    if node_time_dict is not None and seed_time_dict is None:
        seed_time_dict = {key: node_time_dict[key][nodes.long()] for key, nodes in seed_dict.items()}
    sample = sample_neighbors(
        graphs | lonely,
        seed_dict,
        {**num_neighbors_dict, **dict.fromkeys(alone, [0] * hops)},
        replace=replace,
        subgraph_type="directional" if directed else "induced",
        disjoint=disjoint,
        seed_time=seed_time_dict if timed else None,
        temporal_strategy=temporal_strategy if timed else "uniform",
    )
    dtype = next(iter(rowptr_dict.values())).dtype if rowptr_dict else torch.int64
    row, col, edge = ({key: of[key].to(dtype) for key in graphs} for of in (sample.row, sample.col, sample.edge))
    node = {key: part.to(dtype) for key, part in sample.node.items()}
    if sample.batch is not None:
        node = {key: torch.stack([sample.batch[key].to(dtype), part], 1) for key, part in node.items()}
    num_nodes = {key: list(numbers) for key, numbers in sample.num_sampled_nodes.items()}
    found = sample.num_sampled_edges  # None for the edges between all sampled nodes, which belong to no hop
    num_edges = {key: list(found[key]) if found else [0] * (hops - 1) + [len(row[key])] for key in graphs}
    return row, col, node, edge if return_edge_id else None, num_nodes, num_edges


def subgraph(
    rowptr: Tensor, col: Tensor, nodes: Tensor, return_edge_id: bool = True
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the edges between some nodes, by rows, with the nodes numbered in the given order.

    Args:
        rowptr: The start of the neighbors of each node in `col`, and the end. int32 or int64 [num_nodes + 1]
        col: Neighbors. The same dtype [num_edges]
        nodes: Different nodes. The same dtype [num_kept]
        return_edge_id: Whether to return the places of the edges in `col`.

    Returns:
        The start of the neighbors of each kept node, and the end [num_kept + 1]; neighbors as places in `nodes`; the
        place of each edge in `col`, or None.

    Raises:
        ValueError: the graph or a node is out of range.

    Example:
        >>> rowptr, col = torch.tensor([0, 2, 3, 4]), torch.tensor([1, 2, 0, 0])
        >>> [part.tolist() for part in subgraph(rowptr, col, torch.tensor([2, 0]))]
        [[0, 1, 2], [1, 0], [3, 1]]
    """
    graph = known_graph(rowptr, col, len(rowptr) - 1, direction=Direction.OUTGOING)
    check_range("nodes", nodes, graph.num_rows)
    kept = nodes.long().contiguous()
    numbers, rows, places = NodeTable(kept, None, graph.num_cols, 1).induced(graph, kept, None, None).to(rowptr.dtype)
    pointers = torch.cat([rowptr.new_zeros(1), torch.bincount(rows, minlength=len(nodes)).cumsum(0).to(rowptr.dtype)])
    return pointers, numbers, places if return_edge_id else None


def random_walk(rowptr: Tensor, col: Tensor, seed: Tensor, walk_length: int, p: float = 1.0, q: float = 1.0) -> Tensor:
    """Walk from each seed to random neighbors, with the biases of node2vec (arXiv:1607.00653).

    Args:
        rowptr: The start of the neighbors of each node in `col`, and the end. int32 or int64 [num_nodes + 1]
        col: Neighbors. The same dtype [num_edges]
        seed: The first node of each walk. The same dtype [num_walks]
        walk_length: The number of steps.
        p: A small p makes steps back to the previous node likely.
        q: A small q makes steps away from the previous node likely.

    Returns:
        The nodes of each walk; a walk stays at a node without neighbors. [num_walks, walk_length + 1]

    Raises:
        ValueError: the graph or a seed is out of range, or p or q is not in 1e-6 ... 1e6.

    Example:
        >>> rowptr, col = torch.tensor([0, 1, 2, 3]), torch.tensor([1, 2, 0])
        >>> random_walk(rowptr, col, torch.tensor([2]), walk_length=3)
        tensor([[2, 0, 1, 2]])
    """
    graph = known_graph(rowptr.cpu(), col.cpu(), len(rowptr) - 1, direction=Direction.OUTGOING)
    return walks.random_walk(graph, seed.cpu(), walk_length, p=p, q=q)[0].to(rowptr)


def _graphs(
    rowptr: Mapping[EdgeType, Tensor],
    col: Mapping[EdgeType, Tensor],
    seed: Mapping[str, Tensor],
    node_time: Mapping[str, Tensor] | None,
    edge_time: Mapping[EdgeType, Tensor] | None,
    edge_weight: Mapping[EdgeType, Tensor] | None,
    csc: bool,
) -> dict[EdgeType, CompressedGraph]:
    """Return the graph of each edge type. A type of nodes without rows has as many nodes as the largest index needs."""
    near, far, direction = (2, 0, Direction.INCOMING) if csc else (0, 2, Direction.OUTGOING)
    num_nodes = {node_type: len(time) for node_type, time in (node_time or {}).items()}
    num_nodes |= {edge_type[near]: len(pointers) - 1 for edge_type, pointers in rowptr.items()}
    for edge_type in rowptr:
        if (node_type := edge_type[far]) not in num_nodes:
            indices = [col[key] for key in rowptr if key[far] == node_type]
            indices += [seed[node_type]] if node_type in seed else []
            num_nodes[node_type] = max(map(size_above, indices))
    return {
        edge_type: known_graph(
            pointers,
            col[edge_type],
            num_nodes[edge_type[far]],
            weight=(edge_weight or {}).get(edge_type),
            edge_time=(edge_time or {}).get(edge_type),
            node_time=(node_time or {}).get(edge_type[far]),
            direction=direction,
        )
        for edge_type, pointers in rowptr.items()
    }


def _without_edges(seeds: Tensor, csc: bool) -> CompressedGraph:
    """Return a graph that has the seeds, but no edge."""
    num_nodes = size_above(seeds)
    none, direction = seeds.new_empty(0), Direction.INCOMING if csc else Direction.OUTGOING
    return CompressedGraph(rowptr=seeds.new_zeros(num_nodes + 1), col=none, num_cols=num_nodes, direction=direction)
