"""Padding changes nothing: what a model makes of a graph does not depend on what else is in the batch."""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch_geometric.data import Batch, Data, HeteroData

from popgeo.testing.compare_runs import Seen, compare_rows, compare_runs, kinds_of_rows
from popgeo.testing.fixed_batches import Garbage, a_few, fixed_batch
from popgeo.testing.observe import observe

_MORE = 5  # graphs of padding beyond the least; nodes and edges grow by multiples of it


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
        garbage: What stands in the floating point attributes of padding, one after another: a number, or a number for
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
    few = a_few(graphs, limit if num_graphs is None else max(min(limit, num_graphs - 1), 1))
    modes = _modes(model)
    for mode in modes:
        see = partial(_see, mode, call, num_graphs)
        least = see(few, 0, garbage[0])
        kinds = kinds_of_rows(see(few, _MORE, garbage[0]), least)
        for content in garbage:
            compare_runs(see(few, _MORE, content), least, "padding", kinds=kinds, loss=loss, tolerance=tolerance)
        backwards = replace(see(few[::-1], _MORE, garbage[0]), order=tuple(range(len(few)))[::-1])
        compare_runs(backwards, least, "the order of the graphs", kinds=kinds, loss=loss, tolerance=tolerance)
    for i, graph in enumerate(few):  # in the last mode, evaluation
        alone, together = see([graph], _MORE, garbage[0]), replace(least, order=(i,))
        compare_rows(alone, together, "the other graphs of the batch", kinds=kinds, tolerance=tolerance)


def _see(
    model: Any,
    call: Callable[[Any, Any], Any] | None,
    num_graphs: int | None,
    graphs: Sequence[Any],
    padding: int,
    garbage: Garbage,
) -> Seen:
    """Runs a copy of the model on these graphs."""
    batch = fixed_batch(graphs, padding=padding, garbage=garbage, num_graphs=num_graphs)
    run = observe(model, lambda copied: copied(batch.batch) if call is None else call(copied, batch.batch))
    return Seen(batch=batch, run=run, order=tuple(range(len(graphs))))


def _modes(model: Any) -> list[Any]:
    """The model as it is and, last, in evaluation; a function has one mode."""
    if not isinstance(model, nn.Module) or not any(module.training for module in model.modules()):
        return [model]
    return [model, copy.deepcopy(model).eval()]
