"""Computes the part of a forward pass that depends on weights alone once, and again after a weight has changed."""

import dataclasses
from collections.abc import Mapping, Sequence, Set

from torch import Tensor

from popgeo.capture.marks import empty_like
from popgeo.capture.op_graph import Number, Op, OpGraph
from popgeo.capture.passes import drop_unused, is_random, with_ops

# Limits in bytes, of one weight and of all weights: comparing more takes as long as computing from them.
_LARGEST, _MOST = 2**20, 2**22


def weights_first(
    graph: OpGraph, given: Mapping[int, Tensor], changeable: Set[int] = frozenset()
) -> tuple[OpGraph, OpGraph, Sequence[Tensor]] | None:
    """Split a graph into a part that depends on weights alone and the rest.

    Args:
        graph: The graph, with constants computed.
        given: The tensors of weights and buffers, by value.
        changeable: Constants that the user may change in place.

    Returns:
        The part that depends on weights alone, the rest, and the tensors that pass between them: outputs of the first
        part, in order, and constants of the rest. None if only views depend on weights alone.
    """
    mutated = graph.mutated_storages()
    # Only contiguous weights can be compared byte by byte.
    watched = {v for v, weight in given.items() if weight.is_contiguous() and weight.nbytes <= _LARGEST}
    known = {v for v in (*watched, *(graph.constants.keys() - changeable)) if graph.values[v].storage not in mutated}
    early, late, made = list[Op](), list[Op](), dict[int, Tensor]()
    for op in graph.ops:
        if not _depends_on_alone(op, known, graph, mutated):
            late.append(op)
            continue
        early.append(op)
        known.update(op.makes())
        if graph.is_view(op):
            late.append(op)  # views are cheap, so each part makes its own
        else:
            made |= {v: empty_like(graph.values[v]) for v in op.makes()}
    rest = drop_unused(with_ops(graph, late, graph.outputs, {**graph.constants, **made}))
    needed = {v for op in rest.ops for v in op.reads()} | {*rest.outputs}
    made = {v: tensor for v, tensor in made.items() if v in needed}
    storages = {graph.values[v].storage for v in made}
    if not made or len(storages) < len(made) or any(graph.values[v].offset for v in made):
        return None
    first = drop_unused(with_ops(graph, early, list(made)))
    used = {v for op in first.ops for v in op.reads()}
    inputs = {one: v for one, v in graph.inputs.items() if v in given and v in used}
    if sum(given[v].nbytes for v in inputs.values()) > _MOST:
        return None
    rest = with_ops(rest, rest.ops, rest.outputs, {**graph.constants, **made})
    return dataclasses.replace(first, inputs=inputs), rest, list(made.values())


def _depends_on_alone(op: Op, known: Set[int], graph: OpGraph, mutated: frozenset[int]) -> bool:
    """Return whether an operation computes values from `known` alone; a check, which makes no value, does not."""
    touched = {graph.values[v].storage for v in (*op.reads(), *op.makes())}
    changes = op.writes or op.bodies or touched & mutated or any(isinstance(one, Number) for one in op.args)
    return bool(op.reads() and op.makes()) and known >= {*op.reads()} and not changes and not is_random(op)
