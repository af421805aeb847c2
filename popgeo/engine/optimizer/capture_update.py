"""Captures of an optimizer's update as a graph of operations."""

import copy
import inspect
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
from popgeo.engine.optimizer.worker import Worker
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
        worker.step()

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
        copies = _copied(worker)
        if not worker.has_stepped:
            copies.step()
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
    copies = _copied(worker)
    gradients = {given: tensor for given, tensor in copies.tensors().items() if given.role is Role.GRADIENT}
    return _record(lambda: scaling.apply(copies.parameters), gradients).page.graph([])


def copy_worker(
    worker: Worker,
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor | None],
    states: Sequence[Mapping[str, Any]],
) -> Worker:
    """Return a copy of a worker over other parameters, possibly of other sizes.

    Args:
        worker: Worker to copy. It stays unchanged.
        parameters: Values of the copy's parameters.
        gradients: Gradient of each parameter, or None.
        states: State of each of the worker's parameters. A piece of a parameter's shape is copied if the new parameter
            has the same shape, and becomes ones of the new shape otherwise.
    """
    copies = worker.for_parameters([nn.Parameter(values) for values in parameters])
    for mine, theirs, gradient, state in zip(copies.parameters, worker.parameters, gradients, states, strict=True):
        if gradient is not None:
            set_gradient(mine, gradient)
        if state:
            copies.optimizer.state[mine] = {key: _resized(part, theirs, mine) for key, part in state.items()}
    return copies


def _resized(part: Any, old: Tensor, new: Tensor) -> Any:
    if isinstance(part, Tensor) and part.shape == old.shape != new.shape:
        return torch.ones_like(new.detach(), dtype=part.dtype)
    return copy.deepcopy(part)


def _copied(worker: Worker) -> Worker:
    """Return a worker with the same state over copies of the parameters and their gradients."""
    parameters = worker.parameters
    gradients = [None if p.grad is None else p.grad.clone() for p in parameters]
    states = [worker.optimizer.state.get(p, {}) for p in parameters]
    return copy_worker(worker, [p.detach().clone() for p in parameters], gradients, states)


@held_interrupts()
@plain_surroundings()
def _record(act: Callable[[], None], inputs: Mapping[Input, Tensor], numbers: StateNumbers | None = None) -> Recorder:
    """Record the operations on tensors while a function runs."""
    numbers = numbers or StateNumbers(None)
    recorder = Recorder(inspect.unwrap(_record).__code__, numbers.refuse, phase="update", keeps_state=False)
    recorder.on_result = numbers.follow
    recorder.page.add_inputs(inputs)
    with recorder, numbers:
        act()
    return recorder
