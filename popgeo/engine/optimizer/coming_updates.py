"""Graphs and numbers of the coming updates of an optimizer, by its own arithmetic."""

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from popgeo.capture.op_graph import Number, OpGraph
from popgeo.engine.optimizer.capture_update import UpdateGraph, capture_update, copy_worker
from popgeo.engine.optimizer.formula import Evaluate, Formula, Tracked, recorded_math
from popgeo.engine.optimizer.state_numbers import ROUNDED, StateNumbers, is_number
from popgeo.engine.optimizer.worker import Worker, map_floats
from popgeo.engine.same_objects import holds_the_same

Place = tuple[int, Any]  # number of a parameter, and key in its state


@dataclass(frozen=True)
class _Layout:
    """Form of a tensor in the state."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, kw_only=True)
class _Path:
    """One way in which the optimizer's code runs.

    Attributes:
        form: Settings without the values of floats, and form of the state before the update.
        update: Operations. None if the update cannot be captured.
        evaluate: Function that computes their numbers, and the numbers in the state after the update.
        later: Places of these numbers.
        states: Form of the state after the update.
    """

    form: Any
    update: UpdateGraph | None = None
    evaluate: Evaluate = lambda settings, counts: ([], [])
    later: Sequence[Place] = ()
    states: Sequence[Mapping[str, Any]] = field(default_factory=list)


class ComingUpdates:
    """Graphs and numbers of the coming updates of an optimizer, which stays unchanged.

    The optimizer's own code runs once on copies, with a `Tracked` number for each float in its settings and each number
    in its state. So its arithmetic becomes a formula, and its operations become a graph with results of the formula as
    numbers. Each later update evaluates the formula, which takes a few microseconds and gives exactly the numbers of
    the optimizer. If a comparison has another result, as RAdam's has after a few updates, the code runs again.

    The code also runs once with plain numbers. If operations or numbers differ, the update is not captured.

    Args:
        worker: Worker of the parameters. Its state may be empty.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._paths: list[_Path] = []
        self._settings: Sequence[Mapping[str, Any]] | None = None  # of the last update
        self._floats: list[float] = []  # in these settings
        self._other_settings: Any = None
        self.read_state()

    def read_state(self) -> None:
        """Continue from the present state of the worker's optimizer."""
        held = [self._worker.optimizer.state.get(p, {}) for p in self._worker.parameters]
        parts = {(number, key): part for number, state in enumerate(held) for key, part in state.items()}
        scalars = {at: part for at, part in parts.items() if isinstance(part, Tensor) and part.dtype in ROUNDED}
        self._counts: dict[Place, Any] = {at: part for at, part in parts.items() if is_number(part)}
        self._counts |= {at: part.item() for at, part in scalars.items() if not part.dim()}
        self._set_states([_forms(state) for state in held])

    def next(self, settings: Sequence[Mapping[str, Any]]) -> tuple[UpdateGraph | None, list[float]]:
        """Return the graph and the numbers of the next update.

        Args:
            settings: Settings of each parameter group. Pass the same object while they do not change.

        Returns:
            The graph, and its numbers. The graph is None if the update cannot be captured.
        """
        if settings is not self._settings:
            self._settings, self._last, self._floats = settings, None, []
            others = map_floats([*settings], self._take)
            if not holds_the_same(others, self._other_settings):
                self._other_settings, self._fitting = others, None
        elif self._last is not None and not self._counts:
            return self._last
        if self._fitting is None:
            form = [self._other_settings, self._states]
            self._fitting = [path for path in self._paths if holds_the_same(path.form, form)]
        path, found = self._path()
        numbers, later = found
        self._counts = dict(zip(path.later, later, strict=True))
        if path.update is not None and path.states is not self._states:
            self._set_states(path.states)
        self._last = path.update, numbers
        return self._last

    def plain_counts(self) -> dict[Place, Any]:
        """Return the numbers in the state after the last update that are in no tensor."""
        return {at: self._counts[at] for at in self._in_no_tensor}

    def _take(self, number: float) -> type[float]:
        self._floats.append(number)
        return float

    def _set_states(self, states: Sequence[Mapping[str, Any]]) -> None:
        self._states, self._fitting, self._last = states, None, None
        forms = {(number, key): part for number, state in enumerate(states) for key, part in state.items()}
        self._in_no_tensor = [at for at, form in forms.items() if form in (int, float)]

    def _path(self) -> tuple[_Path, tuple[list[Any], list[Any]]]:
        """Return the path of the next update with its numbers. It is captured if no known path fits."""
        assert self._fitting is not None
        counts = [*self._counts.values()]
        for path in self._fitting:
            try:
                found = path.evaluate(self._floats, counts)
            except (ArithmeticError, ValueError):  # an error that the optimizer itself raises
                continue
            if found is not None:
                return path, found
        path = self._captured()
        self._paths.append(path)
        self._fitting.append(path)
        found = path.evaluate(self._floats, counts)
        assert found is not None
        return path, found

    def _captured(self) -> _Path:
        """Capture the next update."""
        form = [self._other_settings, self._states]
        formula, places = Formula(), [*self._counts]
        settings = {f"s{number}": real for number, real in enumerate(self._floats)}
        counts = {f"k{number}": real for number, real in enumerate(self._counts.values())}
        leaves = [formula.leaf(name, real) for name, real in (settings | counts).items()]
        tracked = dict(zip(places, leaves[len(settings) :], strict=True))
        try:
            real, states, _ = self._run(StateNumbers(None), self._floats, self._counts)
            with recorded_math():
                update, _, later = self._run(StateNumbers(formula), leaves[: len(settings)], tracked)
            numbers = _tracked(update.graph, formula)
            evaluate = formula.compiled([*settings], [*counts], numbers, [*later.values()])
        except Exception:  # an optimizer from another library may raise anything
            return _Path(form=form)
        slots = {number.name: Number(slot, number.real_value) for slot, number in enumerate(numbers)}
        if _replaced(update.graph, formula, lambda number: number.real_value) != real.graph:
            return _Path(form=form)
        graph = _replaced(update.graph, formula, lambda number: slots[number.name])
        update = replace(update, graph=graph, num_numbers=len(numbers))
        return _Path(form=form, update=update, evaluate=evaluate, later=[*later], states=states)

    def _run(
        self, numbers: StateNumbers, floats: Sequence[Any], counts: Mapping[Place, Any]
    ) -> tuple[UpdateGraph, list[dict[str, Any]], dict[Place, Any]]:
        """Capture the next update on copies, and return it with the form of the state and the numbers in it after it.

        Raises:
            ValueError: The graph would hold or lose something that changes.
        """
        given, whole = iter(floats), self._worker.parameters
        types = [p.dtype if p.grad is None else p.grad.dtype for p in whole]
        gradients = [torch.zeros_like(p.detach(), dtype=dtype) for p, dtype in zip(whole, types, strict=True)]
        copies = copy_worker(self._worker, [torch.zeros_like(p.detach()) for p in whole], gradients, [{}] * len(whole))
        copies.take_settings(map_floats(self._settings, lambda number: next(given)))
        for number, (p, state) in enumerate(zip(copies.parameters, self._states, strict=True)):
            made = {key: _made(part, p, counts.get((number, key)), numbers) for key, part in state.items()}
            if made:
                copies.optimizer.state[p] = made
        before = b"" if numbers.is_tracking else _progress(copies)
        update = capture_update(copies, numbers=numbers)
        if update.graph.constants or (before and _progress(copies) != before):
            raise ValueError("The optimizer keeps progress elsewhere than in the state of single parameters.")
        after = [copies.optimizer.state.get(p, {}) for p in copies.parameters]
        found = {(n, key): numbers.number(part) for n, state in enumerate(after) for key, part in state.items()}
        return update, [_forms(s) for s in after], {at: number for at, number in found.items() if number is not None}


