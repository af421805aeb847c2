"""Finds interactions that others wrote in plain operations: messages gathered, scaled by filters and summed.

Only convolutions and layers are looked for. The rest is compared with what the same network is traced to: an operation
of the graph is part of it if it has the name and the operands of one of the trace.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from popgeo.capture.expand import trace
from popgeo.capture.op_graph import Op, OpGraph, Ref, Value, overload, substitute
from popgeo.capture.passes import drop_unused, with_ops
from popgeo.engine.fuse.def_use import DefUse, ref
from popgeo.engine.fuse.out_of_place import ZEROS, out_of_place
from popgeo.engine.fuse.plan_interactions import BACKWARD, CFCONV, CFCONV_BACKWARD, FORWARD, fits
from popgeo.ops import interaction_call
from popgeo.ops.activation import Activation
from popgeo.ops.filter_network import MAX_LAYERS
from popgeo.ops.interaction_call import Call, filters_shape

_PRODUCT, _LAYER = "aten.mul.Tensor", ("aten.addmm.default", "aten.mm.default")
# All of these refuse an index that is negative or too large, as an interaction does.
_GATHERS = "aten.index_select.default", "aten.gather.default"
_SCATTERS = "aten.index_add.default", "aten.scatter_add.default"
_KINDS = {kind.target: kind for kind in Activation}
_Layout = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]


@dataclass(frozen=True, kw_only=True)
class Convolution:
    """`result[dst] += x[src] * w`: the values of the graph, and the operations that product and sum are.

    Attributes:
        gathered: The rows of x at the edges; -1 where they are never in memory.
    """

    x: int
    w: int
    src: int
    dst: int
    num_rows: int
    result: int
    ops: frozenset[int]
    gathered: int = -1


@dataclass(frozen=True)
class Spelling:
    """How a network's activation is written: an operation with its numbers, from which a number may be taken."""

    target: str = "aten.relu.default"
    numbers: tuple[float, ...] = ()
    shift: float = 0.0

    def __call__(self, x: Tensor) -> Tensor:
        made = overload(self.target)(x, *self.numbers)
        return made - self.shift if self.shift else made


def join_plain_interactions(graph: OpGraph) -> OpGraph:
    """The graph with interactions in plain operations that the kernels take, and their backward passes, as one each.

    One of whose parts anything else reads is left as it is, and so are convolutions whose filters come from elsewhere.
    """
    if not interaction_call.is_served():
        return graph
    search = _Search(DefUse(out_of_place(graph)))
    placed: dict[int, list[Op]] = {}
    dropped = set[int]()
    for found in search.convolutions().values():
        dropped |= search.join(found, placed)
    if not placed:
        return graph
    ops: list[Op] = []
    for index, op in enumerate(out_of_place(graph, dropped).ops):
        ops += placed.get(index, [])
        ops += [] if index in dropped else [op]
    return drop_unused(with_ops(graph, ops, graph.outputs, values=search.values))


