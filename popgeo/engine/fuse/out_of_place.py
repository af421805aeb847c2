"""Sums into new zeros as values of their own, so that a pass that looks for patterns sees who makes what."""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Container

from popgeo.capture.op_graph import OpGraph, Ref
from popgeo.capture.passes import with_ops
from popgeo.engine.fuse.def_use import DefUse

ZEROS = "aten.zeros.default", "aten.zeros_like.default", "aten.new_zeros.default"
_IN_PLACE = {f"aten.{name}_.default": f"aten.{name}.default" for name in ("index_add", "scatter_add")}


def out_of_place(graph: OpGraph, where: Container[int] | None = None) -> OpGraph:
    """The graph with sums into new zeros making a value instead of changing the zeros.

    Args:
        graph: It has the same values, and new ones after them, wherever sums are changed.
        where: The operations to change; all of the kind when left out.
    """
    if not any(op.target in _IN_PLACE for op in graph.ops):
        return graph
    uses, values, ops = DefUse(graph), list(graph.values), list(graph.ops)
    new_storages = itertools.count(max(value.storage for value in values) + 1)
    writers = Counter(values[v].storage for op in graph.ops for v in op.writes)
    for index, op in enumerate(graph.ops):
        if op.target not in _IN_PLACE:
            continue
        (v,) = op.makes()
        zeros, storage = uses.index_of_maker(v), values[v].storage
        if zeros is None or ops[zeros].target not in ZEROS or writers[storage] != 1 or min(uses.users[v]) < index:
            continue
        values.append(dataclasses.replace(values[v], storage=next(new_storages)))
        if where is None or index in where:
            base = len(values) - 1
            ops[zeros] = dataclasses.replace(ops[zeros], outputs=(base,))
            ops[index] = dataclasses.replace(op, target=_IN_PLACE[op.target], args=(Ref(base), *op.args[1:]), writes=())
    return with_ops(graph, ops, graph.outputs, values=values)
