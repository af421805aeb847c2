"""Runs an optimizer's updates as captured graphs."""

from dataclasses import replace
from typing import Any

from torch.optim import Optimizer

from popgeo.engine.graph_runner import GraphRunner
from popgeo.engine.optimizer.capture_update import UpdateGraph, tensors_of
from popgeo.engine.optimizer.rehearse import Rehearsal


class UpdateRunner:
    """Runs the updates of an optimizer that treats every element alike as captured graphs.

    Each update is rehearsed, which gives its numbers. An optimizer whose state counts nothing, such as SGD, rehearses
    only when its settings change.

    Args:
        worker: Owns parameters, gradients and a state that its first step has made.
    """

    def __init__(self, worker: Optimizer) -> None:
        self._worker, self._rehearsal = worker, Rehearsal(worker)
        self._counts_steps = self._rehearsal.counts_steps
        self._steady: tuple[Any, GraphRunner] | None = None
        self._runners: dict[int, GraphRunner | None] = {}  # by id of the update's graph, which the rehearsal keeps

    def run(self) -> bool:
        """One update; False, with nothing done, where it cannot be captured."""
        settings = [{k: v for k, v in group.items() if k != "params"} for group in self._worker.param_groups]
        if self._steady is not None and self._steady[0] == settings:
            self._steady[1].run([])
            return True
        update, numbers = self._rehearsal.next(settings)
        if id(update) not in self._runners:
            self._runners[id(update)] = self._runner(update)
        runner = self._runners[id(update)]
        if runner is None:
            return False
        runner.set_numbers(numbers)
        runner.run([])
        if not self._counts_steps:
            self._steady = settings, runner
        return True

    @property
    def is_captured(self) -> bool | None:
        """Whether updates run as captured graphs; None before the first."""
        return all(runner is not None for runner in self._runners.values()) if self._runners else None

    def _runner(self, update: UpdateGraph | None) -> GraphRunner | None:
        if update is None:
            return None
        graph = update.graph
        given = {graph.values[v].storage for v in graph.inputs.values()}
        # A tensor made of a number would keep the value that it has now, and state that is made anew would be lost.
        if graph.constants or any(graph.values[v].storage not in given for v in graph.outputs if v is not None):
            return None
        return GraphRunner(replace(graph, outputs=()), tensors_of(self._worker))
