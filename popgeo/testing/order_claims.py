"""Claims about the order of nodes and edges, on which results must not depend."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from popgeo.data import FlatStore, Level
from popgeo.data.axes import Attribute, Axis, ends_of, row_pointer
from popgeo.testing.claims import Case, NotTriedError, SubjectKind, claim
from popgeo.testing.compare_runs import compare_runs
from popgeo.testing.fixed_batches import kind_of
from popgeo.testing.model_subject import ModelSubject


@claim("order of nodes", SubjectKind.MODEL, settings=[{"level": "node"}])
@claim("order of edges", SubjectKind.MODEL, settings=[{"level": "edge"}])
def order(subject: ModelSubject, case: Case) -> None:
    """Check that the order of a graph's nodes or edges changes only the order of result rows.

    Tried: the nodes of each graph are renumbered, or its edges are listed in another order, with their attributes.

    Cause: for nodes, an operation depends on a node's number, such as an embedding of it, a reshape or a difference of
    rows; for edges, weights or features belong to a place in the list, or a sum assumes edges sorted by destination.
    Sort the edges first, or gather by edge_index.
    """
    level, generator = Level(case.settings["level"]), torch.Generator().manual_seed(0)
    graphs, places = rearranged(case.graphs, level, lambda number: torch.randperm(number, generator=generator))

    def check(model: Any, wide: bool) -> None:
        before, after = (subject.see(some, model=model, wide=wide) for some in (case.graphs, graphs))
        if level is Level.EDGE and not before.batch.batch.num_edges:
            raise NotTriedError("the graphs have no edges")
        moved = {kind: places.get(kind, rows)[: len(rows)] for kind, rows in after.places.items()}
        subject.compare(replace(after, places=moved), before, f"the order of the {level.value}s", model)

    for model in subject.modes:
        subject.unless_rounded(partial(check, model))


@claim("duplicate edges", SubjectKind.MODEL, optional=True)
def duplicate_edges(subject: ModelSubject, case: Case) -> None:
    """Check that an edge that is listed twice counts once.

    Tried: the first edge of each graph is listed twice.

    Cause: the model sums over all listed edges. Call torch_geometric.utils.coalesce first.
    """
    twice, _ = rearranged(case.graphs, Level.EDGE, lambda n: torch.cat([torch.arange(n), torch.arange(min(n, 1))]))
    before, after = subject.see(case.graphs), subject.see(twice)
    kinds = {name: kind for name, kind in subject.kinds().items() if not (kind is None or kind.startswith("edge"))}
    why = "an edge that is listed twice"
    compare_runs(after, before, why, kinds=kinds, tolerance=subject.tolerance, rows_only=True)


def rearranged(
    graphs: Sequence[Any], level: Level, choose: Callable[[int], Tensor]
) -> tuple[list[Any], dict[str, Tensor]]:
    """Return the same graphs with reordered or repeated nodes or edges.

    Args:
        graphs: Graphs without padding.
        level: Nodes or edges.
        choose: Function from the number of nodes, or edges, of a graph to their old numbers in the new order.

    Returns:
        The graphs, and the new position of each row of a kind in a batch of them, if no row is repeated.

    Raises:
        NotTriedError: an attribute holds node numbers of an unknown node type.
    """
    store = FlatStore.from_dataset(list(graphs))
    orders, pointers = {}, dict(store.row_pointers)
    for axis, pointer in store.row_pointers.items():
        if axis.level is level and axis.name is None:
            chosen = [choose(number) for number in pointer.diff().tolist()]
            orders[axis] = torch.cat([rows + first for rows, first in zip(chosen, pointer, strict=False)])
            pointers[axis] = row_pointer(torch.tensor([len(rows) for rows in chosen]))
    attributes = tuple(_moved(store, attribute, orders) for attribute in store.attributes)
    places = {kind_of(axis): new_order.argsort() for axis, new_order in orders.items()}
    return list(replace(store, attributes=attributes, row_pointers=pointers, row_ends=None, _cache={})), places


def _moved(store: FlatStore, attribute: Attribute, orders: dict[Axis, Tensor]) -> Attribute:
    if not attribute.is_tensor:
        return attribute
    values = attribute.tensor
    owner = torch.repeat_interleave(store.row_pointers[attribute.axis].diff())
    if attribute.name == "edge_index":
        ends = zip(values, ends_of(attribute.axis), strict=True)
        values = torch.stack([_renumbered(row, store, axis, owner, orders) for row, axis in ends])
    elif attribute.increments is not None and bool(attribute.increments.any()) and not values.is_floating_point():
        if store.is_hetero:
            raise NotTriedError(f"{attribute.name} contains node numbers of an unknown node type")
        shape = [1] * values.dim()
        shape[attribute.dim] = -1
        values = _renumbered(values, store, Axis(Level.NODE, None), owner.view(shape).expand_as(values), orders)
    if attribute.axis in orders:
        values = values.index_select(attribute.dim, orders[attribute.axis])
    return replace(attribute, values=values)


def _renumbered(nodes: Tensor, store: FlatStore, axis: Axis, owner: Tensor, orders: dict[Axis, Tensor]) -> Tensor:
    """Return node numbers within their graphs after reordering."""
    if axis not in orders:
        return nodes
    starts = store.row_pointers[axis][:-1][owner]
    return (orders[axis].argsort()[nodes.long() + starts] - starts).to(nodes.dtype)
