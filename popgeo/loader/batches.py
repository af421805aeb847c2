"""Makes the batches of a plan: here, on a thread, or in worker processes; in new memory or in reused one."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch_geometric.data import Batch

from popgeo.data.cutter import Memory
from popgeo.loader.epoch import Plan
from popgeo.loader.prefetch import in_background
from popgeo.loader.source import Portion, Source
from popgeo.loader.workers import WorkerPool

OF_WORKERS = (
    "num_workers",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "prefetch_factor",
    "persistent_workers",
)
"""What torch's `DataLoader` is told about worker processes."""

# Making so many graphs at once spreads the cost of a call over several batches, while they still fit the cache.
_GRAPHS_AT_ONCE = 512


class BatchMaker:
    """Makes the batches of plans.

    Args:
        source: Makes batches from graph ids.
        group: Batches in one item.
        num_buffers: Items that share reused memory; 0 gives each item memory of its own.
        background: Makes the coming batches on a thread while one is in use.
        pin_memory: Uses page-locked memory where there is a CUDA device.
        workers: How to run worker processes, as torch's `DataLoader` takes it; None makes the batches in this one.
    """

    def __init__(
        self,
        source: Source,
        group: int,
        *,
        num_buffers: int,
        background: bool,
        pin_memory: bool,
        workers: dict[str, Any] | None,
    ) -> None:
        self.source, self.group, self.workers = source, group, workers
        self.num_buffers, self.background = num_buffers, background
        self.pin_memory = pin_memory and torch.cuda.is_available()
        self._pool: WorkerPool | None = None
        self._ring: list[Memory | None] = []

    def run(self, plan: Plan, start: int, key: tuple[int, int]) -> Iterator[list[Batch]]:
        """The items of a plan, a few at a time.

        Args:
            plan: The batches of an epoch.
            start: How many items to leave out, as they have been used already.
            key: Seed and epoch.
        """
        if self.workers is not None:
            return self._from_workers(plan, start, key)
        chunks = self._chunks(plan, start, key)
        return in_background(chunks) if self.background else chunks

    def _from_workers(self, plan: Plan, start: int, key: tuple[int, int]) -> Iterator[list[Batch]]:
        assert self.workers is not None  # `run` asked
        if self._pool is None or not self.workers["persistent_workers"]:
            self._pool = WorkerPool(self.source, self.group, self.workers)
        starts = range(start * self.group, len(plan), self.group)
        batches = self._pool.batches([_portion(plan, i, i + self.group, key) for i in starts])
        return ([batch] for batch in batches)

    def _chunks(self, plan: Plan, start: int, key: tuple[int, int]) -> Iterator[list[Batch]]:
        group, start = self.group, start * self.group
        at_once = math.ceil(_GRAPHS_AT_ONCE * len(plan) / max(1, len(plan.ids)) / group) * group
        ring: list[Memory | None] = [None]
        if self.num_buffers:
            at_once = max(1, self.num_buffers // 2) * group
            ring = self._ring = self._ring or self._make_ring(at_once)
        stop = start + group  # the first item is wanted at once
        turn = 0
        while start < len(plan):
            stop = min(stop, len(plan))
            memory = ring[turn % len(ring)]
            if memory is None and self.pin_memory:
                memory = self.source.allocate(stop - start, True, group)
            yield self.source.cut(_portion(plan, start, stop, key), group, memory)
            start, stop, turn = stop, stop + at_once, turn + 1

    def _make_ring(self, at_once: int) -> list[Memory | None]:
        # One part is in use while one is filled; with a thread more wait between them.
        parts = 4 if self.background else 2
        return [self.source.allocate(at_once, self.pin_memory, self.group) for _ in range(parts)]


def _portion(plan: Plan, start: int, stop: int, key: tuple[int, int]) -> Portion:
    ptr = plan.ptr[start : stop + 1]
    return Portion(ids=plan.ids[ptr[0] : ptr[-1]], ptr=ptr - ptr[0], key=key)
