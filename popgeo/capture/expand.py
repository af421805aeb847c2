"""Puts the decomposition of an operation in its place: what a machine without that operation would run."""

import dataclasses
import inspect
from collections.abc import Callable, Container, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table
from torch._subclasses.fake_tensor import FakeTensorMode

from popgeo.capture.interrupts import held_interrupts
from popgeo.capture.marks import empty_like
from popgeo.capture.op_graph import Input, Op, OpGraph, Role, Value, overload, substitute
from popgeo.capture.passes import at_storage, new_storages, renumbered, replace_values, simplified, with_ops
from popgeo.capture.recorder import Recorder
from popgeo.plain_surroundings import plain_surroundings


def expand(graph: OpGraph) -> OpGraph:
    """The graph without operations of ours that have a decomposition in torch's table; else the same graph.

    What several decompositions have in common is computed once, as a forward pass and its backward pass have much.

    Example:
        >>> from popgeo.capture.capture import bind, capture
        >>> graph = capture(torch.relu, bind(torch.relu, torch.ones(2))).graph
        >>> expand(graph) is graph
        True
    """
    if not any(map(_is_expanded, graph.ops)):
        return graph
    writer = GraphWriter(graph)
    for op in graph.ops:
        decomposition = _decomposition(op)
        if decomposition is None:
            writer.add(dataclasses.replace(op, bodies=tuple(map(expand, op.bodies))) if op.bodies else op)
        else:
            writer.put(op, *_called(decomposition, op))
    return writer.graph()


def _is_expanded(op: Op) -> bool:
    return _decomposition(op) is not None or any(_is_expanded(inner) for body in op.bodies for inner in body.ops)


def _decomposition(op: Op) -> Callable[..., Any] | None:
    if op.bodies or not op.target.startswith("popgeo."):  # loops and branches are not operations of torch
        return None
    return decomposition_table.get(overload(op.target))  # type: ignore[call-overload]


def _called(decomposition: Callable[..., Any], op: Op) -> tuple[Callable[..., Any], Sequence[int], Any]:
    """The decomposition as a function of the tensors that the operation reads, these, and what its text depends on."""
    assert not op.kwargs  # of ours, which take all arguments by position
    given = list(dict.fromkeys(op.reads()))

    def called(*tensors: Tensor) -> Any:
        return decomposition(*substitute(tuple(op.args), dict(zip(given, tensors, strict=True)).__getitem__))

    return called, given, (op.target, repr(substitute(tuple(op.args), lambda v: f"%{given.index(v)}")))


