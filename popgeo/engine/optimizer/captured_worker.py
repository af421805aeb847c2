"""Which worker steps an optimizer, and the one that runs its updates as captured graphs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from popgeo.engine.graph_runner import GraphRunner
from popgeo.engine.optimizer.capture_update import UpdateGraph
from popgeo.engine.optimizer.flat_parameters import FlatParameters, is_elementwise
from popgeo.engine.optimizer.mixed_worker import MixedWorker, needs_mixed
from popgeo.engine.optimizer.own_worker import OwnWorker
from popgeo.engine.optimizer.rehearse import Rehearsal
from popgeo.engine.optimizer.worker import Worker, noted_groups, settings_of, without_parameters
from popgeo.engine.same_objects import holds_the_same
from popgeo.engine.step_options import StepOptions


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
        if not self._has_state:
            self._inner.step()
            self._has_state = True
            return
        runner = self._next()
        if runner is None:
            self._inner.step()
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


def choose_worker(own: OwnWorker, flat: Sequence[FlatParameters], options: StepOptions, part: int = 0) -> Worker:
    """What steps an optimizer's parameters.

    That is the optimizer itself, unless it treats every element alike, or its update is to have other types: then it is
    one like it over joined parameters, each in a group of its own.

    Args:
        own: Steps the user's optimizer as it is.
        flat: The parameters.
        options: Of the run, which say in which types updates are worked out.
        part: Which part of the parameters this process updates.

    Raises:
        ValueError: its update is to have other types, and it keeps more than the state of single parameters.
    """
    optimizer, is_mixed = own.optimizer, needs_mixed(own.optimizer, options)
    alike = is_elementwise(type(optimizer))
    if not (alike or is_mixed):
        return own
    if not (alike or type(optimizer).__module__.startswith("torch.optim") or hasattr(optimizer, "elementwise")):
        raise ValueError(
            f"{type(optimizer).__name__} may keep progress elsewhere than in the state of single parameters, so its "
            "update is not worked out in other types. Leave out accumulation_dtype, optimizer_state_dtype, "
            "master_weights and stochastic_rounding; or give its class an attribute elementwise: True if it treats "
            "every element alike, False if it looks at whole parameters, one at a time."
        )
    alone = without_parameters(optimizer)
    groups = [optimizer.param_groups[part.group] for part in flat]
    alone.param_groups = [{**group, "params": [part.own]} for group, part in zip(groups, flat, strict=True)]
    worker = MixedWorker(alone, options, part) if is_mixed else Worker(alone)
    return CapturedWorker(worker) if alike else worker
