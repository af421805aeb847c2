"""Claims about padding and other graphs in the batch, on which results must not depend."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn
from torch_geometric.data import Batch, Data, HeteroData

from popgeo.testing.claims import Case, NotTriedError, SubjectKind, claim, require
from popgeo.testing.fixed_batches import Garbage, a_few
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
    """Return the largest real value of each integer attribute, which any table of the model contains."""
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
    few = tuple(a_few(graphs, limit if num_graphs is None else max(min(limit, num_graphs - 1), 1)))
    call = call or (lambda model, batch: model(batch))
    subject = ModelSubject(what=model, graphs=few, call=call, loss=loss, num_graphs=num_graphs, tolerance=tolerance)
    for content in garbage:
        require(subject, "padding", garbage=content)
    require(subject, "order of graphs")
    require(subject, "other graphs")
