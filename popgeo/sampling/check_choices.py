"""Checks of all arguments of the neighbor sampler, before it draws."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from popgeo.native import library
from popgeo.sampling.compressed_graph import CompressedGraph, Direction, check_range
from popgeo.sampling.sampled_subgraph import EdgeType

if TYPE_CHECKING:
    from torch_geometric.sampler.base import SubgraphType

_SUBGRAPHS = ("directional", "bidirectional", "induced")  # as in PyG
NumNeighbors = Sequence[int] | Mapping[EdgeType, Sequence[int]]


class TemporalStrategy(str, Enum):
    """The choice among neighbors that are not newer than the seed."""

    UNIFORM = "uniform"
    """Random neighbors."""
    LAST = "last"
    """The latest neighbors."""


@dataclass(frozen=True, kw_only=True)
class Choices:
    """The choices of a neighbor sampler; strings become members of enums.

    Args:
        replace: Whether the same edge may be drawn again.
        subgraph_type: Sampled edges only, sampled edges and their reverses, or all edges between sampled nodes.
        disjoint: Whether every seed has a separate tree.
        temporal_strategy: The choice of neighbors if the graph has times.
        temporal: Whether the sampler uses times.
    """

    replace: bool
    subgraph_type: "SubgraphType | str"
    disjoint: bool
    temporal_strategy: TemporalStrategy | str
    temporal: bool

    def __post_init__(self) -> None:
        subgraph_type = getattr(self.subgraph_type, "value", self.subgraph_type)  # a member of PyG's enum
        if subgraph_type not in _SUBGRAPHS:
            kinds = ", ".join(map(repr, _SUBGRAPHS))
            raise ValueError(f"subgraph_type is {self.subgraph_type!r}; it is one of {kinds}.")
        object.__setattr__(self, "subgraph_type", subgraph_type)
        object.__setattr__(self, "temporal_strategy", TemporalStrategy(self.temporal_strategy))
        object.__setattr__(self, "disjoint", self.disjoint or self.temporal)
        if self.last and self.replace:
            raise ValueError("temporal_strategy='last' takes each edge once; leave out replace=True.")
        if self.last and not self.temporal:
            raise ValueError("temporal_strategy='last' needs seed_time, and a graph with times.")

    @property
    def last(self) -> bool:
        """Whether the sampler takes the latest neighbors."""
        return self.temporal_strategy is TemporalStrategy.LAST


def ends(edge_type: EdgeType, graph: CompressedGraph) -> tuple[str, str]:
    """Return the node type of the rows and the node type of the neighbors."""
    source, _, destination = edge_type
    return (destination, source) if graph.direction is Direction.INCOMING else (source, destination)


def check_graphs(graphs: Mapping[EdgeType, CompressedGraph], choices: Choices) -> dict[str, int]:
    """Return the number of nodes of each type; check that the graphs agree and suit the choices."""
    if len({graph.direction for graph in graphs.values()}) > 1:
        raise ValueError("Some graphs are incoming, some outgoing; compress all edge types in one direction.")
    num_nodes: dict[str, int] = {}
    for edge_type, graph in graphs.items():
        near, far = ends(edge_type, graph)
        for node_type, size in ((near, graph.num_rows), (far, graph.num_cols)):
            if num_nodes.setdefault(node_type, size) != size:
                what = f"node type {node_type!r} of edge type {edge_type}" if node_type else "the graph"
                found = f"{size} nodes here and {num_nodes[node_type]} there"
                raise ValueError(f"{what} has {found}; pass the same num_nodes.")
        if choices.last and graph.weight is not None:
            raise ValueError("temporal_strategy='last' draws nothing; compress the graph without edge_weight.")
    timed = any(graph.time is not None for graph in graphs.values())
    if timed and not choices.temporal:
        raise ValueError(
            "The graph has times, but seed_time is not given: neighbors could be newer than their seeds. Give "
            "seed_time, or compress the graph without times."
        )
    if choices.temporal and not timed:
        raise ValueError("seed_time is given, but the graph has no times; compress it with node_time or edge_time.")
    return num_nodes


def counts_of_hops(num_neighbors: NumNeighbors, edge_types: Sequence[EdgeType]) -> dict[EdgeType, tuple[int, ...]]:
    """Return the number of neighbors per hop for each edge type; -1 means all."""
    if isinstance(num_neighbors, Mapping):
        if set(num_neighbors) != set(edge_types):
            missing, unknown = set(edge_types) - set(num_neighbors), set(num_neighbors) - set(edge_types)
            raise ValueError(
                f"num_neighbors must name every edge type of the graph; missing {sorted(missing)}, unknown "
                f"{sorted(unknown)}. Give [0, 0] for an edge type that sampling should skip."
            )
        counts = {edge_type: _numbers(num_neighbors[edge_type]) for edge_type in edge_types}
    else:
        counts = dict.fromkeys(edge_types, _numbers(num_neighbors))
    if len({len(hops) for hops in counts.values()}) > 1:
        raise ValueError(f"num_neighbors has different numbers of hops for different edge types: {counts}.")
    for hops in counts.values():
        for number in hops:
            if type(number) is not int or not -1 <= number < 2**31:
                raise ValueError(f"num_neighbors is {list(hops)}; each is 0 or more, or -1 for all neighbors.")
    return counts


def _numbers(hops: Any) -> tuple[Any, ...]:
    """Return the counts as Python numbers instead of numbers of NumPy and torch."""
    return tuple(number.item() if hasattr(number, "item") else number for number in hops)


def check_seeds(seeds: Mapping[str, Tensor], num_nodes: Mapping[str, int]) -> dict[str, Tensor]:
    """Check the seeds and return them as int64."""
    checked = {}
    for node_type, nodes in seeds.items():
        if node_type not in num_nodes:
            raise ValueError(f"Seeds are given for node type {node_type!r}; the graph has only {sorted(num_nodes)}.")
        if nodes.dim() != 1 or nodes.dtype not in (torch.int32, torch.int64):
            remedy = " Use mask.nonzero().flatten()." if nodes.dtype is torch.bool else ""
            raise ValueError(f"Seeds are {nodes.dtype} {[*nodes.shape]}; pass int32 or int64 [num_seeds].{remedy}")
        check_range("seeds", nodes, num_nodes[node_type])
        checked[node_type] = library.as_read(nodes.long())
    return checked


def times_of_trees(seeds: Mapping[str, Tensor], seed_time: Mapping[str, Tensor] | None) -> Tensor | None:
    """Return the time of every seed, type after type, int64 [num_trees]."""
    if seed_time is None:
        return None
    if set(seed_time) != set(seeds):
        raise ValueError(f"seed_time is given for {sorted(seed_time)}, seeds for {sorted(seeds)}; they must agree.")
    for node_type, nodes in seeds.items():
        time = seed_time[node_type]
        if time.shape != nodes.shape or time.dtype not in (torch.int32, torch.int64):
            raise ValueError(f"seed_time is {time.dtype} {[*time.shape]}; it needs int64 {[*nodes.shape]}.")
    return torch.cat([torch.empty(0, dtype=torch.int64), *(seed_time[node_type].long() for node_type in seeds)])


def reverse_types(graphs: Mapping[EdgeType, CompressedGraph]) -> dict[EdgeType, EdgeType]:
    """Return the type of the reversed edges of each type: the same type if both ends have one node type, or its twin.

    `ToUndirected` of PyTorch Geometric calls the twin of (a, r, b) (b, rev_r, a), and gives its edges the same numbers.
    """
    reverse_of: dict[EdgeType, EdgeType] = {}
    for source, relation, destination in graphs:
        edge_type, twin = (source, relation, destination), (destination, f"rev_{relation}", source)
        if twin in graphs:
            if graphs[twin].num_edges != graphs[edge_type].num_edges:
                raise ValueError(f"{twin} is not a mirror of {edge_type}: their numbers of edges differ.")
            reverse_of[edge_type], reverse_of[twin] = twin, edge_type
    for edge_type in graphs.keys() - reverse_of.keys():
        if edge_type[0] != edge_type[2]:
            raise ValueError(
                f"subgraph_type='bidirectional' needs the edge type ({edge_type[2]!r}, 'rev_{edge_type[1]}', "
                f"{edge_type[0]!r}); torch_geometric.transforms.ToUndirected adds it."
            )
        reverse_of[edge_type] = edge_type
    return reverse_of
