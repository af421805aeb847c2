"""Decompositions in place of popgeo's own operations, for a machine that lacks these operations."""

import inspect
from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table
from torch._subclasses.fake_tensor import FakeTensorMode

from popgeo.capture.interrupts import held_interrupts
from popgeo.capture.marks import empty_like
from popgeo.capture.op_graph import Input, Op, OpGraph, Role, Value, overload, substitute
from popgeo.capture.passes import at_storage, renumbered, replace_values, simplified, with_ops
from popgeo.capture.recorder import Recorder
from popgeo.capture.value_list import ValueList
from popgeo.plain_surroundings import plain_surroundings


def expand(graph: OpGraph) -> OpGraph:
    """Return the graph with torch's decompositions in place of popgeo's operations, or an unchanged graph.

    Operations that several decompositions share are computed once; a forward and its backward pass share many.

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
            writer.add(replace(op, bodies=tuple(map(expand, op.bodies))) if op.bodies else op)
        else:
            writer.put(op, *_called(decomposition, op))
    return writer.graph()


def _is_expanded(op: Op) -> bool:
    return _decomposition(op) is not None or any(_is_expanded(inner) for body in op.bodies for inner in body.ops)


def _decomposition(op: Op) -> Callable[..., Any] | None:
    if op.bodies or not op.target.startswith("popgeo."):  # torch does not know loops and branches
        return None
    return decomposition_table.get(overload(op.target))  # type: ignore[call-overload]


def _called(decomposition: Callable[..., Any], op: Op) -> tuple[Callable[..., Any], Sequence[int], Any]:
    """Return the decomposition as a function of the values that the operation reads, these values, and a cache key."""
    assert not op.kwargs  # popgeo's operations take all arguments by position
    given = list(dict.fromkeys(op.reads()))

    def called(*tensors: Tensor) -> Any:
        return decomposition(*substitute(tuple(op.args), dict(zip(given, tensors, strict=True)).__getitem__))

    return called, given, (op.target, repr(substitute(tuple(op.args), lambda v: f"%{given.index(v)}")))


class GraphWriter:
    """A writer that copies a graph and replaces some of its operations by functions.

    Args:
        graph: Graph whose operations are passed to `add` or `put`, in order.
    """

    def __init__(self, graph: OpGraph) -> None:
        self._graph, self._ops = graph, list[Op]()
        self._values, self._constants = ValueList(graph.values), dict(graph.constants)
        parameters = graph.inputs_of(Role.PARAMETER)
        self._owners = {v: given.name.rpartition(".")[0] for given, v in parameters.items()}
        self._stands_for: dict[int, int] = {}
        self._bodies: dict[Any, OpGraph] = {}
        self._moved: dict[int, int] = {}

    def add(self, op: Op) -> None:
        """Copy an operation."""
        self._ops.append(replace_values(op, self._stands_for))

    def put(self, op: Op, function: Callable[..., Any], given: Sequence[int], key: Any) -> None:
        """Write the operations of a function in place of an operation.

        Args:
            op: Replaced operation; the function returns the same results, in order.
            function: Function of the given tensors; traced once per key and tensor shapes.
            given: Values of the graph that exist before the operation.
            key: Everything else that the function depends on.
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
            # If the function returns a view of a given value, views of the old result move to that memory.
            if new.storage in shown and (old.shape, old.stride, old.offset) == (new.shape, new.stride, new.offset):
                self._moved[old.storage] = new.storage

    def graph(self) -> OpGraph:
        """Return the written graph without unused operations; equal operations run once."""
        outputs = [None if v is None else self._stands_for.get(v, v) for v in self._graph.outputs]
        values = [at_storage(value, self._moved) for value in self._values]
        return simplified(with_ops(self._graph, self._ops, outputs, self._constants, values))

    def _put(self, body: OpGraph, op: Op, given: Sequence[int]) -> list[int | None]:
        """Write a body in place of an operation, and return the numbers of its results.

        Operations on a parameter belong to the module of that parameter, all others to the module of the replaced
        operation.
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
                owner = storage[value.storage] = replace(value, storage=self._values.new_storage(), offset=0)
            offset = owner.offset + value.offset
            number[v] = self._values.add(replace(value, storage=owner.storage, offset=offset, producer=None))
        self._constants |= {number[v]: tensor for v, tensor in body.constants.items()}
        for inner in body.ops:  # their `module` lists the given tensors that they read: see `_Recorder`
            owners = [self._owners[number[int(v)]] for v in inner.module.split() if number[int(v)] in self._owners]
            place = {"phase": op.phase, "source": op.source, "block": op.block}
            module = owners[0] if owners else op.module
            self._ops.append(renumbered(inner, number.__getitem__, number.__getitem__, module=module, **place))
        return [None if v is None else number[v] for v in body.outputs]

    def _is_alike(self, value: Value, result: int, taken: Container[int]) -> bool:
        """Check that a value can replace a result of new memory, so that views of the result stay valid."""
        old = self._values[result]
        return value.layout == old.layout and old.offset == 0 and value.storage not in taken


@held_interrupts()
@plain_surroundings()
def trace(function: Callable[..., Any], values: Sequence[Value]) -> OpGraph:
    """Return the graph of a function of tensors; each tensor has new memory.

    Args:
        function: Function that takes one tensor per value and returns one or several tensors.
        values: Shapes and types of the tensors, which become the inputs of the graph in this order.
    """
    fake_mode, recorder = FakeTensorMode(), _Recorder(inspect.unwrap(trace).__code__, _refuse)
    with fake_mode:
        fakes = list(map(empty_like, values))
    recorder.page.add_inputs({Input(Role.ARGUMENT, str(number)): fake for number, fake in enumerate(fakes)})
    with fake_mode, recorder, torch.no_grad():
        made = function(*fakes)
    return recorder.page.graph([made] if isinstance(made, Tensor) else list(made))


class _Recorder(Recorder):
    """A recorder that writes, as the module of an operation, the numbers of the given tensors that it reads.

    An operation that reads none of them keeps the module of the previous one, as an activation follows its layer. A
    gradient keeps the module of its operation.
    """

    def _write_down(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        self.phase = "forward" if torch._C._current_autograd_node() is None else "backward"
        memory = self.page.storages(Op(target="", args=self.page.with_refs(args), outputs=()).reads())
        given = [str(v) for v in self.page.inputs.values() if self.page.values[v].storage in memory]
        self.modules = [" ".join(given)] if given else self.modules
        super()._write_down(func, args, kwargs, result)


def _refuse(problem: object) -> None:
    raise AssertionError(f"A decomposition depends on data: {problem}")
