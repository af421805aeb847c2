"""Neighbor sampling: the k-hop neighborhood of seeds, with a limited number of neighbors of each node.

    graph = CompressedGraph.from_edge_index(edge_index, num_nodes)
    sample = sample_neighbors(graph, seeds, [15, 10, 5], seed=step)
    x, edge_index = features[sample.node], sample.edge_index  # the seeds are the first rows of x

A heterogeneous graph is a mapping from edge type to `CompressedGraph`. Then seeds, times and `num_neighbors` are
mappings, too, and so are the fields of the result.

The result follows PyTorch Geometric's `NeighborSampler`, including its undocumented behavior. A node is expanded once,
in the hop after its discovery. A repeated seed is two nodes of the sample, each with separately drawn neighbors; as a
neighbor of a different node, it is the first of the two. A node without neighbors adds nothing. A draw depends only on
`seed`, the edge type and the node's place in the sample. So the sample is the same for any number of threads, with and
without the compiled library, and for 32-bit and 64-bit graphs.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, overload

import numpy as np
import torch
from torch import Tensor

from popgeo.random_numbers import keys_of, new_key
from popgeo.sampling import check_choices
from popgeo.sampling.check_choices import Choices, NumNeighbors, TemporalStrategy, ends
from popgeo.sampling.compressed_graph import CompressedGraph, Direction
from popgeo.sampling.draw import Draw, draw_edges
from popgeo.sampling.node_table import NodeTable
from popgeo.sampling.sampled_subgraph import EdgeType, HeteroSampledSubgraph, SampledSubgraph, add_reversed

if TYPE_CHECKING:
    from torch_geometric.sampler.base import SubgraphType

_ONLY: EdgeType = ("", "", "")  # the edge type of a homogeneous graph


@overload
def sample_neighbors(
    graph: CompressedGraph,
    seeds: Tensor,
    num_neighbors: Sequence[int],
    *,
    replace: bool = ...,
    subgraph_type: "SubgraphType | str" = ...,
    disjoint: bool = ...,
    seed_time: Tensor | None = ...,
    temporal_strategy: TemporalStrategy | str = ...,
    seed: int | None = ...,
) -> SampledSubgraph: ...
@overload
def sample_neighbors(
    graph: Mapping[EdgeType, CompressedGraph],
    seeds: Mapping[str, Tensor],
    num_neighbors: NumNeighbors,
    *,
    replace: bool = ...,
    subgraph_type: "SubgraphType | str" = ...,
    disjoint: bool = ...,
    seed_time: Mapping[str, Tensor] | None = ...,
    temporal_strategy: TemporalStrategy | str = ...,
    seed: int | None = ...,
) -> HeteroSampledSubgraph: ...
def sample_neighbors(
    graph: CompressedGraph | Mapping[EdgeType, CompressedGraph],
    seeds: Tensor | Mapping[str, Tensor],
    num_neighbors: NumNeighbors,
    *,
    replace: bool = False,
    subgraph_type: "SubgraphType | str" = "directional",
    disjoint: bool = False,
    seed_time: Tensor | Mapping[str, Tensor] | None = None,
    temporal_strategy: TemporalStrategy | str = TemporalStrategy.UNIFORM,
    seed: int | None = None,
) -> SampledSubgraph | HeteroSampledSubgraph:
    """Sample the neighbors of seeds, then their neighbors, and so on, one hop per entry of `num_neighbors`.

    Args:
        graph: A compressed graph, or one per edge type. Edges with weights are drawn in proportion to their weights.
        seeds: The first nodes; for a heterogeneous graph by node type. int64 [num_seeds]
        num_neighbors: The number of neighbors per node and hop, -1 for all; for a heterogeneous graph one list for all
            edge types, or a list per edge type. A node with fewer neighbors uses all of them.
        replace: Whether to draw with replacement: each node with a neighbor has `num_neighbors` edges, some of them
            equal.
        subgraph_type: `"directional"` keeps the drawn edges; `"bidirectional"` adds their reverses with the same
            numbers; `"induced"` takes all edges between sampled nodes.
        disjoint: Whether every seed has a separate tree without shared nodes; `batch` has the seed of each node.
        seed_time: The time of each seed, for a graph with times: its tree has no newer nodes or edges. The sample is
            then disjoint. int64 [num_seeds]
        temporal_strategy: With `seed_time`: `"uniform"` draws neighbors at random, `"last"` takes the latest neighbors.
        seed: Seed of the random numbers. Default: a new seed from torch's global generator.

    Raises:
        ValueError: a seed is not a node; or numbers of neighbors, times or types contradict each other or the graph.

    Example:
        >>> ring = torch.tensor([[1, 2, 3, 0], [0, 1, 2, 3]])
        >>> graph = CompressedGraph.from_edge_index(ring, num_nodes=4)
        >>> sample = sample_neighbors(graph, torch.tensor([2]), [1, 1], seed=0)
        >>> sample.node.tolist(), sample.edge_index.tolist(), sample.edge.tolist()
        ([2, 3, 0], [[1, 2], [0, 1]], [2, 3])
    """
    choices = Choices(
        replace=replace,
        subgraph_type=subgraph_type,
        disjoint=disjoint,
        temporal_strategy=temporal_strategy,
        temporal=seed_time is not None,
    )
    if isinstance(graph, CompressedGraph):
        if not isinstance(seeds, Tensor) or isinstance(num_neighbors, Mapping) or isinstance(seed_time, Mapping):
            raise ValueError("For one CompressedGraph, seeds and seed_time must be tensors, and num_neighbors a list.")
        times = None if seed_time is None else {"": seed_time}
        sample = _sample({_ONLY: graph}, {"": seeds}, num_neighbors, choices, times, seed)
        # Every field has one entry, for the only node type or the only edge type.
        fields = {name: None if part is None else next(iter(part.values())) for name, part in vars(sample).items()}
        return SampledSubgraph(**fields)  # type: ignore[arg-type]
    if isinstance(seeds, Tensor) or isinstance(seed_time, Tensor):
        raise ValueError("For a mapping of graphs, seeds and seed_time must be mappings from node type to tensor.")
    return _sample(graph, seeds, num_neighbors, choices, seed_time, seed)


def _sample(
    graphs: Mapping[EdgeType, CompressedGraph],
    seeds: Mapping[str, Tensor],
    num_neighbors: NumNeighbors,
    choices: Choices,
    seed_time: Mapping[str, Tensor] | None,
    seed: int | None,
) -> HeteroSampledSubgraph:
    num_nodes = check_choices.check_graphs(graphs, choices)
    counts = check_choices.counts_of_hops(num_neighbors, list(graphs))
    seeds = check_choices.check_seeds(seeds, num_nodes)
    tree_time = check_choices.times_of_trees(seeds, seed_time)
    reverse_of = check_choices.reverse_types(graphs) if choices.subgraph_type == "bidirectional" else None
    tables = _tables(seeds, num_nodes, choices.disjoint)
    keys = keys_of(new_key(seed), np.arange(len(graphs))).tolist()
    sizes = [{node_type: table.size for node_type, table in tables.items()}]
    found = {edge_type: [torch.empty(3, 0, dtype=torch.int64)] for edge_type in graphs}
    begin = dict.fromkeys(tables, 0)
    for hop in range(max(map(len, counts.values()), default=0)):
        for (edge_type, graph), key in zip(graphs.items(), keys, strict=True):
            near, far = ends(edge_type, graph)
            draw = Draw(number=counts[edge_type][hop], replace=choices.replace, last=choices.last, key=key)
            first, last = begin[near], sizes[-1][near]
            nodes, trees = tables[near].nodes[first:last], tables[near].trees
            trees = None if trees is None else trees[first:last]
            ptr, places = draw_edges(graph, nodes, first, _limits(trees, tree_time), draw)
            found[edge_type].append(tables[far].add(graph, places, ptr, first, trees, found[edge_type][-1]))
        begin = sizes[-1]
        sizes.append({node_type: table.size for node_type, table in tables.items()})
    if choices.subgraph_type == "induced":
        for edge_type, graph in graphs.items():
            near, far = ends(edge_type, graph)
            nodes, trees = tables[near].nodes, tables[near].trees
            found[edge_type] = [tables[far].induced(graph, nodes, trees, _limits(trees, tree_time))]
    sample = _collect(graphs, tables, found, sizes, choices)
    return sample if reverse_of is None else add_reversed(sample, reverse_of)


def _tables(seeds: Mapping[str, Tensor], num_nodes: Mapping[str, int], disjoint: bool) -> dict[str, NodeTable]:
    """Return a table for each node type, with its seeds."""
    counts = [len(nodes) for nodes in seeds.values()]
    trees = dict(zip(seeds, torch.arange(sum(counts)).split(counts), strict=True))
    none = torch.empty(0, dtype=torch.int64)
    return {
        key: NodeTable(seeds.get(key, none), trees.get(key, none) if disjoint else None, size, sum(counts))
        for key, size in num_nodes.items()
    }


def _limits(trees: Tensor | None, tree_time: Tensor | None) -> Tensor | None:
    """Return the latest allowed time of each row, from the time of its tree; None without times."""
    return None if tree_time is None or trees is None else tree_time[trees]


def _collect(
    graphs: Mapping[EdgeType, CompressedGraph],
    tables: Mapping[str, NodeTable],
    found: Mapping[EdgeType, Sequence[Tensor]],
    sizes: Sequence[Mapping[str, int]],
    choices: Choices,
) -> HeteroSampledSubgraph:
    row, col, edge = {}, {}, {}
    for edge_type, graph in graphs.items():
        far, near, edge[edge_type] = found[edge_type][-1]
        incoming = graph.direction is Direction.INCOMING
        row[edge_type], col[edge_type] = (far, near) if incoming else (near, far)
    num_nodes = {node_type: [0, *(size[node_type] for size in sizes)] for node_type in tables}
    num_edges = {edge_type: [part.shape[1] for part in parts] for edge_type, parts in found.items()}
    hop_by_hop = choices.subgraph_type != "induced"
    return HeteroSampledSubgraph(
        node={node_type: table.nodes for node_type, table in tables.items()},
        row=row,
        col=col,
        edge=edge,
        num_sampled_nodes={node_type: _growth(numbers) for node_type, numbers in num_nodes.items()},
        num_sampled_edges={t: _growth(numbers) for t, numbers in num_edges.items()} if hop_by_hop else None,
        batch={t: table.trees for t, table in tables.items() if table.trees is not None} if choices.disjoint else None,
    )


def _growth(numbers: Sequence[int]) -> tuple[int, ...]:
    return tuple(after - before for before, after in pairwise(numbers))
