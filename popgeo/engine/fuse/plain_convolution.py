"""Finds continuous-filter convolutions written as gather, product and sum at the receivers, and makes each one call."""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from popgeo.capture.op_graph import Op, OpGraph, Ref
from popgeo.capture.passes import drop_unused, with_ops
from popgeo.engine.fuse.def_use import DefUse, ref

CFCONV, CFCONV_BACKWARD = "popgeo.cfconv.default", "popgeo.cfconv_backward.default"
_PRODUCT = "aten.mul.Tensor"
# All of these refuse an index that is negative or too large, as the calls that they become do.
_GATHERS = "aten.index_select.default", "aten.gather.default"
_SCATTERS = "aten.index_add.default", "aten.scatter_add.default"
_IN_PLACE = {"aten.index_add_.default": _SCATTERS[0], "aten.scatter_add_.default": _SCATTERS[1]}
_ZEROS = "aten.zeros.default", "aten.zeros_like.default", "aten.new_zeros.default"


@dataclass(frozen=True, kw_only=True)
class Convolution:
    """`out[dst] += x[src] * w` in three operations: the values, and where product and sum stand."""

    x: int
    w: int
    src: int
    dst: int
    num_rows: int
    gathered: int
    product: int
    scatter: int


@dataclass(frozen=True, kw_only=True)
class Back:
    """A convolution's backward pass: the sum that is the gradient of x, and the product that is that of w."""

    forward: Convolution
    to_x: Convolution
    to_w: int

    @property
    def place(self) -> int:
        """Where the first of its products stands."""
        return min(self.to_x.product, self.to_w)


def name_convolutions(graph: OpGraph, left: Container[int] = ()) -> OpGraph:
    """The graph with each convolution in plain operations, and its backward pass, as the fused operation.

    Messages that anything else reads are left as they are, and so is all that is not float32 in rows of one size.

    Args:
        graph: In which to look.
        left: Sums to leave as they are.
    """
    if not _may_have_any(graph):
        return graph
    uses = DefUse(_out_of_place(graph, range(len(graph.ops))))
    sums = [index for index, op in enumerate(uses.graph.ops) if op.target in _SCATTERS and op.makes()[0] not in left]
    found = [one for index in sums if (one := _match(uses, index)) is not None]
    if not found:
        return graph
    graph = _out_of_place(graph, {one.scatter for one in found})
    return drop_unused(_replaced(graph, found, list(_pairs(uses, found))))


def _may_have_any(graph: OpGraph) -> bool:
    """Whether rows that are gathered, each with factors of its own, are summed; seldom, and quick to rule out."""
    gathered, products, values = set[int](), set[int](), graph.values
    for op in graph.ops:
        if op.target in _GATHERS:
            gathered.update(op.makes())
        elif op.target == _PRODUCT:
            (made,), (one, other) = op.makes(), map(ref, op.args)
            if min(one, other) >= 0 and values[one].shape == values[other].shape and {one, other} & gathered:
                products.add(made)
        elif (op.target in _SCATTERS or op.target in _IN_PLACE) and ref(op.args[3]) in products:
            return True
    return False


def _replaced(graph: OpGraph, found: Sequence[Convolution], backs: Sequence[Back]) -> OpGraph:
    ops: list[Op | None] = list(graph.ops)
    for one in found:
        like = graph.ops[one.scatter]
        args: tuple[Any, ...] = Ref(one.x), Ref(one.w), Ref(one.src), Ref(one.dst), one.num_rows
        zeros = graph.values[ref(like.args[0])].producer
        if zeros is not None and set(graph.ops[zeros].reads()) & set(graph.ops[one.product].makes()):
            ops[zeros] = None  # of the type of the messages, which are made no more
        ops[one.product], ops[one.scatter] = None, _with(like, CFCONV, args, like.outputs)
    for back in backs:
        like, one = graph.ops[back.to_x.scatter], back.forward
        args = Ref(back.to_x.x), Ref(one.x), Ref(one.w), Ref(one.src), Ref(one.dst)
        ops[back.to_x.product] = ops[back.to_x.scatter] = ops[back.to_w] = None
        outputs = *like.outputs, *graph.ops[back.to_w].outputs
        ops[back.place] = _with(like, CFCONV_BACKWARD, args, outputs)
    return with_ops(graph, [op for op in ops if op is not None], graph.outputs)


def _with(like: Op, target: str, args: tuple[Any, ...], outputs: tuple[int | None, ...]) -> Op:
    return Op(target=target, args=args, outputs=outputs, phase=like.phase, module=like.module, source=like.source)


