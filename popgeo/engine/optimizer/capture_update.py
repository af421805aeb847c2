"""Captures of an optimizer's update as a graph of operations."""

import contextlib
import copy
import inspect
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from popgeo.capture.interrupts import held_interrupts
from popgeo.capture.op_graph import Input, OpGraph, Role
from popgeo.capture.recorder import Recorder
from popgeo.engine.optimizer.gradient_scaling import GradientScaling, set_gradient
from popgeo.engine.optimizer.state_numbers import StateNumbers
from popgeo.engine.optimizer.worker import Worker, settings_of
from popgeo.plain_surroundings import plain_surroundings


@dataclass(frozen=True, kw_only=True)
class UpdateGraph:
    """Captured update of an optimizer.

    Attributes:
        graph: Operations of the update. Its inputs are the parameters, their gradients and their state, if it exists.
            Its outputs are the state.
        state: Each piece of the returned state, in order, with the number of its parameter.
        num_numbers: Number of floating-point arguments of a run. 0 if the graph holds its numbers.
    """

    graph: OpGraph
    state: Mapping[Input, int]
    num_numbers: int = 0


def capture_update(
    worker: Worker, scaling: GradientScaling | None = None, numbers: StateNumbers | None = None
) -> UpdateGraph:
    """Capture one update of a worker: the operations that scale gradients, and the optimizer's step.

    Args:
        worker: Worker, which makes the update.
        scaling: Rule that scales gradients. Default: they stay.
        numbers: Numbers in the worker's state. Default: the optimizer reads them from the tensors.
    """

    def update() -> None:
        if scaling is not None:
            scaling.apply(worker.parameters)
        worker.step_once()

    recorder = _record(update, worker.tensors(), numbers)
    state, made = dict[Input, int](), list[Tensor]()
    for number in range(len(worker.parameters)):
        for given, part in worker.state_tensors(number).items():
            state[given] = number
            made.append(part)
    return UpdateGraph(graph=recorder.page.graph(made), state=state)


def capture_later_update(worker: Worker, scaling: GradientScaling) -> OpGraph:
    """Capture an update after the first one, which makes the optimizer's state. The worker stays unchanged.

    Raises:
        ValueError: The update fails on copies of the parameters, for example because the optimizer reads numbers from
            tensors that only have shapes.
    """
    try:
        copies = copy_worker(worker)
        if not worker.has_stepped:
            copies.step_once()
        return replace(capture_update(copies, scaling).graph, outputs=())
    except Exception as error:  # an optimizer from another library may raise anything
        how = "planned from shapes alone" if any(p.is_meta for p in worker.parameters) else "captured for an account"
        raise ValueError(
            f"{type(worker.optimizer).__name__}'s update cannot be {how}: {error}. Compile the model first and ask it "
            "for its report or pipeline, use popgeo.compile_step, or use an optimizer that reads no numbers from "
            "tensors, such as AdamW."
        ) from None


def capture_scaling(worker: Worker, scaling: GradientScaling) -> OpGraph:
    """Capture the operations that scale gradients before each update. The worker stays unchanged."""
    copies = copy_worker(worker)
    gradients = {given: tensor for given, tensor in copies.tensors().items() if given.role is Role.GRADIENT}
    return _record(lambda: scaling.apply(copies.parameters), gradients).page.graph([])


def copy_worker(worker: Worker, states: Sequence[Mapping[str, Any]] | None = None) -> Worker:
    """Return a worker over copies of the parameters and their gradients.

    Args:
        worker: Worker to copy. It stays unchanged.
        states: State to copy for each parameter. Default: the worker's.
    """
    given = worker.parameters
    copies = worker.for_parameters([nn.Parameter(p.detach().clone()) for p in given])
    states = states or [worker.optimizer.state.get(p, {}) for p in given]
    for mine, theirs, state in zip(copies.parameters, given, states, strict=True):
        if theirs.grad is not None:
            set_gradient(mine, theirs.grad.clone())
        if state:
            copies.optimizer.state[mine] = copy.deepcopy({**state})
    return copies


class _UpdateRecorder(Recorder):
    """Recorder of an update, which follows numbers in the state."""

    def __init__(self, numbers: StateNumbers) -> None:
        super().__init__(inspect.unwrap(_record).__code__, lambda problem: None, phase="update", keeps_state=False)
        self._numbers, self.on_result = numbers, numbers.follow

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        self._numbers.check(func, args, kwargs or {})
        return super().__torch_dispatch__(func, types, args, kwargs)


@held_interrupts()
@plain_surroundings()
def _record(act: Callable[[], None], inputs: Mapping[Input, Tensor], numbers: StateNumbers | None = None) -> Recorder:
    """Record the operations on tensors while a function runs."""
    numbers = numbers or StateNumbers(None)
    recorder = _UpdateRecorder(numbers)
    recorder.page.add_inputs(inputs)
    with recorder, numbers:
        act()
    return recorder


def progress_of(worker: Worker) -> list[Any]:
    """Return the values of all that an optimizer holds except tensors and numbers in the state of its parameters."""
    optimizer, states = worker.optimizer, [worker.optimizer.state.get(p, {}) for p in worker.parameters]
    parts = [part for state in states for part in state.values() if not isinstance(part, Tensor | int | float | None)]
    shared = [part for key, part in optimizer.state.items() if not isinstance(key, Tensor)]
    attributes = [part for key, part in vars(optimizer).items() if key not in ("state", "param_groups")]
    return [*map(_value_of, (*parts, *shared, *attributes, settings_of(optimizer)))]


def _value_of(part: Any) -> Any:
    try:
        return pickle.dumps(part)
    except Exception:  # a function, or an object with any error
        return id(part)


def changes_state_alone(worker: Worker) -> bool:
    """Check whether a step changes only parameters, and tensors and numbers in their state."""
    copies = copy_worker(worker)
    before = progress_of(copies)
    with torch.random.fork_rng(devices=[]), contextlib.suppress(Exception):  # the first update raises it
        copies.step_once()
    return progress_of(copies) == before
