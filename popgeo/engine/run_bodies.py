"""Runs the loops and branches of a graph: each body in memory of its own."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from popgeo.capture.op_graph import Input, Op, OpGraph, Ref
from popgeo.engine.fuse.prepared import PreparedCall, late_arguments


class Runner(Protocol):
    """Runs a graph; inputs for which it is given None stay as they were."""

    def run(self, inputs: Sequence[Tensor | None]) -> list[Tensor | None]:
        """The graph's outputs, valid until the next run."""


MakeRunner = Callable[[OpGraph, Mapping[Input, Tensor]], Runner]


def prepare_for_loop(make_runner: MakeRunner, graph: OpGraph, op: Op, tensors: Mapping[int, Tensor]) -> PreparedCall:
    """A call that runs a loop."""
    count, carried, outside = op.args
    body = _Body(make_runner, op.bodies[0], [*carried, *outside], tensors, own=len(carried))
    places = [tensors[v] for v in op.makes()]
    late, _ = late_arguments(op, tensors)

    def call(*come: Tensor) -> None:
        known = dict(zip(late, come, strict=True))
        made = body.run(known)
        for _ in range(count - 1):
            made = body.again(made)
        for place, tensor in zip(places, made, strict=True):
            place.copy_(tensor)

    return call


def prepare_cond(make_runner: MakeRunner, graph: OpGraph, op: Op, tensors: Mapping[int, Tensor]) -> PreparedCall:
    """A call that runs one of two branches."""
    condition, *given = op.args
    bodies = [
        _Body(make_runner, body, operands, tensors, own=sum(one.name.startswith("given.") for one in body.inputs))
        for body, operands in zip(op.bodies, given, strict=True)
    ]
    places = [tensors[v] for v in op.makes()]
    late, _ = late_arguments(op, tensors)

    def call(*come: Tensor) -> None:
        known = dict(zip(late, come, strict=True))
        holds = tensors[condition.value] if condition.value in tensors else known[condition.value]
        for place, tensor in zip(places, bodies[0 if bool(holds) else 1].run(known), strict=True):
            place.copy_(tensor)

    return call


class _Body:
    """A body bound to memory: values that it only reads stay in place, its own values are copied in."""

    def __init__(
        self,
        make_runner: MakeRunner,
        graph: OpGraph,
        operands: Sequence[Ref],
        tensors: Mapping[int, Tensor],
        own: int,
    ) -> None:
        given = [ref.value for ref in operands]
        read = [(one, v) for one, v in list(zip(graph.inputs, given, strict=True))[own:] if v in tensors]
        self._runner = make_runner(graph, {one: tensors[v] for one, v in read})
        self._tensors, self._own = tensors, given[:own]
        self._rest = [v for v in given[own:] if v not in tensors]

    def run(self, known: Mapping[int, Tensor]) -> list[Any]:
        """What the body makes of its operands."""
        values = [self._tensors[v] if v in self._tensors else known[v] for v in (*self._own, *self._rest)]
        return self._runner.run(values)

    def again(self, made: Sequence[Tensor]) -> list[Any]:
        """What the body makes of what it made before."""
        return self._runner.run([*made, *(None for _ in self._rest)])
