"""Captured updates: an optimizer's operations as graphs, which run with the numbers that a rehearsal gives."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from popgeo.capture.op_graph import Number, OpGraph
from popgeo.capture.schemas import makes_tensors, target
from popgeo.engine.graph_runner import GraphRunner
from popgeo.engine.optimizer.capture_update import UpdateGraph, capture_update, copy_worker
from popgeo.engine.optimizer.known_numbers import count_step, known_numbers
from popgeo.engine.optimizer.worker import Worker, map_floats, settings_of
from popgeo.engine.same_objects import holds_the_same

_DETACH = "aten.detach.default"  # a view that torch makes in some cases only


class CapturedWorker:
    """Runner of a worker's updates as captured graphs, for an optimizer that updates each element by itself.

    The worker itself runs the first update after `begin`, which makes the state, and each update that cannot be
    captured. A rehearsal gives the graph and the numbers of every other update.

    Args:
        worker: Worker over the flat parameters.

    Attributes:
        is_captured: Whether updates run as captured graphs. None before the second update.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker, self._has_state = worker, False
        self._settings: Sequence[Mapping[str, Any]] = settings_of(worker.optimizer)
        self._reset()

    def _reset(self) -> None:
        self.is_captured: bool | None = None
        self._rehearsal: Rehearsal | None = None
        self._numbers: list[float] | None = None  # of the last captured update
        self._runners: dict[int, GraphRunner | None] = {}  # by id of the update's graph, which the rehearsal keeps

    def begin(self, num_updates: int, seed: int) -> None:
        """Continue from the state that the optimizer holds now, as `Worker.begin`."""
        self._has_state = all(self._worker.optimizer.state.get(p) for p in self._worker.parameters)
        self._reset()
        self._worker.begin(num_updates, seed)

    def take_settings(self, settings: Sequence[Mapping[str, Any]]) -> None:
        """Set the settings of each parameter group for the next updates."""
        self._settings = settings
        self._worker.take_settings(settings)

    def step(self) -> None:
        """Update the parameters once with their gradients."""
        runner = self._next_runner() if self._has_state else None
        if runner is None:
            self._worker.step()
            self._has_state = True
        else:
            runner.run([])

    def _next_runner(self) -> GraphRunner | None:
        """Return the runner of the next update, with its numbers set. None if the update cannot be captured."""
        if self._rehearsal is None:
            self._rehearsal = Rehearsal(self._worker)
        update, numbers = self._rehearsal.next(self._settings)
        if id(update) not in self._runners:
            self._runners[id(update)] = self._make_runner(update)
            self.is_captured = None not in self._runners.values()
        runner = self._runners[id(update)]
        if runner is not None and numbers is not self._numbers:
            runner.set_numbers(numbers)
            self._numbers = numbers
        return runner

    def _make_runner(self, update: UpdateGraph | None) -> GraphRunner | None:
        if update is None:
            return None
        graph = update.graph
        given = {graph.values[v].storage for v in graph.inputs.values()}
        # A constant was made from a number and would keep its present value. State in a new tensor would be lost.
        if graph.constants or any(graph.values[v].storage not in given for v in graph.outputs if v is not None):
            return None
        return GraphRunner(replace(graph, outputs=()), self._worker.tensors())


