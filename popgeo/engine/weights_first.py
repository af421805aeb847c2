"""What depends on weights alone is computed once, and again only when a weight has changed: for forward passes."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from popgeo.capture.marks import empty_like
from popgeo.capture.op_graph import Number, Op, OpGraph
from popgeo.capture.passes import drop_unused, is_random, with_ops
from popgeo.engine.optimizer.joined_memory import copier

# To compare more bytes takes as long as to compute something from them: of one weight, and of all.
_LARGEST, _MOST = 2**20, 2**22


def weights_first(graph: OpGraph, given: Mapping[int, Tensor]) -> tuple[OpGraph, OpGraph, Sequence[Tensor]] | None:
    """Splits a graph in two parts, of which the first depends on weights alone.

    Args:
        graph: Constants in it have been computed.
        given: Weights and buffers, by value.

    Returns:
        The first part, the rest, and the constants of the rest that the first part makes, in the order of its outputs;
        None if nothing but views depends on weights alone.
    """
    mutated = graph.mutated_storages()
    # Weights that do not lie in one piece cannot be compared byte by byte.
    watched = {v for v, weight in given.items() if weight.is_contiguous() and weight.nbytes <= _LARGEST}
    alone = {v for v in (*watched, *graph.constants) if graph.values[v].storage not in mutated}
    early = [op for op in graph.ops if _is_early(op, graph, alone, mutated)]
    kept, views, others = _needed(graph, early)
    made = {v: empty_like(graph.values[v]) for v in kept}
    storages = {graph.values[v].storage for v in kept}
    if not kept or len(storages) < len(kept) or any(graph.values[v].offset for v in kept):
        return None
    first = drop_unused(with_ops(graph, early, kept))
    used = {v for op in first.ops for v in op.reads()}
    inputs = {one: v for one, v in graph.inputs.items() if v in given and v in used}
    if sum(given[v].nbytes for v in inputs.values()) > _MOST:
        return None
    late = [op for op in graph.ops if id(op) in others or views.issuperset(op.makes())]
    rest = drop_unused(with_ops(graph, late, graph.outputs, {**graph.constants, **made}))
    return dataclasses.replace(first, inputs=inputs), rest, list(made.values())


def _is_early(op: Op, graph: OpGraph, alone: set[int], mutated: frozenset[int]) -> bool:
    """Whether it makes something from nothing but what is `alone`, to which its results are added; a check does not."""
    touched = {graph.values[v].storage for v in (*op.reads(), *op.makes())}
    changes = op.writes or op.bodies or touched & mutated or any(isinstance(one, Number) for one in op.args)
    is_early = bool(op.reads() and op.makes()) and alone.issuperset(op.reads()) and not changes and not is_random(op)
    if is_early:
        alone.update(op.makes())
    return is_early


def _needed(graph: OpGraph, early: Sequence[Op]) -> tuple[list[int], set[int], set[int]]:
    """What the other operations need of the early ones: values in memory of their own, and views; and their ids."""
    of_early = {v: op for op in early for v in op.makes()}
    found: dict[int, None] = {}
    views: set[int] = set()
    others = {*map(id, graph.ops)} - {*map(id, early)}
    asked = [v for op in graph.ops if id(op) in others for v in op.reads()]
    asked += [v for v in graph.outputs if v is not None]
    while asked:
        v = asked.pop()
        if v not in of_early or v in found or v in views:
            continue
        if graph.is_view(of_early[v]):
            views.update(of_early[v].makes())
            asked += of_early[v].reads()
        else:
            found[v] = None
    return list(found), views, others


def watch(tensors: Sequence[Tensor]) -> Callable[[], bool]:
    """Return a function that says whether a bit of contiguous tensors has changed since it was last called, or made."""
    return copier(tensors, [tensor.detach().clone() for tensor in tensors])
