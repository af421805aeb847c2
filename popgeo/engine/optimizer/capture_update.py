"""Runs an optimizer's update as a captured graph, whose numbers (rates, bias corrections) are new at each update."""

import copy
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode

from popgeo.capture.op_graph import Input, OpGraph, Role, replace_numbers
from popgeo.capture.recorder import Recorder, makes_tensors, target
from popgeo.engine.graph_runner import Engine


class CapturedUpdate:
    """The update of an optimizer that treats every element alike.

    Numbers depend on the step and on hyperparameters alone, never on weights. So each update first lets the optimizer
    rehearse on parameters of one element, which gives the numbers exactly as plain PyTorch computes them, and then runs
    the captured operations on all elements. Where the rehearsal takes another path than before, as RAdam does after its
    first steps, that path is captured too. An optimizer whose state counts nothing, such as SGD, rehearses only when
    its settings change.

    Args:
        worker: Owns parameters, gradients and a state that its first step has made.
    """

    def __init__(self, worker: Optimizer) -> None:
        self._worker = worker
        self._rehearsal = with_parameters(worker, [nn.Parameter(p.detach().new_ones(1)) for p in _parameters(worker)])
        for small, p in zip(_parameters(self._rehearsal), _parameters(worker), strict=True):
            small.grad = torch.ones_like(small)
            self._rehearsal.state[small] = {key: _one_element(part, p) for key, part in worker.state[p].items()}
        parts = [part for state in self._rehearsal.state.values() for part in state.values()]
        settings = [choice for group in worker.param_groups for choice in group.values()]
        # A rate that is a tensor may change without any sign.
        self._counts_steps = any(map(_is_number, parts)) or any(isinstance(choice, Tensor) for choice in settings)
        self._steady: tuple[Any, Engine] | None = None
        self._paths: dict[tuple[Any, ...], Engine | None] = {}

    def run(self) -> bool:
        """One update; False, with nothing done, where it cannot be captured."""
        settings = [{k: v for k, v in group.items() if k != "params"} for group in self._worker.param_groups]
        if self._steady is not None and self._steady[0] == settings:
            self._steady[1].run([])
            return True
        for group, chosen in zip(self._rehearsal.param_groups, settings, strict=True):
            group.update(chosen)
        numbers = Numbers()
        with numbers:
            self._rehearsal.step()
        path = tuple(numbers.operations)
        if path not in self._paths:
            self._paths[path] = self._capture(numbers)
        engine = self._paths[path]
        if engine is None:
            return False
        engine.set_numbers(numbers.values)
        engine.run([])
        if not self._counts_steps:
            self._steady = settings, engine
        return True

    @property
    def is_captured(self) -> bool | None:
        """Whether updates run as captured graphs; None before the first."""
        return all(engine is not None for engine in self._paths.values()) if self._paths else None

    def _capture(self, numbers: "Numbers") -> Engine | None:
        graph = capture_update(self._worker)
        graph, found = replace_numbers(graph)
        # A tensor made of a number would keep the value that it has now.
        if (
            graph.constants
            or found != numbers.values
            or [op.target for op in graph.ops] != list(map(target, numbers.operations))
        ):
            return None
        return Engine(graph, _tensors(self._worker))


def capture_update(worker: Optimizer) -> OpGraph:
    """The operations of an update of a worker that has its state, recorded on copies of its tensors."""
    copies = with_parameters(worker, [nn.Parameter(p.detach().clone()) for p in _parameters(worker)])
    for mine, theirs in zip(_parameters(copies), _parameters(worker), strict=True):
        mine.grad = None if theirs.grad is None else theirs.grad.clone()
        copies.state[mine] = {key: copy.deepcopy(part) for key, part in worker.state.get(theirs, {}).items()}
    if not worker.state:
        copies.step()
    recorder = Recorder(capture_update.__code__, lambda problem: None, phase="update", keeps_state=False)
    for given, tensor in _tensors(copies).items():
        recorder.add_input(given, tensor)
    with recorder:
        copies.step()
    return recorder.graph([])


class Numbers(TorchDispatchMode):
    """Notes the operations that run and the numbers that they are given."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[Any] = []
        self.values: list[float] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        keywords = kwargs or {}
        if makes_tensors(func):
            self.operations.append(func)
            self.values += [number for number in (*args, *keywords.values()) if type(number) is float]
        return func(*args, **keywords)


def with_parameters(optimizer: Optimizer, parameters: Sequence[nn.Parameter]) -> Optimizer:
    """The same optimizer, without state, over other parameters: one a group."""
    other = copy.copy(optimizer)
    other.state = defaultdict(dict)
    groups = zip(optimizer.param_groups, parameters, strict=True)
    other.param_groups = [{**group, "params": [parameter]} for group, parameter in groups]
    return other


def _parameters(optimizer: Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _tensors(optimizer: Optimizer) -> dict[Input, Tensor]:
    """Everything that an update reads or writes."""
    tensors: dict[Input, Tensor] = {}
    for number, parameter in enumerate(_parameters(optimizer)):
        tensors[Input(Role.PARAMETER, f"{number}")] = parameter
        if parameter.grad is not None:
            tensors[Input(Role.GRADIENT, f"{number}")] = parameter.grad
        for key, part in optimizer.state.get(parameter, {}).items():
            if isinstance(part, Tensor):
                tensors[Input(Role.STATE, f"{number}.{key}")] = part
    return tensors


def _is_number(part: Any) -> bool:
    return part.dim() == 0 if isinstance(part, Tensor) else part is not None


def _one_element(part: Any, parameter: Tensor) -> Any:
    if isinstance(part, Tensor) and part.shape == parameter.shape and part.dim() > 0:
        return part.new_ones(1)
    return copy.deepcopy(part)
