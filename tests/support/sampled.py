"""The plain Python reference of a neighbor sample, derived from the numbers of the drawn edges."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from popgeo.sampling import CompressedGraph, HeteroSampledSubgraph, SampledSubgraph, sample_neighbors

EdgeType = tuple[str, str, str]
ONLY: EdgeType = ("", "", "")


@dataclass
class Edges:
    """One edge type, uncompressed."""

    edge_index: Tensor
    num_nodes: tuple[int, int]
    direction: str = "incoming"
    weight: Tensor | None = None
    node_time: Tensor | None = None
    edge_time: Tensor | None = None

    def compress(self, **how: Any) -> CompressedGraph:
        return CompressedGraph.from_edge_index(
            self.edge_index,
            self.num_nodes,
            direction=self.direction,
            edge_weight=self.weight,
            node_time=self.node_time,
            edge_time=self.edge_time,
            **how,
        )

    @cached_property
    def near_far(self) -> list[tuple[int, int]]:
        """Return the node and its neighbor of each edge."""
        sources, destinations = self.edge_index.tolist()
        ends = (destinations, sources) if self.direction == "incoming" else (sources, destinations)
        return list(zip(*ends, strict=True))

    def time(self, edge: int) -> int:
        if self.edge_time is not None:
            return int(self.edge_time[edge])
        return 0 if self.node_time is None else int(self.node_time[self.near_far[edge][1]])

    def drawable(self, node: int, limit: int | None) -> list[int]:
        """Return the edges that may be drawn for a node."""
        return [
            edge
            for edge, (near, _) in enumerate(self.near_far)
            if near == node
            and (limit is None or self.time(edge) <= limit)
            and (self.weight is None or self.weight[edge] > 0)
        ]


@dataclass
class Question:
    """The arguments of a sampler; homogeneous graphs have the edge type `ONLY`."""

    edges: Mapping[EdgeType, Edges]
    seeds: Mapping[str, Tensor]
    num_neighbors: Mapping[EdgeType, Sequence[int]]
    seed_time: Mapping[str, Tensor] | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def ask(self, dtype: torch.dtype | None = None, **options: Any) -> HeteroSampledSubgraph:
        options = self.options | options
        graphs = {edge_type: edges.compress(dtype=dtype) for edge_type, edges in self.edges.items()}
        if ONLY not in graphs:
            return sample_neighbors(graphs, self.seeds, self.num_neighbors, seed_time=self.seed_time, **options)
        time = None if self.seed_time is None else self.seed_time[""]
        counts = self.num_neighbors[ONLY]
        return with_types(sample_neighbors(graphs[ONLY], self.seeds[""], counts, seed_time=time, **options))


def with_types(sample: SampledSubgraph) -> HeteroSampledSubgraph:
    return HeteroSampledSubgraph(
        node={"": sample.node},
        row={ONLY: sample.row},
        col={ONLY: sample.col},
        edge={ONLY: sample.edge},
        num_sampled_nodes={"": sample.num_sampled_nodes},
        num_sampled_edges=None if sample.num_sampled_edges is None else {ONLY: sample.num_sampled_edges},
        batch=None if sample.batch is None else {"": sample.batch},
    )


def same(one: HeteroSampledSubgraph, other: HeteroSampledSubgraph) -> bool:
    for name in ("node", "row", "col", "edge", "batch"):
        left, right = getattr(one, name), getattr(other, name)
        if (left is None) != (right is None):
            return False
        if left is not None and not all(torch.equal(left[key], right[key]) for key in left.keys() | right.keys()):
            return False
    return (one.num_sampled_nodes, one.num_sampled_edges) == (other.num_sampled_nodes, other.num_sampled_edges)


def check_directional(question: Question, sample: HeteroSampledSubgraph) -> None:
    """Follow the drawn edges hop by hop, and compare the sample with their results."""
    disjoint = sample.batch is not None
    limits = [time for node_type in question.seeds for time in (question.seed_time or {}).get(node_type, [])]
    # For each node type the (tree, node) pairs in order, and the first number of each pair.
    pairs: dict[str, list[tuple[int, int]]] = {node_type: [] for node_type in sample.node}
    first: dict[str, dict[tuple[int, int], int]] = {node_type: {} for node_type in sample.node}

    def add(node_type: str, pair: tuple[int, int]) -> int:
        number = first[node_type].setdefault(pair, len(pairs[node_type]))
        if number == len(pairs[node_type]):
            pairs[node_type].append(pair)
        return number

    tree = 0
    for node_type, nodes in question.seeds.items():
        for node in nodes.tolist():
            pair = (tree if disjoint else 0, node)
            first[node_type].setdefault(pair, len(pairs[node_type]))
            pairs[node_type].append(pair)
            tree += 1
    begin = dict.fromkeys(pairs, 0)
    drawn = {edge_type: zip(*columns, strict=True) for edge_type, columns in _columns(question, sample).items()}
    sizes = [{node_type: len(found) for node_type, found in pairs.items()}]
    edges_of_hops: dict[EdgeType, list[int]] = {edge_type: [] for edge_type in question.edges}
    for hop in range(len(next(iter(question.num_neighbors.values())))):
        end = {node_type: len(found) for node_type, found in pairs.items()}
        for edge_type, edges in question.edges.items():
            near, far = (edge_type[2], edge_type[0]) if edges.direction == "incoming" else (edge_type[0], edge_type[2])
            count = 0
            for number in range(begin[near], end[near]):
                tree, node = pairs[near][number]
                limit = int(limits[tree]) if question.seed_time else None
                drawable = edges.drawable(node, limit)
                wanted = _number(len(drawable), question.num_neighbors[edge_type][hop], question.options)
                mine = [next(drawn[edge_type]) for _ in range(wanted)]
                _check_draw(edges, drawable, [edge for edge, _, _ in mine], question.options)
                for edge, near_number, far_number in mine:
                    assert near_number == number
                    assert far_number == add(far, (tree, edges.near_far[edge][1]))
                count += wanted
            edges_of_hops[edge_type].append(count)
        begin = end
        sizes.append({node_type: len(found) for node_type, found in pairs.items()})
    assert all(next(rest, None) is None for rest in drawn.values())
    for node_type, found in pairs.items():
        assert sample.node[node_type].tolist() == [node for _, node in found]
        if sample.batch is not None:
            assert sample.batch[node_type].tolist() == [tree for tree, _ in found]
        grown = [sizes[0][node_type], *(b[node_type] - a[node_type] for a, b in pairwise(sizes))]
        assert sample.num_sampled_nodes[node_type] == tuple(grown)
    assert sample.num_sampled_edges == {edge_type: tuple(counts) for edge_type, counts in edges_of_hops.items()}


def _columns(question: Question, sample: HeteroSampledSubgraph) -> dict[EdgeType, tuple[list[int], ...]]:
    """Return for each edge type the numbers of edges, of their rows, and of their neighbors."""
    found = {}
    for edge_type, edges in question.edges.items():
        ends = (sample.col, sample.row) if edges.direction == "incoming" else (sample.row, sample.col)
        found[edge_type] = (sample.edge[edge_type].tolist(), *(end[edge_type].tolist() for end in ends))
    return found


def _number(drawable: int, asked: int, options: Mapping[str, Any]) -> int:
    if asked < 0 or drawable == 0:
        return drawable
    return asked if options.get("replace") else min(asked, drawable)


def _check_draw(edges: Edges, drawable: list[int], drawn: list[int], options: Mapping[str, Any]) -> None:
    assert set(drawn) <= set(drawable)
    assert options.get("replace") or len(set(drawn)) == len(drawn)
    if options.get("temporal_strategy") == "last":
        latest = sorted(map(edges.time, drawable))[len(drawable) - len(drawn) :]
        assert sorted(map(edges.time, drawn)) == latest


def induced(question: Question, sample: HeteroSampledSubgraph) -> dict[EdgeType, set[tuple[int, int, int]]]:
    """Return source and destination among the sampled nodes, and number, of every edge visible to its tree."""
    limits = [time for node_type in question.seeds for time in (question.seed_time or {}).get(node_type, [])]
    pairs = {}
    for node_type, nodes in sample.node.items():
        trees = [0] * len(nodes) if sample.batch is None else sample.batch[node_type].tolist()
        pairs[node_type] = list(zip(trees, nodes.tolist(), strict=True))
    found = {}
    for edge_type, edges in question.edges.items():
        incoming = edges.direction == "incoming"
        near, far = (edge_type[2], edge_type[0]) if incoming else (edge_type[0], edge_type[2])
        found[edge_type] = set()
        for number, (tree, node) in enumerate(pairs[near]):
            for edge, (here, there) in enumerate(edges.near_far):
                late = question.seed_time is not None and edges.time(edge) > int(limits[tree])
                if here == node and (tree, there) in pairs[far] and not late:
                    other = pairs[far].index((tree, there))
                    found[edge_type].add((other, number, edge) if incoming else (number, other, edge))
    return found