class _Search:
    """What all matches of a graph need: which operation makes what of what, and new values after the old ones."""

    def __init__(self, uses: DefUse) -> None:
        self._uses, self._ops, self.values = uses, uses.graph.ops, list(uses.graph.values)
        self._storages = itertools.count(max(value.storage for value in self.values) + 1)
        self._made = {_key(op, op.args): index for index, op in enumerate(self._ops)}
        self._shown: dict[Any, int] = {}
        for v, value in enumerate(self.values):
            self._shown.setdefault((value.storage, value.offset, *_layout(value)), v)

    def convolutions(self) -> dict[int, list[Convolution]]:
        """The convolutions of the graph by their filters, in order; the gradient of one by its x is another."""
        found: dict[int, list[Convolution]] = {}
        for index, op in enumerate(self._ops):
            if op.target == CFCONV and len(op.args) == 5:  # without plans of the user's own
                x, w, src, dst = map(ref, op.args[:4])
                ends = {"src": src, "dst": dst, "num_rows": op.args[4], "result": op.makes()[0]}
                found.setdefault(w, []).append(Convolution(x=x, w=w, ops=frozenset([index]), **ends))
            elif op.target in _SCATTERS and (one := _written_out(self._uses, index)) is not None:
                found.setdefault(one.w, []).append(one)
        return found

    def join(self, found: Sequence[Convolution], placed: dict[int, list[Op]]) -> set[int]:
        """Places the interaction that convolutions by the same filters are, if they are one; what it stands for."""
        uses, one = self._uses, found[0]
        proposed = _propose(uses, one)
        if proposed is None:
            return set()
        call, spelling = proposed
        grad, to_x, to_w, ops = self._gradient(one, found)
        (w, *gradients), network = self._numbers(call, spelling, to_w)
        made = [to_x if to_x in uses.users or to_x in uses.returned else None, None, None, *gradients]
        replaced = {*one.ops, *network, *ops}
        inner = {v for index in replaced for v in self._ops[index].makes()} - {one.result, *made}
        closed = not inner & uses.returned and all(replaced.issuperset(uses.users.get(v, ())) for v in inner)
        place, back = max(one.ops), min(ops, default=len(self._ops))
        if w != one.w or not closed or place > back or not fits(uses, call):
            return set()
        call, views = self._with_flat_envelope(call, self._ops[place])
        shape = filters_shape(self.values[one.src].shape[0], self.values[one.x].shape[1])
        filters = self._new(_value((shape, (shape[1], 1), torch.float32), storage=next(self._storages)))
        new = {"target": FORWARD, "args": call.arguments, "outputs": (one.result, filters), "kwargs": {}, "writes": ()}
        placed.setdefault(place, []).extend([*views, dataclasses.replace(self._ops[place], **new)])
        if ops:
            new |= {"target": BACKWARD, "outputs": tuple(v for v in made if v is not None)}
            new["args"] = *call.arguments, Ref(filters), Ref(grad), [v is not None for v in made]
            placed.setdefault(back, []).append(dataclasses.replace(self._ops[back], **new))
        return replaced

    def _with_flat_envelope(self, call: Any, like: Op) -> tuple[Any, list[Op]]:
        """The call with one factor for each edge, and the view of the column that it is, where there is one."""
        if call.envelope is None:
            return call, []
        column = self.values[call.envelope.value]
        flat = self._new(dataclasses.replace(column, shape=column.shape[:1], stride=(1,)))
        new = {"target": "aten.view.default", "args": (call.envelope, [column.shape[0]]), "outputs": (flat,)}
        view = dataclasses.replace(like, kwargs={}, writes=(), **new)
        return dataclasses.replace(call, envelope=Ref(flat)), [view]

    def _gradient(self, one: Convolution, among: Sequence[Convolution]) -> tuple[int, int | None, int | None, set[int]]:
        """The gradient that a backward pass is given, those by x and w that it makes, and its operations, if any.

        Written out it is the convolution by the same filters from receivers to senders, and the product of what both
        gather.
        """
        for index in self._uses.users_of(one.w, CFCONV_BACKWARD):
            grad, *others = map(ref, self._ops[index].args)
            if others == [one.x, one.w, one.src, one.dst]:
                return grad, *self._ops[index].makes(), {index}  # type: ignore[return-value]
        for back in among:
            ends = back.src, back.dst, back.num_rows
            for index in self._uses.users_of(one.gathered, _PRODUCT):
                factors = sorted(map(ref, self._ops[index].args))
                is_ours = factors == sorted((one.gathered, back.gathered))
                if is_ours and ends == (one.dst, one.src, self.values[one.x].shape[0]):
                    return back.x, back.result, self._ops[index].makes()[0], {*back.ops, index}
        return -1, None, None, set()

    def _numbers(self, call: Any, spelling: Spelling, grad: int | None) -> tuple[list[int | None], set[int]]:
        """Which values of the graph are the filters and the gradients of weights and biases, and what makes them."""
        layers = [None if t is None else t.value for t in (*call.weights, *call.biases)]
        parts = [call.expansion.value, None if call.envelope is None else call.envelope.value, grad, *layers]
        body = _traced(tuple(None if v is None else _layout(self.values[v]) for v in parts), spelling)
        number = dict(zip(body.inputs.values(), (v for v in parts if v is not None), strict=True))
        ops, outside = set[int](), {*parts} - {grad}
        for op in body.ops:
            if not all(v in number for v in op.reads()):
                continue
            if body.is_view(op):
                (taken, *_), (made,) = op.reads(), op.makes()
                base, looked = self.values[number[taken]], body.values[made]
                offset = base.offset + looked.offset - body.values[taken].offset
                place = (base.storage, offset, *_layout(looked))
                if place in self._shown:
                    number[made] = self._shown[place]
                    index = self._uses.index_of_maker(number[made])
                    ops |= {index} if index is not None and number[taken] not in outside else set()
                continue
            args = substitute(tuple(op.args), {v: Ref(number[v]) for v in op.reads()}.__getitem__)
            index = self._made.get(_key(op, args))
            if index is None and op.target == _PRODUCT:  # its factors may have changed places
                index = self._made.get(_key(op, args[::-1]))
            if index is not None:
                ops.add(index)
                number |= zip(op.makes(), self._ops[index].makes(), strict=True)
        made_by = iter([None if v is None else number.get(v) for v in body.outputs])
        w = next(made_by)
        return [w, *(None if v is None or grad is None else next(made_by) for v in layers)], ops

    def _new(self, value: Value) -> int:
        self.values.append(value)
        return len(self.values) - 1


@functools.lru_cache(maxsize=64)
def _traced(layouts: tuple[_Layout | None, ...], activate: Spelling) -> OpGraph:
    """Filters from rows, envelope, weights and biases, and from their gradient those of weights and biases."""

    def filters(*given: Tensor) -> list[Tensor]:
        tensors = iter(given)
        rows, envelope, grad, *layers = [None if layout is None else next(tensors) for layout in layouts]
        layers = [None if t is None else t.detach().requires_grad_() for t in layers]
        half = len(layers) // 2
        with torch.set_grad_enabled(grad is not None):
            for i, (weight, bias) in enumerate(zip(layers[:half], layers[half:], strict=True)):
                rows = F.linear(activate(rows) if i else rows, weight, bias)  # type: ignore[arg-type]
            w = rows if envelope is None else rows * envelope  # type: ignore[operator]
        leaves = [t for t in layers if t is not None]
        return [w] if grad is None else [w, *torch.autograd.grad(w, leaves, grad)]  # type: ignore[list-item]

    return trace(filters, [_value(layout) for layout in layouts if layout is not None])


