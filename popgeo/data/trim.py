"""What an oversize batch loses: random nodes or edges, reproducibly, and never what must stay."""

from dataclasses import dataclass
from enum import Enum

import numpy as np
import torch
from torch import Tensor

from popgeo.data.axes import Attribute, Axis, Level, ends_of
from popgeo.data.flat_store import FlatStore
from popgeo.data.subset import keep_rows


class OverSizeStrategy(Enum):
    """What happens to graphs that do not fit a batch.

    Example:
        >>> OverSizeStrategy.TrimNodes.trims_nodes, OverSizeStrategy.TrimNodes.trims_edges
        (True, False)
    """

    Error = 0
    """Raise ValueError that says which graph and by how much."""
    Skip = 1
    """Leave out what does not fit, and count it."""
    TrimNodes = 2
    """Remove random nodes, with their edges, until the rest fits."""
    TrimEdges = 3
    """Remove random edges until the rest fits."""
    TrimNodesAndEdges = 4
    """Remove random nodes, then random edges, until the rest fits."""

    @property
    def trims_nodes(self) -> bool:
        """Whether nodes may be removed."""
        return self in (OverSizeStrategy.TrimNodes, OverSizeStrategy.TrimNodesAndEdges)

    @property
    def trims_edges(self) -> bool:
        """Whether edges may be removed on their own."""
        return self in (OverSizeStrategy.TrimEdges, OverSizeStrategy.TrimNodesAndEdges)


@dataclass(frozen=True, kw_only=True, eq=False)
class Trimmed:
    """A flat dataset cut down to size, and what it lost.

    Args:
        store: What is left.
        num_nodes: Nodes that each graph lost, over all types. int64 [num_graphs]
        num_edges: Edges that each graph lost, over all types. int64 [num_graphs]
    """

    store: FlatStore
    num_nodes: Tensor
    num_edges: Tensor


def trim(
    store: FlatStore,
    limits: np.ndarray,
    *,
    nodes: bool,
    edges: bool,
    generator: torch.Generator,
    protect: str | None = None,
) -> Trimmed:
    """Removes random nodes and edges until all graphs together fit into one batch.

    Every graph keeps a node of each type that it has. An edge goes when one of its ends goes; both directions of an
    undirected edge stay or go together.

    Args:
        store: The graphs of one batch.
        limits: The most nodes and edges of each type, in the order of `store.size_axes`.
        nodes: Whether nodes may be removed.
        edges: Whether edges may be removed on their own.
        generator: Source of randomness.
        protect: A boolean node attribute, True for nodes that must stay, such as the seeds of a neighbour sampler.

    Raises:
        ValueError: too much is left although all that may go has gone.

    Example:
        >>> from torch_geometric.data import Data
        >>> graph = Data(x=torch.arange(5.0), edge_index=torch.tensor([[0, 1], [1, 0]]), seed=torch.arange(5) < 2)
        >>> trimmed = trim(FlatStore.from_dataset([graph]), np.array([2, 9]), nodes=True, edges=False,
        ...                generator=torch.Generator(), protect="seed")
        >>> trimmed.store.attributes[0].values, trimmed.num_nodes
        (tensor([0., 1.]), tensor([3]))
    """
    before = store
    over = store.sizes.sum(axis=0) - limits
    if nodes:
        keep = {
            axis: _nodes_to_keep(store, axis, int(excess), generator, protect)
            for axis, excess in zip(store.size_axes, over, strict=True)
            if axis.level is Level.NODE and excess > 0
        }
        if keep:
            _check_numbering(store)
            store = keep_rows(store, {**keep, **_edges_between(store, keep)})
    over = store.sizes.sum(axis=0) - limits
    if edges:
        keep = {
            axis: _edges_to_keep(store, axis, int(excess), generator)
            for axis, excess in zip(store.size_axes, over, strict=True)
            if axis.level is Level.EDGE and excess > 0
        }
        store = keep_rows(store, keep)
    _check_is_enough(store, limits, nodes)
    lost = torch.from_numpy(before.sizes - store.sizes)
    split = len(store.node_types)
    return Trimmed(store=store, num_nodes=lost[:, :split].sum(1), num_edges=lost[:, split:].sum(1))


