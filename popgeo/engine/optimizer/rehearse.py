"""The updates that an optimizer will make: their operations at full size, their numbers from one-element parameters."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from popgeo.capture.op_graph import Input, OpGraph, Role, replace_numbers
from popgeo.capture.recorder import Recorder, target
from popgeo.engine.optimizer.capture_update import Numbers, with_parameters

Path = tuple[Any, ...]
_DETACH = "aten.detach.default"  # a view that torch makes in some cases only


@dataclass(frozen=True, kw_only=True)
class UpdateGraph:
    """One way in which an optimizer updates.

    Attributes:
        graph: Its inputs are the parameters, their gradients and, where there is any yet, their state. It returns the
            state. Its floating-point arguments are given at each run.
        state: The state that it returns, in order, each piece with the number of its parameter.
        num_numbers: How many numbers a run is given.
    """

    graph: OpGraph
    state: Mapping[Input, int]
    num_numbers: int


class Rehearsal:
    """Goes through the coming updates of an optimizer that treats every element alike; the optimizer stays as it is.

    Args:
        worker: Owns the parameters, and their state where there is any.
    """

    def __init__(self, worker: Optimizer) -> None:
        self._worker = worker
        self._whole = [p for group in worker.param_groups for p in group["params"]]
        small = [nn.Parameter(p.detach().new_ones((1,) * min(p.dim(), 1))) for p in self._whole]
        self._small = with_parameters(worker, small)
        for one, whole in zip(small, self._whole, strict=True):
            one.grad = torch.ones_like(one)
            if worker.state.get(whole):
                self._small.state[one] = {key: _resized(part, whole, one) for key, part in worker.state[whole].items()}
        self._graphs: dict[Path, UpdateGraph] = {}

    def next(self, settings: Sequence[dict[str, Any]]) -> tuple[UpdateGraph, list[float]]:
        """The next update with these settings of each parameter group, and its numbers.

        Raises:
            ValueError: its numbers depend on more than settings and the count of updates.
        """
        for group, chosen in zip(self._small.param_groups, settings, strict=True):
            group.update(chosen)
        before = [copy.deepcopy(self._small.state.get(p, {})) for p in _parameters(self._small)]
        numbers = Numbers()
        with numbers:
            self._small.step()
        path = (*numbers.operations, *(tuple(state) for state in before))
        if path not in self._graphs:
            self._graphs[path] = self._capture(before, numbers)
        return self._graphs[path], numbers.values

    def _capture(self, states: Sequence[dict[str, Any]], numbers: Numbers) -> UpdateGraph:
        copies = with_parameters(self._small, [nn.Parameter(torch.zeros_like(p.detach())) for p in self._whole])
        recorder = Recorder(Rehearsal._capture.__code__, lambda problem: None, phase="update", keeps_state=False)
        pairs = zip(_parameters(copies), _parameters(self._small), states, strict=True)
        for number, (whole, one, state) in enumerate(pairs):
            whole.grad = torch.zeros_like(whole)
            copies.state[whole] = {key: _resized(part, one, whole) for key, part in state.items()}
            recorder.add_input(Input(Role.PARAMETER, f"{number}"), whole)
            recorder.add_input(Input(Role.GRADIENT, f"{number}"), whole.grad)
            for key, part in copies.state[whole].items():
                if isinstance(part, Tensor):
                    recorder.add_input(Input(Role.STATE, f"{number}.{key}"), part)
        with recorder:
            copies.step()
        kept, made = dict[Input, int](), list[Tensor]()
        for number, p in enumerate(_parameters(copies)):
            for key, part in copies.state[p].items():
                if isinstance(part, Tensor):
                    kept[Input(Role.STATE, f"{number}.{key}")] = number
                    made.append(part)
        graph, found = replace_numbers(recorder.graph(made))
        if found != numbers.values or _targets(graph) != [t for t in map(target, numbers.operations) if t != _DETACH]:
            raise ValueError(
                f"{type(self._worker).__name__} does other things to a whole parameter than to one element of it, so "
                "its update cannot be foretold."
            )
        return UpdateGraph(graph=graph, state=kept, num_numbers=len(found))


def _targets(graph: OpGraph) -> list[str]:
    return [op.target for op in graph.ops if op.target != _DETACH]


def _parameters(optimizer: Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _resized(part: Any, of: Tensor, to: Tensor) -> Any:
    """A piece of state for a parameter of another size; what is no tensor of the parameter's shape stays."""
    if isinstance(part, Tensor) and part.shape == of.shape and of.dim() > 0:
        return torch.ones_like(to.detach(), dtype=part.dtype)
    return copy.deepcopy(part)
