"""An optimizer's update as a graph of operations."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor, nn
from torch.optim import Optimizer

from popgeo.capture.op_graph import Input, OpGraph, Role
from popgeo.capture.recorder import Recorder
from popgeo.engine.optimizer.copy_optimizer import without_parameters
from popgeo.engine.optimizer.gradient_scaling import GradientScaling, set_gradient
from popgeo.engine.optimizer.mixed_optimizer import MixedOptimizer


@dataclass(frozen=True, kw_only=True)
class UpdateGraph:
    """One way in which an optimizer updates.

    Attributes:
        graph: Its inputs are the parameters, their gradients and, where there is any yet, their state. It returns the
            state.
        state: The state that it returns, in order, each piece with the number of its parameter.
        num_numbers: How many floating-point arguments a run is given; where there are none, the graph holds its own.
    """

    graph: OpGraph
    state: Mapping[Input, int]
    num_numbers: int = 0


def capture_update(optimizer: Optimizer, scaling: GradientScaling | None = None) -> UpdateGraph:
    """Lets an optimizer step, after its gradients are scaled, and writes down what is done."""

    def update() -> None:
        if scaling is not None:
            scaling.apply(parameters_of(optimizer))
        optimizer.step()

    recorder = _record(update, tensors_of(optimizer))
    state, made = dict[Input, int](), list[Tensor]()
    for number, parameter in enumerate(parameters_of(optimizer)):
        for given, part in _state_of(optimizer, number, parameter).items():
            state[given] = number
            made.append(part)
    return UpdateGraph(graph=recorder.page.graph(made), state=state)


def capture_later_update(worker: Optimizer, scaling: GradientScaling) -> OpGraph:
    """The operations of an update after the first, which makes the optimizer's state; the worker does not change.

    Raises:
        ValueError: the parameters have shapes only, and the optimizer reads numbers.
    """
    copies = _copied(worker)
    try:
        if not has_state(worker):
            copies.step()
        return replace(capture_update(copies, scaling).graph, outputs=())
    except RuntimeError as error:
        if not any(p.is_meta for p in parameters_of(worker)):
            raise
        kind = type(getattr(worker, "inner", worker)).__name__
        raise ValueError(
            f"{kind}'s update cannot be planned from shapes alone: {error}. Ask the compiled model for its report or "
            "pipeline, or take an optimizer that reads no numbers, such as AdamW."
        ) from None


def capture_scaling(worker: Optimizer, scaling: GradientScaling) -> OpGraph:
    """The operations before each update, on the gradients alone; the worker does not change."""
    copies = _copied(worker)
    gradients = {given: tensor for given, tensor in tensors_of(copies).items() if given.role is Role.GRADIENT}
    return _record(lambda: scaling.apply(parameters_of(copies)), gradients).page.graph([])


def _record(act: Callable[[], None], inputs: Mapping[Input, Tensor]) -> Recorder:
    """Writes down what is done to tensors."""
    recorder = Recorder(_record.__code__, lambda problem: None, phase="update", keeps_state=False)
    for given, tensor in inputs.items():
        recorder.page.add_input(given, tensor)
    with recorder:
        act()
    return recorder


def _copied(worker: Optimizer) -> Optimizer:
    """The same optimizer with the same state over copies of its parameters and gradients."""
    copies = with_parameters(worker, [nn.Parameter(p.detach().clone()) for p in parameters_of(worker)])
    for mine, theirs in zip(parameters_of(copies), parameters_of(worker), strict=True):
        if theirs.grad is not None:
            set_gradient(mine, theirs.grad.clone())
        copies.state[mine] = {key: copy.deepcopy(part) for key, part in worker.state.get(theirs, {}).items()}
    return copies


def with_parameters(optimizer: Optimizer, parameters: Sequence[nn.Parameter]) -> Optimizer:
    """The same optimizer, without state, over other parameters: one a group."""
    other = without_parameters(optimizer)
    groups = zip(optimizer.param_groups, parameters, strict=True)
    other.param_groups = [{**group, "params": [parameter]} for group, parameter in groups]
    return other


def has_state(optimizer: Optimizer) -> bool:
    """Whether an optimizer has made state by a step, or been given it."""
    if isinstance(optimizer, MixedOptimizer):
        return any(map(optimizer.has_state, parameters_of(optimizer)))
    return bool(optimizer.state)


def parameters_of(optimizer: Optimizer) -> list[nn.Parameter]:
    """The parameters of all groups, in order."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def tensors_of(optimizer: Optimizer) -> dict[Input, Tensor]:
    """Everything that an update reads or writes: each parameter, its gradient and its state."""
    tensors: dict[Input, Tensor] = {}
    for number, parameter in enumerate(parameters_of(optimizer)):
        tensors[Input(Role.PARAMETER, f"{number}")] = parameter
        if parameter.grad is not None:
            tensors[Input(Role.GRADIENT, f"{number}")] = parameter.grad
        tensors |= _state_of(optimizer, number, parameter)
    return tensors


def _state_of(optimizer: Optimizer, number: int, parameter: nn.Parameter) -> dict[Input, Tensor]:
    """The tensors that an optimizer holds for one parameter."""
    state = optimizer.state.get(parameter, {})
    return {Input(Role.STATE, f"{number}.{key}"): part for key, part in state.items() if isinstance(part, Tensor)}