def _forms(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state with a layout for each tensor, and the type of each number."""
    layouts = {k: _Layout(tuple(p.shape), p.stride(), p.dtype) for k, p in state.items() if isinstance(p, Tensor)}
    return {**state, **{key: type(part) for key, part in state.items() if is_number(part)}, **layouts}


def _made(form: Any, parameter: Tensor, number: Any, numbers: StateNumbers) -> Any:
    """Return a piece of state of a form."""
    if not isinstance(form, _Layout):
        return form if number is None else number
    made = torch.empty_strided(form.shape, form.stride, dtype=form.dtype, device=parameter.device).fill_(1)
    return made if number is None else numbers.put(made, number)


def _progress(worker: Worker) -> bytes:
    """Return what an optimizer may change except tensors and numbers in the state of its parameters."""
    optimizer = worker.optimizer
    others = {key: part for key, part in vars(optimizer).items() if key not in ("state", "param_groups")}
    groups = [{key: part for key, part in group.items() if key != "params"} for group in optimizer.param_groups]
    states = [
        {key: part for key, part in _forms(state).items() if not isinstance(part, _Layout | type)}
        for state in optimizer.state.values()
    ]
    return pickle.dumps([others, groups, [one for one in states if one]])


def _tracked(graph: OpGraph, formula: Formula) -> list[Tracked]:
    """Return the tracked numbers among the arguments of a graph."""
    arguments = [argument for op in graph.ops for argument in (*op.args, *op.kwargs.values())]
    tracked = [found for found in map(formula.found, arguments) if isinstance(found, Tracked)]
    return [*{one.name: one for one in tracked}.values()]


def _replaced(graph: OpGraph, formula: Formula, function: Callable[[Tracked], Any]) -> OpGraph:
    """Return a graph with the result of a function for each tracked number among its arguments."""

    def part(argument: Any) -> Any:
        found = formula.found(argument)
        return function(found) if isinstance(found, Tracked) else argument

    ops = [
        replace(op, args=tuple(map(part, op.args)), kwargs={key: part(one) for key, one in op.kwargs.items()})
        for op in graph.ops
    ]
    return replace(graph, ops=tuple(ops))
