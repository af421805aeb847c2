"""Claims that results depend neither on padding and other graphs in the batch, nor on the order of nodes and edges."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data, HeteroData

from popgeo.data import FlatStore, Level
from popgeo.data.axes import Attribute, Axis, ends_of, row_pointer
from popgeo.testing.claims import Case, NotTriedError, SubjectKind, claim, require
from popgeo.testing.compare_runs import compare_runs
from popgeo.testing.fixed_batches import Garbage, first_graphs, kind_of
from popgeo.testing.model_subject import MORE, ModelSubject

_LARGE = 1e3  # larger than any feature, with a square that float32 can hold


@claim("padding", SubjectKind.MODEL, settings=[{"garbage": one} for one in (0.0, 3.0, _LARGE, "other species")])
def padding(subject: ModelSubject, case: Case) -> None:
    """Check that results of real graphs depend neither on the amount nor on the content of padding.

    Tried: batches with least and with more padding, filled with zeros, 3, 1000, and other integers, in training and in
    evaluation; results, loss, gradients and buffers are compared.

    Cause: a norm, readout, mean, maximum or softmax over all rows of the batch; popgeo.nn.BatchNorm takes nodes_mask,
    and popgeo.ops.global_mean_pool and similar functions take batch.batch and batch.num_graphs. If gradients are NaN: a
    softmax or a division over the nodes of a graph slot without nodes, as after to_dense_batch; let such a slot attend
    to itself, mask[:, 0] |= ~mask.any(1), and do not use its result.
    """
    garbage = case.settings["garbage"]
    if garbage == "other species":
        garbage = _other_species(case.graphs)
    for model in subject.modes:
        least = subject.see(case.graphs, model=model, padding=0)
        more = subject.see(case.graphs, model=model, padding=MORE, garbage=garbage)
        subject.compare(more, least, "padding", model)


@claim("poisoned padding", SubjectKind.MODEL)
def poisoned_padding(subject: ModelSubject, case: Case) -> None:
    """Check that no result of a real graph reads padding, not even to multiply it by zero.

    Tried: all floating point numbers of padding are NaN; the results of real graphs are compared.

    Cause: a product with a mask or with a zero gradient, which keeps NaN and infinity. Set padding to zero at the
    input, with torch.where(batch.nodes_mask.unsqueeze(1), x, 0.0). If your padding is always finite, pass garbage=(0.0,
    3.0).
    """
    for model in subject.modes:
        least = subject.see(case.graphs, model=model, padding=0)
        poisoned = subject.see(case.graphs, model=model, padding=MORE, garbage=math.nan)
        subject.compare(poisoned, least, "padding", model, rows_only=True)


@claim("order of graphs", SubjectKind.MODEL)
def order_of_graphs(subject: ModelSubject, case: Case) -> None:
    """Check that the result of a graph does not depend on its position in the batch.

    Tried: the same graphs in reverse order, in training and in evaluation.

    Cause: an operation uses the position of a graph in the batch, or random numbers differ between rows.
    """
    for model in subject.modes:
        forward = subject.see(case.graphs, model=model)
        backward = subject.see(case.graphs[::-1], model=model)
        backward = backward.of_graphs(range(len(case.graphs))[::-1])
        subject.compare(backward, forward, "the order of the graphs", model)


@claim("other graphs", SubjectKind.MODEL)
def other_graphs(subject: ModelSubject, case: Case) -> None:
    """Check that the result of a graph in evaluation does not depend on other graphs in the batch.

    Tried: each graph alone is compared to the graph in its batch, in evaluation.

    Cause: a norm, mean, maximum or softmax over the whole batch instead of over each graph; popgeo.nn.GraphNorm and
    popgeo.ops.global_softmax take batch.batch and batch.num_graphs.
    """
    together = subject.see(case.graphs)
    for i, graph in enumerate(case.graphs):
        alone = subject.see([graph])
        subject.compare(alone, together.of_graphs([i]), "the other graphs of the batch", rows_only=True)


def _other_species(graphs: Sequence[Any]) -> Garbage:
    """Return the largest real value of each integer attribute, as padding that every embedding table accepts."""
    largest: dict[str, float] = {}
    for graph in graphs:
        for store in graph.stores:
            for name, value in store.items():
                whole = isinstance(value, Tensor) and not value.is_floating_point() and value.numel()
                if whole and "index" not in name and "batch" not in name:
                    largest[name] = max(float(value.max()), largest.get(name, -math.inf))
    if not largest:
        raise NotTriedError("the graphs have no integers")
    return largest


def check_padding_invariance(
    model: nn.Module | Callable[[Any], Any],
    graphs: Sequence[Data | HeteroData] | Batch | Any,
    *,
    call: Callable[[Any, Any], Any] | None = None,
    loss: Callable[[Any, Any], Tensor] | None = None,
    num_graphs: int | None = None,
    limit: int = 4,
    garbage: Sequence[Garbage] = (0.0, 3.0, math.nan),
    tolerance: float | None = None,
) -> None:
    """Check that a graph's result depends neither on padding nor on other graphs in the batch.

    A few graphs are put into batches of fixed size: with the least padding and with more, with numbers and NaN in place
    of its zeros, and in another order. The check compares the results of real graphs, nodes and edges, scalars, a loss
    and, in training, its gradients, and buffers such as running statistics, in the model's own mode and in evaluation.
    In evaluation it also compares each graph to itself alone.

    The check works on copies: the model, its buffers and torch's random numbers stay unchanged. Dropout is left out.

    Args:
        model: Module or function, called with a `Batch` that has `nodes_mask`, `edges_mask`, `graphs_mask`.
        graphs: List of graphs, dataset, or batch; padding of a batch is removed.
        call: Function `call(model, batch)` that calls a copy of the model: `lambda model, batch: model(batch.x,
            batch.edge_index, batch.batch, num_graphs=batch.num_graphs)`.
        loss: Loss function `loss(result, batch)`. Default: the sum of the scalar results, or without scalars the mean
            square of the real rows of all results.
        num_graphs: Graphs of each batch, padding included, for a model with a fixed number of graphs.
        limit: Largest number of graphs to use.
        garbage: Contents of floating point attributes of padding, tried in order: a number, or a number for each name
            as in `{"z": 7, "x": math.nan}`. Each is compared to zeros.
        tolerance: Largest difference relative to the largest entry of the same tensor. Default: 1e-4, or 1e-8 in
            float64.

    Raises:
        AssertionError: a result differs. The message names the result, the graph, the difference, the first submodule
            that differs, and the usual cause.
        ValueError: there is no graph, the model returns no tensor, or a returned tensor is neither a scalar nor has a
            row per graph, node or edge.

    Example:
        >>> from popgeo import Molecules, ops
        >>> def total(batch):
        ...     return ops.global_add_pool(batch.x, batch.batch, batch.num_graphs)
        >>> check_padding_invariance(total, Molecules())
        >>> check_padding_invariance(lambda batch: total(batch) - batch.x.mean(0), Molecules())
        Traceback (most recent call last):
            ...
        AssertionError: result of graph ... depends on padding: ...
    """
    few = tuple(first_graphs(graphs, limit if num_graphs is None else max(min(limit, num_graphs - 1), 1)))
    call = call or (lambda model, batch: model(batch))
    subject = ModelSubject(what=model, graphs=few, call=call, loss=loss, num_graphs=num_graphs, tolerance=tolerance)
    for content in garbage:
        require(subject, "padding", garbage=content)
    require(subject, "order of graphs")
    require(subject, "other graphs")


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
