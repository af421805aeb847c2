"""An optimizer's update as a graph of operations."""

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from torch import Tensor, nn

from popgeo.capture.interrupts import held_interrupts
from popgeo.capture.op_graph import Input, OpGraph, Role
from popgeo.capture.recorder import Recorder
from popgeo.engine.optimizer.gradient_scaling import GradientScaling, set_gradient
from popgeo.engine.optimizer.worker import Worker
from popgeo.plain_surroundings import plain_surroundings


@dataclass(frozen=True, kw_only=True)
class UpdateGraph:
    """One way in which an optimizer updates.

    Attributes:
        graph: Its inputs are the parameters, their gradients and, if there is any yet, their state. It returns the
            state.
        state: The state that it returns, in order, each piece with the number of its parameter.
        num_numbers: How many floating-point arguments a run is given; if 0, the graph holds its own numbers.
    """

    graph: OpGraph
    state: Mapping[Input, int]
    num_numbers: int = 0


def capture_update(worker: Worker, scaling: GradientScaling | None = None) -> UpdateGraph:
    """Lets a worker step, after its gradients are scaled, and writes down what is done."""

    def update() -> None:
        if scaling is not None:
            scaling.apply(worker.parameters)
        worker.step()

    recorder = _record(update, worker.tensors())
    state, made = dict[Input, int](), list[Tensor]()
    for number in range(len(worker.parameters)):
        for given, part in worker.state_tensors(number).items():
            state[given] = number
            made.append(part)
    return UpdateGraph(graph=recorder.page.graph(made), state=state)


def capture_later_update(worker: Worker, scaling: GradientScaling) -> OpGraph:
    """The operations of an update after the first, which makes the optimizer's state; the worker does not change.

    Raises:
        ValueError: it cannot be captured over copies, as where these have shapes only and the optimizer reads numbers.
    """
    try:
        copies = _copied(worker)
        if not worker.has_stepped:
            copies.step()
        return replace(capture_update(copies, scaling).graph, outputs=())
    except Exception as error:  # what an optimizer of others does to copies may break in any way
        how = "planned from shapes alone" if any(p.is_meta for p in worker.parameters) else "captured for an account"
        raise ValueError(
            f"{type(worker.optimizer).__name__}'s update cannot be {how}: {error}. Ask the compiled model for its "
            "report or pipeline, or none (popgeo.compile_step), or take one that reads no numbers, such as AdamW."
        ) from None


def capture_scaling(worker: Worker, scaling: GradientScaling) -> OpGraph:
    """The operations before each update, on the gradients alone; the worker does not change."""
    copies = _copied(worker)
    gradients = {given: tensor for given, tensor in copies.tensors().items() if given.role is Role.GRADIENT}
    return _record(lambda: scaling.apply(copies.parameters), gradients).page.graph([])


@held_interrupts()
@plain_surroundings()
def _record(act: Callable[[], None], inputs: Mapping[Input, Tensor]) -> Recorder:
    """Writes down what is done to tensors."""
    recorder = Recorder(inspect.unwrap(_record).__code__, lambda problem: None, phase="update", keeps_state=False)
    recorder.page.add_inputs(inputs)
    with recorder:
        act()
    return recorder


def _copied(worker: Worker) -> Worker:
    """The same worker with the same state over copies of its parameters and gradients."""
    copies = worker.over([nn.Parameter(p.detach().clone()) for p in worker.parameters])
    for mine, theirs in zip(copies.parameters, worker.parameters, strict=True):
        if theirs.grad is not None:
            set_gradient(mine, theirs.grad.clone())
        state = worker.optimizer.state.get(theirs, {})
        copies.optimizer.state[mine] = {key: copy.deepcopy(part) for key, part in state.items()}
    return copies