def _out_of_place(graph: OpGraph, where: Container[int]) -> OpGraph:
    """The graph with those of these operations that sum into new zeros making a value instead of changing the zeros."""
    uses, values, ops = DefUse(graph), list(graph.values), list(graph.ops)
    new_storages = itertools.count(max(value.storage for value in values) + 1)
    writers = Counter(values[v].storage for op in graph.ops for v in op.writes)
    for index, op in enumerate(graph.ops):
        if op.target not in _IN_PLACE or index not in where:
            continue
        (v,) = op.makes()
        zeros, storage = uses.index_of_maker(v), values[v].storage
        if zeros is None or ops[zeros].target not in _ZEROS or writers[storage] != 1:
            continue
        if min(uses.users[v]) < index:
            continue
        values.append(dataclasses.replace(values[v], storage=next(new_storages)))
        base = len(values) - 1
        ops[zeros] = dataclasses.replace(ops[zeros], outputs=(base,))
        args = Ref(base), *op.args[1:]
        ops[index] = dataclasses.replace(op, target=_IN_PLACE[op.target], args=args, writes=())
    return with_ops(graph, ops, graph.outputs, values=values)


def _match(uses: DefUse, index: int) -> Convolution | None:
    """The convolution that ends in this operation."""
    op, values = uses.graph.ops[index], uses.graph.values
    if op.kwargs.get("alpha", 1) != 1 or op.args[1] not in (0, -2):
        return None
    base, messages = ref(op.args[0]), ref(op.args[3])
    product = uses.maker(messages, _PRODUCT)
    if product is None or messages in uses.returned or not _only_summed(uses, messages, index):
        return None
    if len(values[messages].shape) != 2:
        return None
    shape = values[messages].shape
    channels = shape[1]
    num_rows, *width = values[base].shape
    dst = _rows_of(uses, op, shape)
    (result,) = op.makes()
    if dst is None or width != [channels] or not _is_zero(uses, base) or not uses.is_plain(result):
        return None
    for gathered, w in (map(ref, product.args), map(ref, product.args[::-1])):
        gather = uses.maker(gathered, *_GATHERS)
        if gather is None or gather.args[1] not in (0, -2) or not uses.is_plain(w, shape):
            continue
        x, src = ref(gather.args[0]), _rows_of(uses, gather, shape)
        if src is None or not uses.is_plain(x, (*values[x].shape[:1], channels)):
            continue
        place = uses.index_of_maker(messages)
        assert place is not None
        found = {"x": x, "w": w, "src": src, "dst": dst, "num_rows": num_rows, "gathered": gathered}
        return Convolution(**found, product=place, scatter=index)
    return None


def _only_summed(uses: DefUse, messages: int, scatter: int) -> bool:
    """Whether nothing reads the messages but their sum, and the zeros that it begins with, made in their type."""
    base = ref(uses.graph.ops[scatter].args[0])
    others = [index for index in uses.users[messages] if index != scatter]
    return not others or (
        others == [uses.index_of_maker(base)]
        and uses.graph.ops[others[0]].target in _ZEROS
        and uses.users[base] == [scatter]
        and base not in uses.returned
    )


def _rows_of(uses: DefUse, op: Op, shape: Sequence[int]) -> int | None:
    """The row of each edge, for a gather or a sum of rows of this shape."""
    v = ref(op.args[2])
    if op.target in ("aten.gather.default", "aten.scatter_add.default"):  # given for each element
        values = uses.graph.values
        if values[v].shape != tuple(shape):
            return None
        widened = uses.maker(v, "aten.expand.default")
        column = v if widened is None else ref(widened.args[0])
        flat = uses.flat(column) if values[column].shape == (shape[0], 1) else None
        v = -1 if flat is None else flat
    return v if uses.is_plain(v, shape[:1], torch.int64) else None


def _is_zero(uses: DefUse, v: int) -> bool:
    """Whether a value is zero of the type that is served, and stays so."""
    if not uses.is_plain(v):
        return False
    constant = uses.graph.constants.get(v)
    return uses.maker(v, *_ZEROS) is not None if constant is None else not constant.any()


def _pairs(uses: DefUse, found: Sequence[Convolution]) -> Iterator[Back]:
    """The backward passes among these: the same filters, from receivers to senders, with the gradient of the filters.

    That is the product of what both gather: of x at the senders, and of the gradient at the receivers.
    """
    values = uses.graph.values
    taken = set[int]()
    for to_x in found:
        for one in found:
            ends = one.w, one.src, one.dst, one.num_rows, values[one.x].shape[0]
            turned = to_x.w, to_x.dst, to_x.src, values[to_x.x].shape[0], to_x.num_rows
            if ends != turned:
                continue
            to_w = _product_of(uses, one.gathered, to_x.gathered)
            if to_w is None or to_w in taken:
                continue
            back = Back(forward=one, to_x=to_x, to_w=to_w)
            # The product may stand earlier, since it is made from what the sum was made from.
            if one.scatter < back.place:
                taken.add(to_w)
                yield back
                break


def _product_of(uses: DefUse, one: int, other: int) -> int | None:
    for index in uses.users_of(one, _PRODUCT):
        op = uses.graph.ops[index]
        (made,) = op.makes()
        if [ref(arg) for arg in op.args] in ([one, other], [other, one]) and uses.is_plain(made):
            return index
    return None
