"""Captured updates: an optimizer's operations as graphs, which run with the numbers of each update."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from popgeo.engine.graph_runner import GraphRunner
from popgeo.engine.optimizer.capture_update import UpdateGraph
from popgeo.engine.optimizer.coming_updates import ComingUpdates
from popgeo.engine.optimizer.worker import Worker, settings_of


class CapturedWorker:
    """Runner of a worker's updates as captured graphs, for an optimizer that updates each element by itself.

    The worker itself runs the first update after `begin`, which makes the state, and each update that cannot be
    captured. `ComingUpdates` gives the graph and the numbers of every other update.

    Args:
        worker: Worker over the flat parameters.

    Attributes:
        is_captured: Whether the last update ran as a captured graph. None before the second update.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker, self._has_state = worker, False
        self._settings: Sequence[Mapping[str, Any]] = settings_of(worker.optimizer)
        self._reset()

    def _reset(self) -> None:
        self.is_captured: bool | None = None
        self._coming: ComingUpdates | None = None
        self._is_ahead = False  # whether the worker has stepped since the state was read
        self._numbers: list[float] | None = None  # of the last captured update
        self._runners: dict[int, GraphRunner | None] = {}  # by id of the update's graph, which `ComingUpdates` keeps

    def begin(self, num_updates: int, seed: int) -> None:
        """Continue from the state that the optimizer holds now, as `Worker.begin`."""
        self._has_state = all(self._worker.optimizer.state.get(p) for p in self._worker.parameters)
        self._reset()
        self._worker.begin(num_updates, seed)

    def take_settings(self, settings: Sequence[Mapping[str, Any]]) -> None:
        """Set the settings of each parameter group for the next updates."""
        self._settings = settings
        self._worker.take_settings(settings)

    def step(self) -> None:
        """Update the parameters once with their gradients."""
        runner = self._next_runner() if self._has_state else None
        if runner is None:
            self._worker.step()
            self._has_state = self._is_ahead = True
            return
        runner.run([])
        assert self._coming is not None
        for (parameter, key), number in self._coming.plain_counts().items():
            self._worker.optimizer.state[self._worker.parameters[parameter]][key] = number

    def _next_runner(self) -> GraphRunner | None:
        """Return the runner of the next update, with its numbers set. None if the update cannot be captured."""
        if self._coming is None:
            self._coming = ComingUpdates(self._worker)
        elif self._is_ahead:
            self._coming.read_state()
        update, numbers = self._coming.next(self._settings)
        self._is_ahead = False
        if id(update) not in self._runners:
            self._runners[id(update)] = self._make_runner(update)
        runner = self._runners[id(update)]
        self.is_captured = runner is not None
        if runner is not None and numbers is not self._numbers:
            runner.set_numbers(numbers)
            self._numbers = numbers
        return runner

    def _make_runner(self, update: UpdateGraph | None) -> GraphRunner | None:
        if update is None:
            return None
        graph = update.graph
        given = {graph.values[v].storage for v in graph.inputs.values()}
        # State in a new tensor would be lost.
        if any(graph.values[v].storage not in given for v in graph.outputs if v is not None):
            return None
        return GraphRunner(replace(graph, outputs=()), self._worker.tensors())
