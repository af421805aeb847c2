"""Runs an optimizer's updates as captured graphs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from popgeo.engine.graph_runner import GraphRunner
from popgeo.engine.optimizer.capture_update import UpdateGraph
from popgeo.engine.optimizer.rehearse import Rehearsal
from popgeo.engine.optimizer.worker import Worker, noted_groups, settings_of
from popgeo.engine.same_objects import holds_the_same


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