class GraphWriter:
    """A graph that is being written again, with functions in the place of some operations.

    Args:
        graph: Whose operations are given to `add` or `put`, in order.
    """

    def __init__(self, graph: OpGraph) -> None:
        self._graph, self._ops = graph, list[Op]()
        self._values, self._constants = list(graph.values), dict(graph.constants)
        self._storages = new_storages(graph.values)
        parameters = graph.inputs_of(Role.PARAMETER)
        self._owners = {v: given.name.rpartition(".")[0] for given, v in parameters.items()}
        self._stands_for: dict[int, int] = {}
        self._bodies: dict[Any, OpGraph] = {}
        self._moved: dict[int, int] = {}

    def add(self, op: Op) -> None:
        """Writes an operation as it is."""
        self._ops.append(replace_values(op, self._stands_for))

    def put(self, op: Op, function: Callable[..., Any], given: Sequence[int], key: Any) -> None:
        """Writes what a function does in the place of an operation.

        Args:
            op: The operation that the function replaces; both have the same results, in order.
            function: Takes the given tensors; traced once for all of the same shapes and the same key.
            given: Values of the graph that are there before the operation.
            key: What else the function depends on.
        """
        given = [self._stands_for.get(v, v) for v in given]
        values = [self._values[v] for v in given]
        key = key, *((one.shape, one.stride, one.dtype, one.marks) for one in values)
        if key not in self._bodies:
            self._bodies[key] = trace(function, values)
        made = self._put(self._bodies[key], op, given)
        shown = {one.storage for one in values}
        for v, w in zip(op.outputs, made, strict=True):
            if v is None or w is None:
                continue
            self._stands_for[v] = w
            old, new = self._values[v], self._values[w]
            # What a function only shows in another way, the views of a result show in the same memory.
            if new.storage in shown and (old.shape, old.stride, old.offset) == (new.shape, new.stride, new.offset):
                self._moved[old.storage] = new.storage

    def graph(self) -> OpGraph:
        """What was written, without what nothing needs any more; repeated operations run once."""
        outputs = [None if v is None else self._stands_for.get(v, v) for v in self._graph.outputs]
        values = [at_storage(value, self._moved) for value in self._values]
        return simplified(with_ops(self._graph, self._ops, outputs, self._constants, values))

    def _put(self, body: OpGraph, op: Op, given: Sequence[int]) -> list[int | None]:
        """Writes a body in the place of an operation; the numbers of what it makes.

        What works with a parameter is in the module of that parameter, all else in that of the operation.
        """
        number = dict(zip(body.inputs.values(), given, strict=True))
        storage = {body.values[v].storage: self._values[w] for v, w in number.items()}
        for v, result in zip(body.outputs, op.outputs, strict=True):
            if v is not None and result is not None and self._is_alike(body.values[v], result, storage):
                number[v], storage[body.values[v].storage] = result, self._values[result]
        for v, value in enumerate(body.values):
            if v in number:
                continue
            owner = storage.get(value.storage)
            if owner is None:
                owner = storage[value.storage] = dataclasses.replace(value, storage=next(self._storages), offset=0)
            number[v], offset = len(self._values), owner.offset + value.offset
            self._values.append(dataclasses.replace(value, storage=owner.storage, offset=offset, producer=None))
        self._constants |= {number[v]: tensor for v, tensor in body.constants.items()}
        for inner in body.ops:  # whose `module` lists the given tensors that they read: see `_Recorder`
            owners = [self._owners[number[int(v)]] for v in inner.module.split() if number[int(v)] in self._owners]
            place = {"phase": op.phase, "source": op.source, "block": op.block}
            module = owners[0] if owners else op.module
            self._ops.append(renumbered(inner, number.__getitem__, number.__getitem__, module=module, **place))
        return [None if v is None else number[v] for v in body.outputs]

    def _is_alike(self, value: Value, result: int, taken: Container[int]) -> bool:
        """Whether a value in memory of its own can be the result, so that views of the result stay what they are."""
        old = self._values[result]
        return value.layout == old.layout and old.offset == 0 and value.storage not in taken


@held_interrupts()
@plain_surroundings()
def trace(function: Callable[..., Any], values: Sequence[Value]) -> OpGraph:
    """The operations of a function of tensors, given values that are like its arguments, each in memory of its own.

    Args:
        function: Takes one tensor for each value; returns a tensor, or several.
        values: What the tensors are like; the inputs of the graph, in this order.
    """
    fake_mode, recorder = FakeTensorMode(), _Recorder(inspect.unwrap(trace).__code__, _refuse)
    with fake_mode:
        fakes = list(map(empty_like, values))
    recorder.page.add_inputs({Input(Role.ARGUMENT, str(number)): fake for number, fake in enumerate(fakes)})
    with fake_mode, recorder, torch.no_grad():
        made = function(*fakes)
    return recorder.page.graph([made] if isinstance(made, Tensor) else list(made))


class _Recorder(Recorder):
    """Notes which of the given tensors an operation reads, as its module; the gradients follow their operation.

    One that reads none of them stays with the one before it, as an activation does with its layer.
    """

    def _write_down(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        self.phase = "forward" if torch._C._current_autograd_node() is None else "backward"
        memory = self.page.storages(Op(target="", args=self.page.with_refs(args), outputs=()).reads())
        given = [str(v) for v in self.page.inputs.values() if self.page.values[v].storage in memory]
        self.modules = [" ".join(given)] if given else self.modules
        super()._write_down(func, args, kwargs, result)


def _refuse(problem: object) -> None:
    raise AssertionError(f"A decomposition depends on data: {problem}")