class _OperationLog(TorchDispatchMode):
    """Log of the operations that run and of their numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[Any] = []
        self.floats: list[float] = []
        self.integers: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        keywords = kwargs or {}
        if makes_tensors(func):
            self.operations.append(func)
            given = (*args, *keywords.values())
            self.floats += [number for number in given if type(number) is float]
            self.integers += [number for number in given if type(number) is int]
        return func(*args, **keywords)


class Rehearsal:
    """Graphs and numbers of the coming updates of an optimizer, which it leaves unchanged.

    The optimizer must update each element by itself. Then its numbers (rates, bias corrections) depend on the step and
    on hyperparameters, never on weights. So the optimizer first updates parameters of one element, which gives the
    numbers exactly as plain PyTorch computes them. The operations on whole parameters are captured once, and again
    when the rehearsal takes a new path, as RAdam's does after a few steps.

    The optimizer's own code takes longer than the operations of a small model. `known_numbers` has the formulas of
    torch's usual optimizers. When they give the numbers of a rehearsal, the next updates use them, until a setting
    changes to or from zero, or a setting that is not a float changes. An optimizer that counts nothing, such as SGD,
    keeps its numbers until its settings change.

    Args:
        worker: Worker of the parameters. Its state may be empty.
    """

    def __init__(self, worker: Worker) -> None:
        self._whole = worker.parameters
        small = [p.detach().new_ones((1,) * min(p.dim(), 1)) for p in self._whole]
        types = [p.dtype if p.grad is None else p.grad.dtype for p in self._whole]
        gradients = [torch.ones_like(one, dtype=dtype) for one, dtype in zip(small, types, strict=True)]
        self._small = copy_worker(worker, small, gradients, [worker.optimizer.state.get(p, {}) for p in self._whole])
        self._state: dict[Any, Any] = self._small.optimizer.state
        self._graphs: dict[tuple[Any, ...], UpdateGraph | None] = {}  # by the path that a rehearsal took
        self._graph: UpdateGraph | None = None
        self._numbers: list[float] = []
        self._has_formula = self._keeps_numbers = False
        self._settings: Sequence[Mapping[str, Any]] = []  # of the last update
        self._form: Any = None  # these settings without the values of floats

    def next(self, settings: Sequence[Mapping[str, Any]]) -> tuple[UpdateGraph | None, list[float]]:
        """Return the graph and the numbers of the next update.

        Args:
            settings: Settings of each parameter group. Pass the same object while they do not change.

        Returns:
            The graph, and its numbers. The graph is None if the optimizer updates a whole parameter by other operations
            than a single element.
        """
        if settings is not self._settings:
            form = map_floats([*settings], lambda number: "zero" if number == 0 else "not zero")
            self._has_formula = self._has_formula and holds_the_same(form, self._form)
            self._settings, self._form = settings, form
            self._small.take_settings(settings)
        elif self._keeps_numbers:
            return self._graph, self._numbers
        if self._has_formula:
            count_step(self._small.optimizer)
            numbers = known_numbers(self._small.optimizer)
            assert numbers is not None  # the optimizer's class stays the same
            self._numbers = numbers
        else:
            self._rehearse()
        return self._graph, self._numbers

    def _rehearse(self) -> None:
        """Step the optimizer on parameters of one element, and choose the graph and numbers of the next update."""
        before = [_with_own_counts(self._state.get(p, {})) for p in self._small.parameters]
        self._small.take_settings(self._settings)  # the last step may have changed them
        with _OperationLog() as log:
            self._small.step()
        path = (*log.operations, *log.integers, len(log.floats), *(tuple(state) for state in before))
        if path not in self._graphs:
            self._graphs[path] = self._capture(before, log)
        self._graph, self._numbers = self._graphs[path], log.floats
        after = [self._state.get(p, {}).keys() for p in self._small.parameters]
        has_same_state = after == [state.keys() for state in before]
        self._has_formula = has_same_state and known_numbers(self._small.optimizer) == log.floats
        self._keeps_numbers = has_same_state and not self.counts_steps

    @property
    def counts_steps(self) -> bool:
        """Whether numbers may change from one update to the next while all settings stay the same."""
        parts = [part for state in self._state.values() for part in state.values()]
        settings = [choice for group in self._small.optimizer.param_groups for choice in group.values()]
        # A learning rate in a tensor may change in place.
        return any(map(_is_number, parts)) or any(isinstance(choice, Tensor) for choice in settings)

    def _capture(self, states: Sequence[Mapping[str, Any]], log: _OperationLog) -> UpdateGraph | None:
        """Capture the update of whole parameters. Return None if its operations differ from the log's."""
        whole = [torch.zeros_like(p.detach()) for p in self._whole]
        types = [p.grad.dtype for p in self._small.parameters if p.grad is not None]
        gradients = [torch.zeros_like(one, dtype=dtype) for one, dtype in zip(whole, types, strict=True)]
        update = capture_update(copy_worker(self._small, whole, gradients, states))
        graph, found = replace_numbers(update.graph)
        done = [op.target for op in graph.ops if op.target != _DETACH]
        expected = [name for name in map(target, log.operations) if name != _DETACH]
        if found != log.floats or done != expected:
            return None
        return replace(update, graph=graph, num_numbers=len(found))


def replace_numbers(graph: OpGraph) -> tuple[OpGraph, list[float]]:
    """Return a graph with a `Number` for each floating-point argument, and the values in the order of the operations.

    Example:
        >>> from popgeo.capture.capture import bind, capture
        >>> def half(x):
        ...     return 0.5 * x
        >>> graph, values = replace_numbers(capture(half, bind(half, torch.ones(2))).graph)
        >>> print(graph, values)
        %1 float32[2] = aten.mul.Tensor(%0, Number(slot=0, value=0.5)) [0.5]
    """
    values: list[float] = []

    def slot(argument: Any) -> Any:
        if type(argument) is not float:
            return argument
        values.append(argument)
        return Number(len(values) - 1, argument)

    ops = []
    for op in graph.ops:
        args = tuple(slot(argument) for argument in op.args)
        ops.append(replace(op, args=args, kwargs={key: slot(argument) for key, argument in op.kwargs.items()}))
    return replace(graph, ops=tuple(ops)), values


def _with_own_counts(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a state with copies of its scalar tensors, so that a step does not change them."""
    return {key: part.clone() if isinstance(part, Tensor) and not part.dim() else part for key, part in state.items()}


def _is_number(part: Any) -> bool:
    """Check whether an operation may read a number from a piece of state. Integer tensors are counters of rounding."""
    if isinstance(part, Tensor):
        return part.dim() == 0 and part.is_floating_point()
    return part is not None
