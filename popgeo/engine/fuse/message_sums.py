"""Finds sums of messages in a graph: as the fused convolution, or as gather, product and sum at the receivers."""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from popgeo.capture.op_graph import Op, OpGraph, Ref, Value
from popgeo.capture.passes import with_ops
from popgeo.engine.fuse.def_use import DefUse, ref
from popgeo.engine.fuse.plan_interactions import CFCONV, CFCONV_BACKWARD

_PRODUCT = "aten.mul.Tensor"
# All of these refuse an index that is negative or too large, as an interaction does.
GATHERS = "aten.index_select.default", "aten.gather.default"
SCATTERS = "aten.index_add.default", "aten.scatter_add.default"
_REDUCE = "aten.scatter_reduce_.two"
_IN_PLACE = {
    "aten.index_add_.default": SCATTERS[0],
    "aten.scatter_add_.default": SCATTERS[1],
    _REDUCE: "aten.scatter_reduce.two",
}
_FILLED = {"aten.new_zeros.default": "aten.zeros.default", "aten.new_ones.default": "aten.ones.default"}
_ZEROS = "aten.zeros.default", "aten.zeros_like.default", "aten.new_zeros.default"


@dataclass(frozen=True, kw_only=True)
class MessageSum:
    """`result[dst] += x[src] * w`: the values of the graph, and the operations that product and sum are.

    Attributes:
        gathered: The rows of x at the edges; -1 if they are never in memory.
    """

    x: int
    w: int
    src: int
    dst: int
    num_rows: int
    result: int
    ops: frozenset[int]
    gathered: int = -1


def sums_by_filters(uses: DefUse) -> dict[int, list[MessageSum]]:
    """The sums of a graph by their filters, in order; the gradient of one with respect to its x is such a sum, too."""
    found: dict[int, list[MessageSum]] = {}
    for index, op in enumerate(uses.graph.ops):
        if op.target == CFCONV and len(op.args) == 5:  # without plans of the user's own
            x, w, src, dst = map(ref, op.args[:4])
            ends = {"src": src, "dst": dst, "num_rows": op.args[4], "result": op.makes()[0]}
            found.setdefault(w, []).append(MessageSum(x=x, w=w, ops=frozenset([index]), **ends))
        elif op.target in SCATTERS and (one := _written_out(uses, index)) is not None:
            found.setdefault(one.w, []).append(one)
    return found


def gradient_of(
    uses: DefUse, one: MessageSum, among: Sequence[MessageSum]
) -> tuple[int, int | None, int | None, set[int]]:
    """The gradient that a backward pass is given, those by x and w that it makes, and its operations, if there is one.

    Written out it is the sum by the same filters from receivers to senders, and the product of what both gather.
    """
    ops = uses.graph.ops
    for index in uses.users_of(one.w, CFCONV_BACKWARD):
        grad, *others = map(ref, ops[index].args)
        if others == [one.x, one.w, one.src, one.dst]:
            return grad, *ops[index].makes(), {index}  # type: ignore[return-value]
    for back in among:
        ends = back.src, back.dst, back.num_rows
        for index in uses.users_of(one.gathered, _PRODUCT):
            is_ours = sorted(map(ref, ops[index].args)) == sorted((one.gathered, back.gathered))
            if is_ours and ends == (one.dst, one.src, uses.graph.values[one.x].shape[0]):
                return back.x, back.result, ops[index].makes()[0], {*back.ops, index}
    return -1, None, None, set()


def out_of_place(graph: OpGraph) -> OpGraph:
    """The graph with sums into new zeros making a value instead of changing the zeros, which are made of nothing."""
    if not any(op.target in _IN_PLACE or op.target in _FILLED for op in graph.ops):
        return graph
    graph = with_ops(graph, [_made_of_nothing(op, graph.values) for op in graph.ops], graph.outputs)
    uses, values, ops = DefUse(graph), list(graph.values), list(graph.ops)
    new_storages = itertools.count(max(value.storage for value in values) + 1)
    writers = Counter(values[v].storage for op in graph.ops for v in op.writes)
    for index, op in enumerate(graph.ops):
        if op.target not in _IN_PLACE:
            continue
        (v,) = op.makes()
        zeros, storage = uses.index_of_maker(v), values[v].storage
        if zeros is None or ops[zeros].target not in _ZEROS or writers[storage] != 1 or min(uses.users[v]) < index:
            continue
        values.append(dataclasses.replace(values[v], storage=next(new_storages)))
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


def _written_out(uses: DefUse, index: int) -> MessageSum | None:
    """The sum in three operations that ends in this one."""
    op, values = uses.graph.ops[index], uses.graph.values
    base, messages = ref(op.args[0]), ref(op.args[3])
    product = uses.maker(messages, _PRODUCT)
    shape = values[messages].shape
    if product is None or len(shape) != 2 or op.kwargs.get("alpha", 1) != 1 or op.args[1] not in (0, -2):
        return None
    (result,), dst, place = op.makes(), rows_of(uses, op, shape), uses.index_of_maker(messages)
    if dst is None or place is None or not is_zero(uses, base):
        return None
    if not uses.is_plain(result, (values[base].shape[0], shape[1])):
        return None
    for gathered, w in (map(ref, product.args), map(ref, product.args[::-1])):
        gather = uses.maker(gathered, *GATHERS)
        if gather is None or gather.args[1] not in (0, -2) or not uses.is_plain(w, shape):
            continue
        x, src = ref(gather.args[0]), rows_of(uses, gather, shape)
        if src is not None and uses.is_plain(x, (*values[x].shape[:1], shape[1])):
            ends = {"src": src, "dst": dst, "num_rows": values[base].shape[0], "result": result, "gathered": gathered}
            return MessageSum(x=x, w=w, ops=frozenset([index, place]), **ends)
    return None


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
