"""Finds interactions that others wrote in plain operations: messages gathered, scaled by filters and summed.

Only sums of messages and layers are looked for. The rest is compared with what the same network is traced to: an
operation of the graph is part of it if it has the name and the operands of one of the trace.
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
from popgeo.engine.fuse.message_sums import MessageSum, gradient_of, out_of_place, sums_by_filters
from popgeo.engine.fuse.plan_interactions import BACKWARD, FORWARD, fits
from popgeo.ops import interaction_call
from popgeo.ops.filter_network import MAX_LAYERS, Activation
from popgeo.ops.interaction_call import Call, filters_shape

_PRODUCT, _LAYER = "aten.mul.Tensor", ("aten.addmm.default", "aten.mm.default")
_KINDS = {kind.target: kind for kind in Activation}
_Layout = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]


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

    One of whose parts anything else reads is left as it is, and so are sums whose filters come from elsewhere.
    """
    if not interaction_call.is_served():
        return graph
    whole = out_of_place(graph)
    found = sums_by_filters(DefUse(whole))
    if not found:
        return graph
    search = _Search(DefUse(whole))
    dropped = set[int]().union(*(search.join(sums) for sums in found.values()))
    if not search.placed:
        return graph
    ops: list[Op] = []
    for index, op in enumerate(whole.ops):
        ops += search.placed.get(index, [])
        ops += [] if index in dropped else [op]
    return drop_unused(with_ops(whole, ops, whole.outputs, values=search.values))


class _Search:
    """What all matches of a graph need: which operation makes what of what, and new values after the old ones."""

    def __init__(self, uses: DefUse) -> None:
        self._uses, self._ops, self.values = uses, uses.graph.ops, list(uses.graph.values)
        self.placed: dict[int, list[Op]] = {}  # by the number of the operation that they stand before
        self._storages = itertools.count(max((value.storage for value in self.values), default=0) + 1)
        self._made = {_key(op, op.args): index for index, op in enumerate(self._ops)}
        self._shown: dict[Any, int] = {}
        for v, value in enumerate(self.values):
            self._shown.setdefault((value.storage, value.offset, *_layout(value)), v)

    def join(self, found: Sequence[MessageSum]) -> set[int]:
        """Places the interaction that sums by the same filters are, if they are one; the operations it represents."""
        uses, one = self._uses, found[0]
        proposed = _propose(uses, one)
        if proposed is None:
            return set()
        call, spelling = proposed
        grad, to_x, to_w, ops = gradient_of(uses, one, found)
        (w, *gradients), network = self._numbers(call, spelling, to_w)
        made = [to_x if to_x in uses.users or to_x in uses.returned else None, None, None, None, *gradients]
        replaced = {*one.ops, *network, *ops}
        inner = {v for index in replaced for v in self._ops[index].makes()} - {one.result, *made}
        closed = not inner & uses.returned and all(replaced.issuperset(uses.users.get(v, ())) for v in inner)
        place, back = max(one.ops), min(ops, default=len(self._ops))
        if w != one.w or not closed or place > back or not fits(uses, call):
            return set()
        shape = filters_shape(self.values[one.src].shape[0], self.values[one.x].shape[1])
        filters = len(self.values)
        self.values.append(_value((shape, (shape[1], 1), torch.float32), storage=next(self._storages)))
        new = {"target": FORWARD, "args": call.arguments, "outputs": (one.result, filters), "kwargs": {}, "writes": ()}
        self.placed.setdefault(place, []).append(dataclasses.replace(self._ops[place], **new))
        if ops:
            new |= {"target": BACKWARD, "outputs": tuple(v for v in made if v is not None)}
            new["args"] = *call.arguments, Ref(filters), Ref(grad), [v is not None for v in made]
            self.placed.setdefault(back, []).append(dataclasses.replace(self._ops[back], **new))
        return replaced

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
        return [w] if grad is None else [w, *torch.autograd.grad(w, leaves, grad)]  # type: ignore[list-item,arg-type]

    return trace(filters, [_value(layout) for layout in layouts if layout is not None])


def _propose(uses: DefUse, one: MessageSum) -> tuple[Any, Spelling] | None:
    """The interaction that a sum seems to be, as a call on `Ref`s: its layers from the last to the first."""
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


def _key(op: Op, args: Sequence[Any]) -> str:
    return f"{op.target}{tuple(args)!r}{sorted(op.kwargs.items())!r}"


def _layout(value: Value) -> _Layout:
    return value.shape, value.stride, value.dtype


def _value(layout: _Layout, storage: int = 0) -> Value:
    shape, stride, dtype = layout
    return Value(shape=shape, stride=stride, offset=0, dtype=dtype, storage=storage, producer=None)