def _nodes_to_keep(
    store: FlatStore, axis: Axis, excess: int, generator: torch.Generator, protect: str | None
) -> Tensor:
    pointer = store.row_pointers[axis]
    order = torch.randperm(int(pointer[-1]), generator=generator)
    graph = torch.repeat_interleave(pointer.diff())
    stays = torch.zeros(len(order), dtype=torch.bool)
    stays[_first_of_each(graph[order], order)] = True
    for attribute in store.attributes:
        if attribute.axis == axis and attribute.name == protect:
            has_seed = torch.zeros(len(store), dtype=torch.bool)
            has_seed[graph[attribute.tensor]] = True
            stays = (stays & ~has_seed[graph]) | attribute.tensor
    may_go = order[~stays[order]]
    if len(may_go) < excess:
        where = "" if axis.store is None else f" of type {axis.store!r}"
        raise ValueError(
            f"{excess} of {len(order)} nodes{where} are too many for the batch, but only {len(may_go)} may be removed: "
            f"each graph keeps one, and protected ones stay. Raise num_nodes or lower the number of graphs."
        )
    keep = torch.ones(len(order), dtype=torch.bool)
    keep[may_go[:excess]] = False
    return keep


def _check_numbering(store: FlatStore) -> None:
    for attribute in store.attributes:
        if attribute.increments is not None and attribute.name != "edge_index":
            raise ValueError(
                f"Attribute {attribute.name!r} counts nodes, so removing nodes would leave it wrong. Pass "
                f"exclude_keys=[{attribute.name!r}] or OverSizeStrategy.TrimEdges."
            )


def _first_of_each(graphs: Tensor, order: Tensor) -> Tensor:
    """The first node of each graph in a random order."""
    _, first = np.unique(graphs.numpy(), return_index=True)
    return order[torch.from_numpy(first)]


def _edges_between(store: FlatStore, keep: dict[Axis, Tensor]) -> dict[Axis, Tensor]:
    """For each edge type, which edges keep both ends."""
    stays = {}
    for attribute in store.attributes:
        if attribute.name == "edge_index" and attribute.is_tensor:
            alive = [
                keep[axis][node] if axis in keep else torch.ones(len(node), dtype=torch.bool)
                for axis, node in zip(ends_of(attribute.axis), _ends_in_all(store, attribute), strict=True)
            ]
            stays[attribute.axis] = alive[0] & alive[1]
    return stays


def _ends_in_all(store: FlatStore, attribute: Attribute) -> list[Tensor]:
    """Both ends of each edge, counted through all graphs."""
    graph = torch.repeat_interleave(store.row_pointers[attribute.axis].diff())
    starts = [store.row_pointers[axis][:-1][graph] for axis in ends_of(attribute.axis)]
    return [row.to(torch.int64) + start for row, start in zip(attribute.tensor, starts, strict=True)]


def _edges_to_keep(store: FlatStore, axis: Axis, excess: int, generator: torch.Generator) -> Tensor:
    index = next((a for a in store.attributes if a.axis == axis and a.name == "edge_index"), None)
    num_edges = int(store.row_pointers[axis][-1])
    pair = np.arange(num_edges)
    if index is not None:
        source, destination = _ends_in_all(store, index)
        one_type = len(set(ends_of(index.axis))) == 1
        ends = torch.stack([source, destination])
        ends = ends.sort(dim=0).values if one_type else ends
        _, pair = np.unique(ends.numpy(), axis=1, return_inverse=True)
        pair = pair.ravel()
    counts = torch.from_numpy(np.bincount(pair))
    order = torch.randperm(len(counts), generator=generator)
    goes = torch.zeros(len(counts), dtype=torch.bool)
    num_going = int((counts[order].cumsum(0) < excess).sum()) + 1
    goes[order[:num_going]] = True
    return ~goes[torch.from_numpy(pair)]


def _check_is_enough(store: FlatStore, limits: np.ndarray, nodes: bool) -> None:
    totals = store.sizes.sum(axis=0)
    for axis, total, limit in zip(store.size_axes, totals, limits, strict=True):
        if total > limit:
            what = "nodes" if axis.level is Level.NODE else "edges"
            remedy = "OverSizeStrategy.TrimNodesAndEdges" if (nodes or what == "edges") else "one that trims nodes"
            raise ValueError(
                f"After trimming, {total} {what} are left and {limit} fit. Raise FixedSizeOptions.num_{what} "
                f"or pass {remedy}."
            )
