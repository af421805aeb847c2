"""Padding changes nothing: what a model makes of a graph does not depend on what else is in the batch."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn
from torch_geometric.data import Batch, Data, HeteroData

from popgeo.testing.claims import Case, NotTriedError, SubjectKind, claim, require
from popgeo.testing.fixed_batches import Garbage, a_few
from popgeo.testing.model_subject import MORE, ModelSubject

_LARGE = 1e3  # what no feature is, and whose square float32 still holds


@claim("padding", SubjectKind.MODEL, settings=[{"garbage": one} for one in (0.0, 3.0, _LARGE, "other species")])
def padding(subject: ModelSubject, case: Case) -> None:
    """What a model makes of real graphs does not depend on how much padding there is, nor on what is in it.

    Tried: batches with the least padding and with more, of zeros, of 3, of 1000, and of other whole numbers, in
    training and in evaluation; results, loss, gradients and buffers are compared.

    Cause: a norm, readout, mean, maximum or softmax over all rows of the batch; popgeo.nn.BatchNorm takes nodes_mask,
    popgeo.ops.global_mean_pool and its like take batch.batch and batch.num_graphs. If gradients are NaN: a softmax or a
    division over the nodes of a graph slot without nodes, as behind to_dense_batch; let such a slot attend to itself,
    mask[:, 0] |= ~mask.any(1), and use its result nowhere.
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
    """No result of a real graph reads anything of padding, not even to multiply it by zero.

    Tried: NaN in all floating point numbers of padding; the results of real graphs are compared.

    Cause: a product with a mask or with a gradient of zero, which leaves NaN and infinity as they are: set padding to
    zero where it enters, with torch.where(batch.nodes_mask.unsqueeze(1), x, 0.0). If your padding is always finite,
    pass garbage=(0.0, 3.0).
    """
    for model in subject.modes:
        least = subject.see(case.graphs, model=model, padding=0)
        poisoned = subject.see(case.graphs, model=model, padding=MORE, garbage=math.nan)
        subject.compare(poisoned, least, "padding", model, rows_only=True)


@claim("order of graphs", SubjectKind.MODEL)
def order_of_graphs(subject: ModelSubject, case: Case) -> None:
    """What a model makes of a graph does not depend on the place of the graph in its batch.

    Tried: the same graphs in a batch backwards, in training and in evaluation.

    Cause: something that looks at the place of a graph in the batch, or random numbers that differ from row to row.
    """
    for model in subject.modes:
        forward = subject.see(case.graphs, model=model)
        backward = subject.see(case.graphs[::-1], model=model)
        backward = backward.of_graphs(range(len(case.graphs))[::-1])
        subject.compare(backward, forward, "the order of the graphs", model)


@claim("other graphs", SubjectKind.MODEL)
def other_graphs(subject: ModelSubject, case: Case) -> None:
    """What a model makes of a graph in evaluation does not depend on the other graphs of its batch.

    Tried: each graph alone, next to its batch, in evaluation.

    Cause: a norm, mean, maximum or softmax over the whole batch instead of over each graph; popgeo.nn.GraphNorm and
    popgeo.ops.global_softmax take batch.batch and batch.num_graphs.
    """
    together = subject.see(case.graphs)
    for i, graph in enumerate(case.graphs):
        alone = subject.see([graph])
        subject.compare(alone, together.of_graphs([i]), "the other graphs of the batch", rows_only=True)


def _other_species(graphs: Sequence[Any]) -> Garbage:
    """For each attribute of whole numbers the largest that a real row has, which any table of the model holds."""
    largest: dict[str, float] = {}
    for graph in graphs:
        for store in graph.stores:
            for name, value in store.items():
                whole = isinstance(value, Tensor) and not value.is_floating_point() and value.numel()
                if whole and "index" not in name and "batch" not in name:
                    largest[name] = max(float(value.max()), largest.get(name, -math.inf))
    if not largest:
        raise NotTriedError("the graphs have no whole numbers")
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
    """Checks that what a model makes of a graph depends neither on padding nor on the other graphs of the batch.

    A few graphs are put into batches of fixed size: with as little padding as there can be and with more of it, with
    numbers and NaN in place of its zeros, and in another order. Compared are the results of real graphs, nodes and
    edges, scalars, a loss and, in training, its gradients, and buffers such as running statistics, in the mode that the
    model is in and in evaluation. In evaluation each graph is also compared to itself alone.

    The check works on copies: the model, its buffers and torch's random numbers stay as they are. Dropout is left out.

    Args:
        model: A module or a function, called with a `Batch` that has `nodes_mask`, `edges_mask`, `graphs_mask`.
        graphs: A list of graphs, a dataset, or a batch, whose padding is taken away.
        call: Calls the model in another way, as `call(model, batch)`, where `model` is a copy of what was passed:
            `lambda model, batch: model(batch.x, batch.edge_index, batch.batch, num_graphs=batch.num_graphs)`.
        loss: What gradients are taken of, as `loss(result, batch)`. Otherwise it is the sum of the scalar results, or
            without any the mean square of the real rows of all results.
        num_graphs: Graphs of each batch, padding included, of a model that is built for a fixed number of them.
        limit: How many of the graphs are looked at.
        garbage: The content of floating point attributes of padding, one after another: a number, or a number for
            each name as in `{"z": 7, "x": math.nan}`. The others are compared to the first.
        tolerance: Largest difference allowed, relative to the largest entry of the same tensor; 1e-4 by default, 1e-8
            in float64.

    Raises:
        AssertionError: something differs. The message names it and the graph, says by how much, with which submodule
            it comes in, and what usually causes it.
        ValueError: there is no graph, or the model returns no tensor, or one that is neither a scalar nor has a row for
            each graph, node or edge.

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
    few = tuple(a_few(graphs, limit if num_graphs is None else max(min(limit, num_graphs - 1), 1)))
    call = call or (lambda model, batch: model(batch))
    subject = ModelSubject(what=model, graphs=few, call=call, loss=loss, num_graphs=num_graphs, tolerance=tolerance)
    for content in garbage:
        require(subject, "padding", garbage=content)
    require(subject, "order of graphs")
    require(subject, "other graphs")
