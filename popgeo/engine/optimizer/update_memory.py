"""The memory of an optimizer's updates, from the shapes of its parameters: the updates run on stand-ins."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from popgeo.engine.eager_memory import Allocations
from popgeo.engine.graph_runner import GraphRunner
from popgeo.engine.memory_plan import planned_memory, storage_bytes
from popgeo.engine.optimizer.coming_updates import ComingUpdates
from popgeo.engine.optimizer.flat_worker import FlatWorker
from popgeo.engine.optimizer.update import Update
from popgeo.engine.optimizer.worker import Worker, settings_of, without_parameters


@dataclass(frozen=True, kw_only=True)
class UpdateMemory:
    """The memory of an optimizer beyond weights and gradients.

    Attributes:
        state: Bytes of its state.
        most: The most bytes of other tensors during an update.
    """

    state: int
    most: int


def eager_update(optimizer: Optimizer) -> UpdateMemory:
    """Return the memory of an optimizer's own updates.

    Example:
        >>> eager_update(torch.optim.Adam([nn.Parameter(torch.ones(250))])).state
        2004
    """

    def on(device: str) -> UpdateMemory:
        other, groups = without_parameters(optimizer), optimizer.param_groups
        own = {p: nn.Parameter(torch.empty_like(p, device=device)) for group in groups for p in group["params"]}
        for parameter in own.values():
            parameter.grad = torch.zeros_like(parameter)
        other.param_groups = [{**group, "params": [own[p] for p in group["params"]]} for group in groups]
        first, later = (_peak_of(Worker(other), other.step) for _ in range(2))
        return UpdateMemory(state=storage_bytes(_state_of(Worker(other))), most=max(first, later))

    return _without_values(on)


def compiled_update(update: Update, of_call: int) -> UpdateMemory:
    """Return the memory of a compiled step's updates: of the first, the second, which captures it, and later ones.

    Args:
        update: The update.
        of_call: The peak bytes of other tensors in a call before its update, beyond the memory that later updates keep.
    """

    def on(device: str) -> UpdateMemory:
        worker = update.over_stand_ins(device)
        worker.begin(0, 0)
        most = [of_call, _peak_of(worker, worker.step_once)]
        if isinstance(worker, FlatWorker):
            coming = ComingUpdates(worker)
            most.append(_peak_of(worker, lambda: coming.next(settings_of(worker.optimizer))))
            captured, _ = coming.next(settings_of(worker.optimizer))
            if captured is not None:
                with planned_memory() as memory:
                    given = {one: memory.like(tensor) for one, tensor in worker.tensors().items()}
                    runner = GraphRunner(replace(captured.graph, outputs=()), given)
                most.append(sum(memory.sizes) + max(of_call, runner.copied_bytes))
        else:  # the optimizer gets copies of the gradients
            most[1] += storage_bytes(update.totals())
        return UpdateMemory(state=storage_bytes(_state_of(worker)), most=max(most))

    return _without_values(on)


def _peak_of(worker: Worker, act: Callable[[], object]) -> int:
    """Return the most bytes of new tensors during an act, without the state of the optimizer."""
    with Allocations() as made:
        act()
    peak = made.peak(_state_of(worker))
    return peak.nbytes - peak.kept


def _state_of(worker: Worker) -> Sequence[Tensor]:
    """Return the tensors of an optimizer's state."""
    return [part for number in range(len(worker.parameters)) for part in worker.state_tensors(number).values()]


def _without_values(measure: Callable[[str], UpdateMemory]) -> UpdateMemory:
    """Return the memory on stand-ins without values; with values if the optimizer reads numbers from its tensors."""
    try:
        return measure("meta")
    except (RuntimeError, NotImplementedError):
        return measure("cpu")
