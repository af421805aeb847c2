"""Sums at rows as values of their own instead of changes of zeros, and the row of each edge."""

import dataclasses
from collections import Counter
from collections.abc import Sequence

import torch

from popgeo.capture.op_graph import Op, OpGraph, Ref, Value
from popgeo.capture.passes import new_storages, with_ops
from popgeo.engine.fuse.def_use import DefUse, ref

SCATTERS = "aten.index_add.default", "aten.scatter_add.default"
_REDUCE = "aten.scatter_reduce_.two"
_IN_PLACE = {
    "aten.index_add_.default": SCATTERS[0],
    "aten.scatter_add_.default": SCATTERS[1],
    _REDUCE: "aten.scatter_reduce.two",
}
_FILLED = {"aten.new_zeros.default": "aten.zeros.default", "aten.new_ones.default": "aten.ones.default"}
_ZEROS = "aten.zeros.default", "aten.zeros_like.default", "aten.new_zeros.default"


def out_of_place(graph: OpGraph) -> OpGraph:
    """The graph with sums into new zeros making a value instead of changing the zeros, which are made of nothing."""
    if not any(op.target in _IN_PLACE or op.target in _FILLED for op in graph.ops):
        return graph
    graph = with_ops(graph, [_made_of_nothing(op, graph.values) for op in graph.ops], graph.outputs)
    uses, values, ops = DefUse(graph), list(graph.values), list(graph.ops)
    storages = new_storages(values)
    writers = Counter(values[v].storage for op in graph.ops for v in op.writes)
    for index, op in enumerate(graph.ops):
        if op.target not in _IN_PLACE:
            continue
        (v,) = op.makes()
        zeros, storage = values[v].producer, values[v].storage
        if zeros is None or ops[zeros].target not in _ZEROS or writers[storage] != 1 or min(uses.users[v]) < index:
            continue
        values.append(dataclasses.replace(values[v], storage=next(storages)))
        base = len(values) - 1
        ops[zeros] = dataclasses.replace(ops[zeros], outputs=(base,))
        ops[index] = dataclasses.replace(op, target=_IN_PLACE[op.target], args=(Ref(base), *op.args[1:]), writes=())
    return with_ops(graph, ops, graph.outputs, values=values)


def _made_of_nothing(op: Op, values: Sequence[Value]) -> Op:
    """Zeros or ones without the tensor whose type they have, so that this tensor is not needed for that."""
    if op.target not in _FILLED:
        return op
    shape, dtype = list(op.args[1]), values[op.makes()[0]].dtype
    return dataclasses.replace(op, target=_FILLED[op.target], args=(shape,), kwargs={"dtype": dtype})


def rows_of(uses: DefUse, op: Op, shape: Sequence[int]) -> int | None:
    """The row of each edge, for a gather or a sum of rows of this shape; None where elements have rows of their own."""
    v = ref(op.args[2])
    if op.target in ("aten.gather.default", "aten.scatter_add.default", _IN_PLACE[_REDUCE]):  # given for each element
        values = uses.graph.values
        if values[v].shape != tuple(shape):
            return None
        widened = uses.maker(v, "aten.expand.default")
        column = v if widened is None else ref(widened.args[0])
        flat = uses.flat(column) if values[column].shape == (shape[0], *[1] * (len(shape) - 1)) else None
        v = -1 if flat is None else flat
    return v if uses.is_plain(v, shape[:1], torch.int64) else None


def is_zero(uses: DefUse, v: int) -> bool:
    """Whether a value is zero of the type that is served, and stays so."""
    if not uses.is_plain(v):
        return False
    constant = uses.graph.constants.get(v)
    return uses.maker(v, *_ZEROS) is not None if constant is None else not constant.any()
