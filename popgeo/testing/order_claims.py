"""Graphs have no order: what a model makes of one does not depend on how its nodes and edges are numbered."""

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
    """The order in which the nodes or the edges of a graph are listed changes no result but the order of its rows.

    Tried: the nodes of each graph numbered in another order, or its edges listed in another, with their attributes.

    Cause: something that looks at the number of a node, such as an embedding of it, a reshape or a difference of rows;
    of edges, weights or features that belong to a place in the list, or a sum that takes edges to be sorted by
    destination: sort them first, or gather by edge_index.
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
    """An edge that is listed twice counts once.

    Tried: the first edge of each graph listed twice.

    Cause: a list of edges is summed as it is: call torch_geometric.utils.coalesce first.
    """
    twice, _ = rearranged(case.graphs, Level.EDGE, lambda n: torch.cat([torch.arange(n), torch.arange(min(n, 1))]))
    before, after = subject.see(case.graphs), subject.see(twice)
    kinds = {name: kind for name, kind in subject.kinds().items() if not (kind is None or kind.startswith("edge"))}
    what = "an edge that is listed twice"
    compare_runs(after, before, what, kinds=kinds, tolerance=subject.tolerance, rows_only=True)


def rearranged(
    graphs: Sequence[Any], level: Level, choose: Callable[[int], Tensor]
) -> tuple[list[Any], dict[str, Tensor]]:
    """The same graphs with their nodes, or edges, in another order, or with some edges several times.

    Args:
        graphs: Graphs without padding.
        level: Nodes or edges.
        choose: Takes the number of nodes, or edges, of a graph; returns their old numbers in the new order.

    Returns:
        The graphs, and where each row of a kind now is in a batch of them; only if no row is repeated.

    Raises:
        NotTriedError: an attribute holds numbers of nodes that cannot be renumbered.
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
            raise NotTriedError(f"{attribute.name} holds numbers of nodes, of a type that is not known")
        shape = [1] * values.dim()
        shape[attribute.dim] = -1
        values = _renumbered(values, store, Axis(Level.NODE, None), owner.view(shape).expand_as(values), orders)
    if attribute.axis in orders:
        values = values.index_select(attribute.dim, orders[attribute.axis])
    return replace(attribute, values=values)


def _renumbered(nodes: Tensor, store: FlatStore, axis: Axis, owner: Tensor, orders: dict[Axis, Tensor]) -> Tensor:
    """Numbers of nodes within their graphs, after those have moved."""
    if axis not in orders:
        return nodes
    starts = store.row_pointers[axis][:-1][owner]
    return (orders[axis].argsort()[nodes.long() + starts] - starts).to(nodes.dtype)
