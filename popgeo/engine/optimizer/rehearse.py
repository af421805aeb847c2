"""An optimizer's coming updates: their operations at full size, their numbers from parameters of one element."""

import copy
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from popgeo.capture.op_graph import Number, OpGraph
from popgeo.capture.schemas import target
from popgeo.engine.optimizer.capture_update import UpdateGraph, capture_update
from popgeo.engine.optimizer.gradient_scaling import set_gradient
from popgeo.engine.optimizer.number_formula import Formula, FormulaWriter, UpdateNumbers
from popgeo.engine.optimizer.worker import Worker, with_floats

Path = tuple[Any, ...]
_FIRST, _MOST_WRITTEN = 8, 16  # how many updates test a formula at first, and how many formulas are written at most
_DETACH = "aten.detach.default"  # a view that torch makes in some cases only


class Rehearsal:
    """Goes through the coming updates of an optimizer that treats every element alike; the optimizer stays as it is.

    Numbers (rates, bias corrections) depend on the step and on hyperparameters alone, never on weights. So the
    optimizer first updates parameters of one element, which gives the numbers exactly as plain PyTorch computes them.
    Its operations on whole parameters are captured once, and again where the rehearsal takes another path than before,
    as RAdam does after its first steps.

    Running the optimizer's own code costs more than the operations of a small model. So a rehearsal also writes down
    how its numbers came about (`FormulaWriter`), and the updates after it follow that formula, which is exact because
    it does to settings and counts what the optimizer's code does. An update is rehearsed all the same where the formula
    decides otherwise than when it was written, where anything but a float of the settings changes, where a setting
    changes for the first time, and at the first and each 2**n-th update. A difference there is a sign that code
    computes if nothing can be written down, as `math.sqrt` does: from then on each update is rehearsed.

    Args:
        worker: Owns the parameters, and their state if there is any.
    """

    def __init__(self, worker: Worker) -> None:
        self._whole = worker.parameters
        small = [nn.Parameter(p.detach().new_ones((1,) * min(p.dim(), 1))) for p in self._whole]
        self._small = worker.over(small)
        for one, whole in zip(small, self._whole, strict=True):
            set_gradient(one, torch.ones_like(one.detach(), dtype=(whole if whole.grad is None else whole.grad).dtype))
            held = worker.optimizer.state.get(whole)
            if held:
                self._state[one] = {key: _resized(part, whole, one) for key, part in held.items()}
        self._graphs: dict[Path, UpdateGraph | None] = {}
        self._graph: UpdateGraph | None = None
        self._formula: Formula | None = None
        self._left, self._num_since = _MOST_WRITTEN, 0  # formulas to write, and updates since the last of them
        self._tested: set[int] = set()  # the settings by number that have changed before a test of the formula
        self._last: tuple[Any, Any, list[float]] = None, None, []
        self._counts = self._find_counts()

    def next(self, settings: Sequence[Mapping[str, Any]]) -> tuple[UpdateGraph | None, list[float]]:
        """The next update with these settings of each parameter group, and its numbers.

        The graph is None where the optimizer does other things to a whole parameter than to one element of it.
        """
        changed = None if self._formula is None else self._follow(settings)
        counts = [state[key].clone() for state, key in self._counts]
        numbers = None if self._formula is None or changed is None else self._formula(self._last[-1], counts)
        if numbers is None or changed is None:
            self._formula = None  # it was written for another way of updating
            return self._rehearse(settings, writes=self._left > 0)
        self._num_since += 1
        is_due = self._num_since <= _FIRST or not self._num_since & (self._num_since - 1)
        if is_due or not self._tested.issuperset(changed):
            self._tested.update(changed)
            foretold = self._graph, numbers
            found = self._rehearse(settings)
            if found != foretold:
                self._formula, self._left = None, 0
            return found
        for (state, key), count in zip(self._counts, counts, strict=True):
            state[key] = count
        return self._graph, numbers

    def _follow(self, settings: Sequence[Mapping[str, Any]]) -> list[int] | None:
        """The numbers of the settings that changed since the last step; None if anything but a float changed."""
        before, rest, old = self._last
        if settings == before:
            return []
        self._last = _taken(settings)
        new = self._last[-1]
        return [at for at in range(len(new)) if new[at] != old[at]] if self._last[1] == rest else None

    def _rehearse(
        self, settings: Sequence[Mapping[str, Any]], *, writes: bool = False
    ) -> tuple[UpdateGraph | None, list[float]]:
        """Lets the optimizer update single elements, and if that is asked writes down how its numbers came about."""
        numbers, kinds = UpdateNumbers(), self._kinds()
        before = [_noted(self._state.get(p, {})) for p in self._small.parameters]
        writer = FormulaWriter(numbers, [state[key] for state, key in self._counts])
        self._small.follow(with_floats([*settings], writer.setting) if writes else settings)
        with writer if writes else nullcontext(), numbers:
            self._small.step()
        self._small.follow(settings)
        path = (*numbers.operations, *numbers.integers, len(numbers.values), *(tuple(state) for state in before))
        if path not in self._graphs:
            self._graphs[path] = self._capture(before, numbers)
        self._graph, self._counts = self._graphs[path], self._find_counts()
        if writes:
            self._last, self._tested = _taken(settings), set()
            self._formula = writer.formula(self._last[-1]) if kinds == self._kinds() else None
            self._left, self._num_since = self._left - 1, 0
        return self._graph, numbers.values

    def _find_counts(self) -> list[tuple[dict[str, Any], str]]:
        return [(state, key) for state in self._state.values() for key, part in state.items() if _is_count(part)]

    def _kinds(self) -> Any:
        """What an update may go by, and change, next to numbers that are seen."""
        states = [{key: None if isinstance(x, Tensor) else x for key, x in s.items()} for s in self._state.values()]
        return states, {key: x for key, x in vars(self._small.optimizer).items() if isinstance(x, int | float | str)}

    @property
    def counts_steps(self) -> bool:
        """Whether numbers may change from one update to the next although no setting does."""
        parts = [part for state in self._state.values() for part in state.values()]
        settings = [choice for group in self._small.optimizer.param_groups for choice in group.values()]
        # A rate that is a tensor may change without any sign.
        return any(map(_is_number, parts)) or any(isinstance(choice, Tensor) for choice in settings)

    @property
    def _state(self) -> dict[Any, Any]:
        return self._small.optimizer.state

    def _capture(self, states: Sequence[Mapping[str, Any]], numbers: UpdateNumbers) -> UpdateGraph | None:
        copies = self._small.over([nn.Parameter(torch.zeros_like(p.detach())) for p in self._whole])
        for whole, one, state in zip(copies.parameters, self._small.parameters, states, strict=True):
            assert one.grad is not None
            set_gradient(whole, torch.zeros_like(whole.detach(), dtype=one.grad.dtype))
            copies.optimizer.state[whole] = {key: _resized(part, one, whole) for key, part in state.items()}
        update = capture_update(copies)
        graph, found = replace_numbers(update.graph)
        done, expected = [op.target for op in graph.ops], list(map(target, numbers.operations))
        if found != numbers.values or _without_detach(done) != _without_detach(expected):
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


def _without_detach(targets: Sequence[str]) -> list[str]:
    return [name for name in targets if name != _DETACH]


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
        return _is_count(part)
    return part is not None


def _is_count(part: Any) -> bool:
    return isinstance(part, Tensor) and part.dim() == 0 and part.is_floating_point()


def _taken(settings: Any) -> tuple[Any, Any, list[float]]:
    """Settings, what they hold next to floats, and the floats."""
    floats: list[float] = []
    with_floats(settings, floats.append)
    return settings, with_floats(settings, type), floats
