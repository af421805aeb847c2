"""Parts of a sampler for a graph on several machines: one hop, merged results of machines, numbers of nodes.

PyG's `DistNeighborSampler` calls them by `torch.ops.pyg`.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from popgeo.random_numbers import new_key
from popgeo.sampling.compressed_graph import CompressedGraph, Direction
from popgeo.sampling.draw import Draw, draw_edges
from popgeo.sampling.node_table import NodeTable

from .known_graphs import known_graph, size_above

EdgeType = tuple[str, str, str]


def dist_neighbor_sample(
    rowptr: Tensor,
    col: Tensor,
    seed: Tensor,
    num_neighbors: int,
    node_time: Tensor | None = None,
    edge_time: Tensor | None = None,
    seed_time: Tensor | None = None,
    edge_weight: Tensor | None = None,
    csc: bool = False,
    replace: bool = False,
    directed: bool = True,
    disjoint: bool = False,
    temporal_strategy: str = "uniform",
) -> tuple[Tensor, Tensor, list[int]]:
    """Sample neighbors of each seed; `neighbor_sample` explains the arguments.

    Returns:
        The seeds and then all neighbors, also repeated ones, with their seeds' places in front if the sample is
        disjoint [num_nodes] or [num_nodes, 2]; places of the edges in `col`; for each seed the number of nodes before
        its neighbors, and the number of all nodes.

    Example:
        >>> rowptr, col = torch.tensor([0, 1, 3, 3]), torch.tensor([1, 0, 2])
        >>> node, edge, ends = dist_neighbor_sample(rowptr, col, torch.tensor([1, 0]), -1)
        >>> node.tolist(), edge.tolist(), ends
        ([1, 0, 0, 2, 1], [1, 2, 0], [2, 4, 5])
    """
    num_cols = size_above(col) if node_time is None else len(node_time)
    graph = known_graph(
        rowptr,
        col,
        num_cols,
        weight=edge_weight,
        edge_time=edge_time,
        node_time=node_time,
        direction=Direction.OUTGOING,
    )
    if graph.time is not None and seed_time is None:
        if node_time is None:
            raise ValueError("edge_time is given without seed_time; pass the time of each seed.")
        seed_time = node_time[seed.long()]
    limits = None if graph.time is None or seed_time is None else seed_time.long()
    draw = Draw(number=num_neighbors, replace=replace, last=temporal_strategy == "last", key=new_key(None))
    ptr, places = draw_edges(graph, seed.long(), 0, limits, draw)
    nodes = torch.cat([seed, col[places]])
    if disjoint:
        trees = torch.arange(len(seed))
        nodes = torch.stack([torch.cat([trees, trees.repeat_interleave(ptr.diff())]).to(nodes.dtype), nodes], 1)
    return nodes, places.to(rowptr.dtype), (ptr + len(seed)).tolist()


def merge_sampler_outputs(
    node_ids: Sequence[Tensor],
    edge_ids: Sequence[Tensor],
    cumsum_neighbors_per_node: Sequence[Sequence[int]],
    partition_ids: Sequence[int],
    partition_orders: Sequence[int],
    num_partitions: int,
    num_neighbors: int,
    batch: Tensor | None,
    disjoint: bool,
) -> tuple[Tensor, Tensor, Tensor | None, list[int]]:
    """Put the neighbors that several machines sampled into the order of the seeds.

    Args:
        node_ids: The nodes of `dist_neighbor_sample` of each machine.
        edge_ids: Its edges.
        cumsum_neighbors_per_node: Its numbers of nodes.
        partition_ids: The machine of each seed.
        partition_orders: The place of each seed among the seeds of its machine.
        num_partitions: Unused; part of pyg-lib's signature.
        num_neighbors: Unused; part of pyg-lib's signature.
        batch: The tree of each seed. [num_seeds]
        disjoint: Whether to return the tree of each neighbor.

    Returns:
        Neighbors, their edges, their trees or None, and the number of neighbors of each seed.

    Example:
        >>> nodes, edges = [torch.tensor([5, 6]), torch.tensor([7, 8, 9])], [torch.tensor([60]), torch.tensor([80, 90])]
        >>> node, edge, _, counts = merge_sampler_outputs(nodes, edges, [[1, 2], [1, 3]], [1, 0], [0, 0], 2, -1, None, False)
        >>> node.tolist(), edge.tolist(), counts
        ([8, 9, 6], [80, 90, 60], [2, 1])
    """
    places = list(zip(partition_ids, partition_orders, strict=True))
    ranges = [(part, *cumsum_neighbors_per_node[part][at : at + 2]) for part, at in places]
    nodes = [node_ids[part][begin:end] for part, begin, end in ranges]
    starts = [(ends[0] if ends else 0) for ends in cumsum_neighbors_per_node]
    edges = [edge_ids[part][begin - starts[part] : end - starts[part]] for part, begin, end in ranges]
    counts = [end - begin for _, begin, end in ranges]
    of_trees = batch.repeat_interleave(torch.tensor(counts)) if disjoint and batch is not None else None
    none = torch.empty(0, dtype=torch.int64)
    return torch.cat(nodes or [none]), torch.cat(edges or [none]), of_trees, counts


def relabel_neighborhood(
    seed: Tensor,
    sampled_nodes_with_duplicates: Tensor,
    num_sampled_neighbors_per_node: Sequence[int],
    num_nodes: int,
    batch: Tensor | None = None,
    csc: bool = False,
    disjoint: bool = False,
) -> tuple[Tensor, Tensor]:
    """Number the nodes of a sample in the order of discovery, seeds first, and return its edges.

    Args:
        seed: The seeds. [num_seeds]
        sampled_nodes_with_duplicates: The neighbors of each node, node after node. [num_edges]
        num_sampled_neighbors_per_node: The number of neighbors of each node, in the order of discovery.
        num_nodes: The number of nodes of the graph.
        batch: The tree of each neighbor. [num_edges]
        csc: Whether the neighbors are the sources of edges.
        disjoint: Whether each seed has a separate tree.

    Returns:
        Source and destination of each edge. [num_edges] each

    Example:
        >>> seed, neighbors = torch.tensor([2, 3]), torch.tensor([1, 3, 2, 4])
        >>> [ends.tolist() for ends in relabel_neighborhood(seed, neighbors, [2, 2], num_nodes=6)]
        [[0, 0, 1, 1], [2, 1, 0, 3]]
    """
    only = ("", "", "")
    row, col = hetero_relabel_neighborhood(
        [""],
        [only],
        {"": seed},
        {"": sampled_nodes_with_duplicates},
        {"__".join(only): [num_sampled_neighbors_per_node]},
        {"": num_nodes},
        None if batch is None else {"": batch},
        csc,
        disjoint,
    )
    return row["__".join(only)], col["__".join(only)]


def hetero_relabel_neighborhood(
    node_types: Sequence[str],
    edge_types: Sequence[EdgeType],
    seed_dict: Mapping[str, Tensor],
    sampled_nodes_with_duplicates_dict: Mapping[str, Tensor],
    num_sampled_neighbors_per_node_dict: Mapping[str, Sequence[Sequence[int]]],
    num_nodes_dict: Mapping[str, int],
    batch_dict: Mapping[str, Tensor] | None = None,
    csc: bool = False,
    disjoint: bool = False,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Number the nodes of a heterogeneous sample: `relabel_neighborhood` with mappings from node type or edge type.

    The numbers of neighbors are lists of the hops of each edge type, under the three parts of its name joined by `__`.
    Neighbors of a node type are in the order of hops, and in each hop of edge types.

    Example:
        >>> seeds, items = {"user": torch.tensor([7])}, {"item": torch.tensor([3, 3, 5])}
        >>> types, counts = [("user", "buys", "item")], {"user__buys__item": [[3]]}
        >>> _, col = hetero_relabel_neighborhood(["user", "item"], types, seeds, items, counts, {"user": 9, "item": 6})
        >>> col["user__buys__item"].tolist()
        [0, 0, 1]
    """
    none = torch.empty(0, dtype=torch.int64)
    sizes = [len(seeds) for seeds in seed_dict.values()]
    trees = dict(zip(seed_dict, torch.arange(sum(sizes)).split(sizes), strict=True))
    tables = {
        key: NodeTable(
            seed_dict.get(key, none).long(), trees.get(key, none) if disjoint else None, num_nodes_dict[key], sum(sizes)
        )
        for key in node_types
    }
    sampled = {key: sampled_nodes_with_duplicates_dict.get(key, none).long() for key in node_types}
    graphs = {
        key: CompressedGraph(rowptr=torch.tensor([0, len(nodes)]), col=nodes, num_cols=num_nodes_dict[key])
        for key, nodes in sampled.items()
    }
    edges = {"__".join(edge_type): torch.empty(3, 0, dtype=torch.int64) for edge_type in edge_types}
    used, first = dict.fromkeys(node_types, 0), dict.fromkeys(node_types, 0)
    for hop in range(max(map(len, num_sampled_neighbors_per_node_dict.values()), default=0)):
        before = {key: table.size for key, table in tables.items()}
        for edge_type in edge_types:
            near, far = (edge_type[2], edge_type[0]) if csc else (edge_type[0], edge_type[2])
            name = "__".join(edge_type)
            counts = num_sampled_neighbors_per_node_dict[name][hop]
            ptr = torch.tensor([0, *accumulate(counts)])
            places = torch.arange(used[far], used[far] + int(ptr[-1]))
            of_rows = None
            if disjoint and batch_dict is not None:
                of_rows = torch.tensor(
                    [int(batch_dict[far][used[far] + a]) if a < b else 0 for a, b in pairwise(ptr.tolist())]
                )
            edges[name] = tables[far].add(graphs[far], places, ptr, first[near], of_rows, edges[name])
            used[far] += len(places)
        first = before
    ends = {name: (far, near) if csc else (near, far) for name, (far, near, _) in edges.items()}
    return {name: row for name, (row, _) in ends.items()}, {name: col for name, (_, col) in ends.items()}