def _propose(uses: DefUse, one: Convolution) -> tuple[Any, Spelling] | None:
    """The interaction that a convolution seems to be, as a call on `Ref`s: its layers from the last to the first."""
    values, envelope, v = uses.graph.values, None, one.w
    shape = values[v].shape
    scaled = uses.maker(v, _PRODUCT)
    if scaled is not None:
        v, envelope = sorted(map(ref, scaled.args), key=lambda part: part < 0 or values[part].shape != shape)
        if min(v, envelope) < 0 or values[envelope].shape != (shape[0], 1):
            return None
    weights, biases, kinds = list[Ref](), list[Ref | None](), set[tuple[Activation, Spelling]]()
    while (layer := uses.maker(v, *_LAYER)) is not None:
        *bias, v, turned = map(ref, layer.args)
        weight = uses.untransposed(turned)
        if weight is None or (bias and values[bias[0]].shape != values[weight].shape[:1]):
            return None
        weights.insert(0, Ref(weight))
        biases.insert(0, Ref(bias[0]) if bias else None)
        between = _activation(uses, v)
        if between is None:
            break
        kinds.add(between[:2])
        v = between[2]
    if not 0 < len(weights) <= MAX_LAYERS or len(kinds) > 1:
        return None
    kind, spelling = kinds.pop() if kinds else (Activation.RELU, Spelling())
    ends: Any = Ref(one.src), Ref(one.dst), one.num_rows, int(kind), False
    column = None if envelope is None else Ref(envelope)
    return Call(Ref(one.x), Ref(v), column, weights, biases, *ends), spelling  # type: ignore[arg-type]


def _activation(uses: DefUse, v: int) -> tuple[Activation, Spelling, int] | None:
    """The activation that a value seems to be made by between two layers, how it is written, and what it is given."""
    shift, taken = 0.0, uses.maker(v, "aten.sub.Tensor")
    if (
        taken is not None
        and isinstance(taken.args[1], float)
        and math.isclose(taken.args[1], math.log(2), abs_tol=1e-6)
    ):
        shift, v = taken.args[1], ref(taken.args[0])
    op = uses.maker(v, *_KINDS)
    if op is None or op.args[1:] not in ((), (1, 20)) or uses.maker(ref(op.args[0]), *_LAYER) is None:
        return None
    kind = _KINDS[op.target]
    if shift and kind is not Activation.SOFTPLUS:
        return None
    return Activation.SHIFTED_SOFTPLUS if shift else kind, Spelling(op.target, op.args[1:], shift), ref(op.args[0])


def _written_out(uses: DefUse, index: int) -> Convolution | None:
    """The convolution in three operations that ends in this one."""
    op, values = uses.graph.ops[index], uses.graph.values
    base, messages = ref(op.args[0]), ref(op.args[3])
    product = uses.maker(messages, _PRODUCT)
    shape = values[messages].shape
    if product is None or len(shape) != 2 or op.kwargs.get("alpha", 1) != 1 or op.args[1] not in (0, -2):
        return None
    (result,), dst, place = op.makes(), _rows_of(uses, op, shape), uses.index_of_maker(messages)
    if dst is None or not _is_zero(uses, base) or not uses.is_plain(result, (values[base].shape[0], shape[1])):
        return None
    zeros, own = uses.index_of_maker(base), {index}
    if uses.users[messages] == [zeros, index] and uses.users[base] == [index]:
        own |= {zeros}  # of the type of the messages, which are made no more
    for gathered, w in (map(ref, product.args), map(ref, product.args[::-1])):
        gather = uses.maker(gathered, *_GATHERS)
        if gather is None or gather.args[1] not in (0, -2) or not uses.is_plain(w, shape):
            continue
        x, src = ref(gather.args[0]), _rows_of(uses, gather, shape)
        if src is not None and uses.is_plain(x, (*values[x].shape[:1], shape[1])):
            ends = {"src": src, "dst": dst, "num_rows": values[base].shape[0], "result": result, "gathered": gathered}
            return Convolution(x=x, w=w, ops=frozenset({*own, place}), **ends)
    return None


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
    return uses.maker(v, *ZEROS) is not None if constant is None else not constant.any()


def _key(op: Op, args: Sequence[Any]) -> str:
    return f"{op.target}{tuple(args)!r}{sorted(op.kwargs.items())!r}"


def _layout(value: Value) -> _Layout:
    return value.shape, value.stride, value.dtype


def _value(layout: _Layout, storage: int = 0) -> Value:
    shape, stride, dtype = layout
    return Value(shape=shape, stride=stride, offset=0, dtype=dtype, storage=storage, producer=None)
