"""Graphs and numbers of the coming updates of an optimizer, by its own arithmetic."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from popgeo.capture.op_graph import Number, OpGraph
from popgeo.engine.optimizer.capture_update import UpdateGraph, capture_update, copy_worker, progress_of
from popgeo.engine.optimizer.formula import Evaluate, Formula, Tracked, recorded_math
from popgeo.engine.optimizer.state_numbers import ROUNDED, StateNumbers, is_number
from popgeo.engine.optimizer.worker import Worker, map_floats
from popgeo.engine.same_objects import holds_the_same

States = Sequence[Mapping[str, Any]]
Place = tuple[int, str]  # number of a parameter, and key in its state


@dataclass(frozen=True, kw_only=True)
class _Path:
    """One way in which the optimizer's code runs.

    Attributes:
        form: Settings without the values of floats, and the form of the state before the update.
        update: Operations. None if the update cannot be captured.
        evaluate: Function that computes their numbers, and the numbers in the state after the update.
        later: Places of these numbers.
        states: State after the update, if its form changes.
    """

    form: Any
    update: UpdateGraph | None = None
    evaluate: Evaluate = lambda settings, counts: ([], [])
    later: Sequence[Place] = ()
    states: States | None = None


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
        self._settings: Sequence[Mapping[str, Any]] = []  # of the last update
        self._floats: list[float] = []  # in these settings
        self._others: Any = None  # these settings with the type of each float
        self._last: tuple[UpdateGraph | None, list[float]] | None = None  # if its settings and its state stay
        self._fitting: list[_Path] | None = None  # known paths with the form of the next update
        self.read_state()

    def read_state(self) -> None:
        """Continue from the present state of the worker's optimizer."""
        self._set_states([self._worker.optimizer.state.get(p, {}) for p in self._worker.parameters])
        held = {(number, key): part for number, state in enumerate(self._states) for key, part in state.items()}
        scalars = {at: part for at, part in held.items() if isinstance(part, Tensor) and part.dtype in ROUNDED}
        self._counts: dict[Place, Any] = {at: part for at, part in held.items() if is_number(part)}
        self._counts |= {at: part.item() for at, part in scalars.items() if not part.dim()}

    def next(self, settings: Sequence[Mapping[str, Any]]) -> tuple[UpdateGraph | None, list[float]]:
        """Return the graph and the numbers of the next update.

        Args:
            settings: Settings of each parameter group. Pass the same object while they do not change.

        Returns:
            The graph, and its numbers. The graph is None if the update cannot be captured.
        """
        if settings is not self._settings:
            others = map_floats([*settings], type)
            if not holds_the_same(others, self._others):
                self._others, self._fitting = others, None
            self._settings, self._last, self._floats = settings, None, []
            map_floats([*settings], self._floats.append)
        elif self._last is not None and not self._counts:
            return self._last
        path, (numbers, later) = self._next_path([*self._counts.values()])
        self._counts = dict(zip(path.later, later, strict=True))
        if path.states is not None:
            self._set_states(path.states)
        self._last = path.update, numbers
        return self._last

    def plain_counts(self) -> dict[Place, Any]:
        """Return the numbers in the state after the last update that are in no tensor."""
        return {at: self._counts[at] for at in self._in_no_tensor}

    def _set_states(self, states: States) -> None:
        self._states, self._last, self._fitting = states, None, None
        held = {(number, key): part for number, state in enumerate(states) for key, part in state.items()}
        self._in_no_tensor = [at for at, part in held.items() if is_number(part)]

    def _next_path(self, counts: list[Any]) -> tuple[_Path, tuple[list[Any], list[Any]]]:
        """Return the path of the next update and what it evaluates to. Capture it if no known path fits."""
        if self._fitting is None:
            self._form = [self._others, _form_of(self._states), [*self._counts]]
            self._fitting = [path for path in self._paths if holds_the_same(path.form, self._form)]
        for path in self._fitting:
            try:
                found = path.evaluate(self._floats, counts)
            except (ArithmeticError, ValueError):  # the optimizer's code raises the error, too
                continue
            if found is not None:
                return path, found
        path = self._capture()
        self._paths.append(path)
        self._fitting.append(path)
        return self._next_path(counts)

    def _capture(self) -> _Path:
        """Capture the next update."""
        formula, slots = Formula(), dict[str, tuple[Number, Tracked]]()
        settings, counts = [*map(formula.leaf, self._floats)], [*map(formula.leaf, self._counts.values())]
        try:
            real, states, _ = self._run(None, self._floats, self._counts)
            with recorded_math():  # not before, since torch imports modules in the first run
                update, _, later = self._run(formula, settings, dict(zip(self._counts, counts, strict=True)))
        except Exception:  # an optimizer from another library may raise anything
            return _Path(form=self._form)

        def slot(number: Tracked) -> Number:
            return slots.setdefault(number.name, (Number(len(slots), number.real_value), number))[0]

        graph = _replaced(update.graph, formula, slot)
        evaluate = formula.compiled(settings, counts, [number for _, number in slots.values()], [*later.values()])
        found, after = evaluate(self._floats, [*self._counts.values()]), [states[at][key] for at, key in later]
        held = [part.item() if isinstance(part, Tensor) else part for part in after]
        is_exact = _replaced(update.graph, formula, lambda number: number.real_value) == real.graph
        if not is_exact or found is None or found[1] != held:
            return _Path(form=self._form)
        keeps_form = holds_the_same([_form_of(states), [*later]], [_form_of(self._states), [*self._counts]])
        return _Path(
            form=self._form,
            update=replace(update, graph=graph, num_numbers=len(slots)),
            evaluate=evaluate,
            later=[*later],
            states=None if keeps_form else states,
        )

    def _run(
        self, formula: Formula | None, floats: Sequence[Any], counts: Mapping[Place, Any]
    ) -> tuple[UpdateGraph, States, dict[Place, Any]]:
        """Capture the next update on copies. Return it with the state after it, and the numbers in this state.

        Raises:
            ValueError: The optimizer uses other tensors, or changes more than tensors and numbers in its state.
        """
        numbers, copies, given = StateNumbers(formula), copy_worker(self._worker, self._states), iter(floats)
        copies.take_settings(map_floats([*self._settings], lambda number: next(given)))
        if formula is None:
            before = progress_of(copies)
        else:
            for tensor in copies.tensors().values():
                tensor.detach().fill_(0.7)  # so that data which Python reads differ from those of the other run
        states = [copies.optimizer.state[p] for p in copies.parameters]
        for (at, key), number in counts.items():
            states[at][key] = numbers.put(states[at][key], number)
        with torch.random.fork_rng(devices=[]):
            update = capture_update(copies, numbers=numbers)
        if update.graph.constants or (formula is None and progress_of(copies) != before):
            raise ValueError("The optimizer keeps progress outside the state of single parameters.")
        states = [copies.optimizer.state[p] for p in copies.parameters]
        found = {(at, key): numbers.number(part) for at, state in enumerate(states) for key, part in state.items()}
        return update, states, {at: number for at, number in found.items() if number is not None}


def _form_of(states: States) -> list[Any]:
    """Return the state with the layout of each tensor and the type of each number."""

    def form(part: Any) -> Any:
        return (part.shape, part.stride(), part.dtype) if isinstance(part, Tensor) else part

    return [{key: type(part) if is_number(part) else form(part) for key, part in state.items()} for state in states]


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
