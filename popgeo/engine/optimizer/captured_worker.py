"""Runs an optimizer's updates as captured graphs: their operations at full size, their numbers from single elements."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from popgeo.capture.op_graph import Number, OpGraph
from popgeo.capture.schemas import makes_tensors, target
from popgeo.engine.graph_runner import GraphRunner
from popgeo.engine.optimizer.capture_update import UpdateGraph, capture_update
from popgeo.engine.optimizer.gradient_scaling import set_gradient
from popgeo.engine.optimizer.known_numbers import count_step, known_numbers
from popgeo.engine.optimizer.worker import Worker, noted_groups, settings_of, with_floats
from popgeo.engine.same_objects import holds_the_same

_DETACH = "aten.detach.default"  # a view that torch makes in some cases only


class CapturedWorker(Worker):
    """Runs the updates of another worker as captured graphs, where each element is treated alike.

    The first update after `begin` is the other worker's, which makes the state; so are those that cannot be captured.
    Each later update is rehearsed, which gives its numbers. An optimizer whose state counts nothing, such as SGD,
    rehearses only when its settings change.

    Args:
        inner: What it runs.
    """

    def __init__(self, inner: Worker) -> None:
        super().__init__(inner.optimizer)
        self.keeps_types = inner.keeps_types
        self._inner, self._has_state = inner, False
        self._forget()

    def begin(self, num_updates: int, seed: int) -> None:
        self._has_state = all(self.optimizer.state.get(parameter) for parameter in self.parameters)
        self._forget()
        self._inner.begin(num_updates, seed)

    def follow(self, settings: Sequence[Mapping[str, Any]]) -> None:
        self._inner.follow(settings)

    def step(self) -> None:
        runner = self._next() if self._has_state else None
        if runner is None:
            self._inner.step()
            self._has_state = True
        else:
            runner.run([])

    def state(self, parameter: Tensor) -> Mapping[str, Any]:
        return self._inner.state(parameter)

    @property
    def has_stepped(self) -> bool:
        return self._inner.has_stepped

    def over(self, parameters: Sequence[nn.Parameter]) -> Worker:
        return self._inner.over(parameters)

    def _forget(self) -> None:
        self.is_captured: bool | None = None
        self._rehearsal: Rehearsal | None = None
        self._groups: list[dict[str, Any]] | None = None  # with the settings of the last update
        self._steady: GraphRunner | None = None
        self._runners: dict[int, GraphRunner | None] = {}  # by id of the update's graph, which the rehearsal keeps

    def _next(self) -> GraphRunner | None:
        """What runs the next update, with its numbers; None if it cannot be captured."""
        if not holds_the_same(self.optimizer.param_groups, self._groups):
            self._groups, self._steady = noted_groups(self.optimizer), None
            self._settings = settings_of(self.optimizer)
        if self._steady is not None:
            return self._steady
        if self._rehearsal is None:
            self._rehearsal = Rehearsal(self._inner)
            self._counts_steps = self._rehearsal.counts_steps
        update, numbers = self._rehearsal.next(self._settings)
        if id(update) not in self._runners:
            self._runners[id(update)] = self._runner(update)
            self.is_captured = None not in self._runners.values()
        runner = self._runners[id(update)]
        if runner is not None:
            runner.set_numbers(numbers)
            if not self._counts_steps:
                self._steady = runner
        return runner

    def _runner(self, update: UpdateGraph | None) -> GraphRunner | None:
        if update is None:
            return None
        graph = update.graph
        given = {graph.values[v].storage for v in graph.inputs.values()}
        # A tensor made of a number would keep the value that it has now, and state that is made again would be lost.
        if graph.constants or any(graph.values[v].storage not in given for v in graph.outputs if v is not None):
            return None
        return GraphRunner(replace(graph, outputs=()), self.tensors())


class _RunningOperations(TorchDispatchMode):
    """Notes the operations that run and the numbers that they take."""

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
    """Goes through the coming updates of an optimizer that treats every element alike; the optimizer stays as it is.

    Numbers (rates, bias corrections) depend on the step and on hyperparameters alone, never on weights. So the
    optimizer first updates parameters of one element, which gives the numbers exactly as plain PyTorch computes them.
    The operations on whole parameters are captured once, and again if the rehearsal takes a different path than before,
    as RAdam does after its first steps.

    Running the optimizer's own code costs more than the operations of a small model. `known_numbers` has the formulas
    of torch's usual optimizers. If they give the numbers of a rehearsal, the next updates follow them, until a
    setting becomes or is no longer zero, or a setting that is not a float changes.

    Args:
        worker: Owns the parameters, and their state if there is any.
    """

    def __init__(self, worker: Worker) -> None:
        self._whole = worker.parameters
        small = [nn.Parameter(p.detach().new_ones((1,) * min(p.dim(), 1))) for p in self._whole]
        self._small = worker.over(small)
        self._state: dict[Any, Any] = self._small.optimizer.state
        for one, whole in zip(small, self._whole, strict=True):
            set_gradient(one, torch.ones_like(one.detach(), dtype=(whole if whole.grad is None else whole.grad).dtype))
            held = worker.optimizer.state.get(whole)
            if held:
                self._state[one] = {key: _resized(part, whole, one) for key, part in held.items()}
        self._graphs: dict[tuple[Any, ...], UpdateGraph | None] = {}  # by the path that a rehearsal took
        self._graph: UpdateGraph | None = None
        self._is_known = False
        self._settings: Sequence[Mapping[str, Any]] = []  # of the last update
        self._form: Any = None  # these settings without the values of floats

    def next(self, settings: Sequence[Mapping[str, Any]]) -> tuple[UpdateGraph | None, list[float]]:
        """The next update with these settings of each parameter group, and its numbers.

        The graph is None if the optimizer treats a whole parameter differently from one element of it.
        """
        if settings is not self._settings:
            form = with_floats([*settings], lambda number: "zero" if number == 0 else "not zero")
            self._is_known = self._is_known and holds_the_same(form, self._form)
            self._settings, self._form = settings, form
            self._small.follow(settings)
        if not self._is_known:
            return self._rehearse()
        count_step(self._small.optimizer)
        numbers = known_numbers(self._small.optimizer)
        assert numbers is not None  # its kind stays
        return self._graph, numbers

    def _rehearse(self) -> tuple[UpdateGraph | None, list[float]]:
        """Lets the optimizer update single elements."""
        before = [_noted(self._state.get(p, {})) for p in self._small.parameters]
        self._small.follow(self._settings)  # a step may have changed them
        with _RunningOperations() as running:
            self._small.step()
        path = (*running.operations, *running.integers, len(running.floats), *(tuple(state) for state in before))
        if path not in self._graphs:
            self._graphs[path] = self._capture(before, running)
        self._graph = self._graphs[path]
        after = [self._state.get(p, {}).keys() for p in self._small.parameters]
        keeps_form = after == [state.keys() for state in before]
        self._is_known = keeps_form and known_numbers(self._small.optimizer) == running.floats
        return self._graph, running.floats

    @property
    def counts_steps(self) -> bool:
        """Whether numbers may change from one update to the next although no setting does."""
        parts = [part for state in self._state.values() for part in state.values()]
        settings = [choice for group in self._small.optimizer.param_groups for choice in group.values()]
        # A rate that is a tensor may change without any sign.
        return any(map(_is_number, parts)) or any(isinstance(choice, Tensor) for choice in settings)

    def _capture(self, states: Sequence[Mapping[str, Any]], running: _RunningOperations) -> UpdateGraph | None:
        copies = self._small.over([nn.Parameter(torch.zeros_like(p.detach())) for p in self._whole])
        for whole, one, state in zip(copies.parameters, self._small.parameters, states, strict=True):
            assert one.grad is not None
            set_gradient(whole, torch.zeros_like(whole.detach(), dtype=one.grad.dtype))
            copies.optimizer.state[whole] = {key: _resized(part, one, whole) for key, part in state.items()}
        update = capture_update(copies)
        graph, found = replace_numbers(update.graph)
        done = [op.target for op in graph.ops if op.target != _DETACH]
        expected = [name for name in map(target, running.operations) if name != _DETACH]
        if found != running.floats or done != expected:
            return None
        return replace(update, graph=graph, num_numbers=len(found))


def replace_numbers(graph: OpGraph) -> tuple[OpGraph, list[float]]:
    """The graph with its floating-point arguments as `Number`, and their values, in the order of the operations.

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


def _noted(state: Mapping[str, Any]) -> dict[str, Any]:
    """A state as it is now, as far as its size and its counts go."""
    return {key: part.clone() if isinstance(part, Tensor) and not part.dim() else part for key, part in state.items()}


def _resized(part: Any, of: Tensor, to: Tensor) -> Any:
    """A piece of state for a parameter of another size; other values stay."""
    if isinstance(part, Tensor) and part.shape == of.shape and of.dim() > 0:
        return torch.ones_like(to.detach(), dtype=part.dtype)
    return copy.deepcopy(part)


def _is_number(part: Any) -> bool:
    if isinstance(part, Tensor):  # a counter of integers gives no number to an operation
        return part.dim() == 0 and part.is_floating_point()
    return part is not None
