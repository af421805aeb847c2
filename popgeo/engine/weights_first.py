"""Computes the part of a forward pass that depends on weights alone once, and again after a weight has changed."""

import dataclasses
from collections.abc import Mapping, Sequence

from torch import Tensor

from popgeo.capture.marks import empty_like
from popgeo.capture.op_graph import Number, Op, OpGraph
from popgeo.capture.passes import drop_unused, is_random, with_ops

# Limits in bytes, of one weight and of all weights: comparing more takes as long as computing from them.
_LARGEST, _MOST = 2**20, 2**22


def weights_first(graph: OpGraph, given: Mapping[int, Tensor]) -> tuple[OpGraph, OpGraph, Sequence[Tensor]] | None:
    """Split a graph into a part that depends on weights alone and the rest.

    Args:
        graph: The graph, with constants computed.
        given: The tensors of weights and buffers, by value.

    Returns:
        The part of the weights, the rest, and the tensors that pass between them: outputs of the first part, in order,
        and constants of the rest. None if only views depend on weights alone.
    """
    mutated = graph.mutated_storages()
    # Only contiguous weights can be compared byte by byte.
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
    """Return whether an operation computes values from `alone`, the values of weights; add its results to them."""
    touched = {graph.values[v].storage for v in (*op.reads(), *op.makes())}
    changes = op.writes or op.bodies or touched & mutated or any(isinstance(one, Number) for one in op.args)
    is_early = bool(op.reads() and op.makes()) and alone.issuperset(op.reads()) and not changes and not is_random(op)
    if is_early:
        alone.update(op.makes())
    return is_early


def _needed(graph: OpGraph, early: Sequence[Op]) -> tuple[list[int], set[int], set[int]]:
    """Return what the other operations need from the early ones: values, views of them, and the others' ids."""
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
