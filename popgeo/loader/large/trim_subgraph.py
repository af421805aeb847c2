"""What an oversize subgraph loses: the farthest nodes first, drawn at random, and never a seed."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from popgeo.data.axes import Axis, Level, ends_of
from popgeo.loader.large.subgraph import Subgraph


@dataclass(frozen=True, kw_only=True, eq=False)
class Trimmed:
    """A subgraph cut down to size, and how many nodes and edges, over all types, it lost."""

    subgraph: Subgraph
    num_nodes: int = 0
    num_edges: int = 0


def trim_subgraph(
    subgraph: Subgraph, limits: Mapping[Axis, int], *, nodes: bool, edges: bool, generator: torch.Generator
) -> Trimmed:
    """Removes nodes, with their edges, and then edges, until the rest fits.

    The farthest from the seeds go first; of equally far ones random ones go. Both directions of an undirected edge stay
    or go together.

    Args:
        subgraph: Nodes and edges of a large graph.
        limits: The most nodes and edges of each type.
        nodes: Whether nodes may be removed.
        edges: Whether edges may be removed on their own.
        generator: Source of randomness.

    Raises:
        ValueError: too much is left although all that may go has gone.
    """
    before = _totals(subgraph)
    for level, may_go in ((Level.NODE, nodes), (Level.EDGE, edges)):
        over = {a: len(rows) - limits[a] for a, rows in subgraph.rows.items() if a.level is level}
        over = {axis: excess for axis, excess in over.items() if excess > 0}
        if over and not may_go:
            _refuse(subgraph, next(iter(over)), limits)
        if over and level is Level.NODE:
            subgraph = _without_nodes(subgraph, {a: _nodes_to_keep(subgraph, a, n, generator) for a, n in over.items()})
        elif over:
            subgraph = _without_edges(subgraph, {a: _edges_to_keep(subgraph, a, n, generator) for a, n in over.items()})
    after = _totals(subgraph)
    return Trimmed(subgraph=subgraph, num_nodes=before[0] - after[0], num_edges=before[1] - after[1])


def _totals(subgraph: Subgraph) -> tuple[int, int]:
    nodes = sum(len(rows) for axis, rows in subgraph.rows.items() if axis.level is Level.NODE)
    return nodes, sum(map(len, subgraph.rows.values())) - nodes


def _nodes_to_keep(subgraph: Subgraph, axis: Axis, excess: int, generator: torch.Generator) -> Tensor:
    hops = subgraph.hops[axis]
    keep = torch.ones(sum(hops), dtype=torch.bool)
    stop = len(keep)
    for size in hops[:0:-1]:
        going = min(excess, size)
        keep[stop - size + torch.randperm(size, generator=generator)[:going]] = False
        excess, stop = excess - going, stop - size
    if excess:
        where = "" if axis.store is None else f" of type {axis.store!r}"
        raise ValueError(
            f"A batch has {hops[0]} seeds{where} and room for {hops[0] - excess} real nodes. Raise num_nodes or lower "
            f"batch_size: seeds are never removed."
        )
    return keep


def _edges_to_keep(subgraph: Subgraph, axis: Axis, excess: int, generator: torch.Generator) -> Tensor:
    ends = subgraph.edge_index[axis]
    distance = torch.stack([_distances(subgraph, end)[row] for end, row in zip(ends_of(axis), ends, strict=True)])
    pair = torch.arange(ends.shape[1])
    if len(set(ends_of(axis))) == 1:
        low, high = ends.amin(0), ends.amax(0)
        pair = torch.from_numpy(np.unique((low * (int(high.max()) + 1) + high).numpy(), return_inverse=True)[1])
    counts = torch.bincount(pair)
    farthest = torch.zeros_like(counts).scatter_reduce(0, pair, distance.amax(0), "amax")
    order = torch.randperm(len(counts), generator=generator)
    order = order[farthest[order].argsort(descending=True, stable=True)]
    goes = torch.zeros(len(counts), dtype=torch.bool)
    goes[order[: int((counts[order].cumsum(0) < excess).sum()) + 1]] = True
    return ~goes[pair]


def _distances(subgraph: Subgraph, axis: Axis) -> Tensor:
    """How far each node is from the seeds. int64 [number of nodes]"""
    hops = torch.tensor(subgraph.hops[axis])
    return torch.repeat_interleave(torch.arange(len(hops)), hops)


def _without_nodes(subgraph: Subgraph, keep: Mapping[Axis, Tensor]) -> Subgraph:
    rows, hops, trees = dict(subgraph.rows), dict(subgraph.hops), dict(subgraph.trees)
    for axis, stays in keep.items():
        distances = _distances(subgraph, axis)[stays]
        hops[axis] = tuple(torch.bincount(distances, minlength=len(hops[axis])).tolist())
        rows[axis] = rows[axis][stays]
        if axis in trees:
            trees[axis] = trees[axis][stays]
    number = {axis: stays.cumsum(0) - 1 for axis, stays in keep.items()}
    edge_index = {}
    for axis, ends in subgraph.edge_index.items():
        of_ends = list(zip(ends_of(axis), ends, strict=True))
        alive = torch.ones(ends.shape[1], dtype=torch.bool)
        for end, row in of_ends:
            alive &= keep[end][row] if end in keep else alive
        rows[axis] = rows[axis][alive]
        edge_index[axis] = torch.stack(
            [number[end][row[alive]] if end in number else row[alive] for end, row in of_ends]
        )
    return replace(subgraph, rows=rows, edge_index=edge_index, hops=hops, trees=trees)


def _without_edges(subgraph: Subgraph, keep: Mapping[Axis, Tensor]) -> Subgraph:
    rows = {axis: rows[keep[axis]] if axis in keep else rows for axis, rows in subgraph.rows.items()}
    edge_index = {axis: e[:, keep[axis]] if axis in keep else e for axis, e in subgraph.edge_index.items()}
    return replace(subgraph, rows=rows, edge_index=edge_index)


def _refuse(subgraph: Subgraph, axis: Axis, limits: Mapping[Axis, int]) -> None:
    found, limit = len(subgraph.rows[axis]), limits[axis]
    what = "num_nodes" if axis.level is Level.NODE else "num_edges"
    needed = found + (axis.level is Level.NODE)
    raise ValueError(
        f"A batch has {found} {axis.label} and room for {limit} real ones: {found - limit} too many. Raise "
        f"FixedSizeOptions.{what} to {needed}, lower batch_size, or pass OverSizeStrategy.TrimNodesAndEdges."
    )
