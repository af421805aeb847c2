"""Making the batches of an epoch in this process, on a thread or in workers, in new or reused memory."""

import math
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from torch_geometric.data import Batch

from popgeo.data.batch_contents import Layout
from popgeo.data.cut import BatchMemory, note_largest
from popgeo.loader.epoch_choices import EpochChoices
from popgeo.loader.prefetch import in_background
from popgeo.loader.source import BatchSource
from popgeo.packing import Packs

Check: TypeAlias = Callable[[np.ndarray], None]
Lend: TypeAlias = Callable[[Layout, int], BatchMemory | None]
_STARTING_WORKERS = threading.Lock()  # two forks at a time would each copy half of the other's state


class BatchMaker:
    """A builder of the batches of epochs. Several passes may run at a time, each with its own workers and memory.

    Args:
        source: Makes batches from packs of graphs.
        choices: Whether memory is reused, and whether a thread makes the coming batches.
        check: Raises an error if graphs, given by their numbers, must not be used. Called before their batch is made.
        of_torch: Arguments of torch's `DataLoader`, such as `pin_memory` and `num_workers`. Without workers, this
            process makes the batches.
    """

    def __init__(self, source: BatchSource, choices: EpochChoices, of_torch: dict[str, Any], check: Check) -> None:
        self.source, self.check = source, check
        self.of_torch = {**of_torch, "in_order": True}  # a run that continues counts items
        self.num_buffers, self.background = choices.num_buffers, choices.background
        self.pin_memory = of_torch.get("pin_memory", False) and torch.cuda.is_available()
        self._idle: list[Any] = []  # empty, or the workers or the memory of the pass that ended last
        # Without this, the garbage collector would close the queues of workers before the message to end arrives.
        weakref.finalize(self, self._idle.clear)
        self._made_for = 1

    def make(
        self, packs: Packs, group: int, start: int, key: tuple[int, int], lend: Lend | None = None
    ) -> Iterator[list[Batch]]:
        """Return an iterator over the items of an epoch. A few items are made at a time.

        Args:
            packs: Graphs of each batch.
            group: Batches in one item.
            start: Number of items to leave out because they have been used.
            key: Seed and epoch, for random draws.
            lend: Returns the memory of the next item, or None for new memory. Default: this object decides.
        """
        packs = Packs(packs.indices, packs.ptr)[start * group :]  # workers need not receive skipped packs
        if group != self._made_for:
            self._idle.clear()
            self._made_for = group
        if self.of_torch.get("num_workers", 0) > 0:
            return self._from_workers(packs, group, key)
        if lend is not None and self.source.layout is not None and self.source.asks_batch_by_batch:
            return self._items(packs, group, key, partial(lend, self.source.layout, group))
        chunks = self._chunks(packs, group, key)
        return in_background(chunks) if self.background else chunks

    def _items(self, packs: Packs, group: int, key: tuple[int, int], lend: Callable[[], Any]) -> Iterator[list[Batch]]:
        for start in range(0, len(packs), group):
            self._expect(packs, start, start + group)
            yield self.source.cut(packs[start : start + group], key, group, lend())

    def _expect(self, packs: Packs, start: int, stop: int) -> None:
        self.source.expect(packs, start)
        self.check(packs[start:stop].indices)

    def _from_workers(self, packs: Packs, group: int, key: tuple[int, int]) -> Iterator[list[Batch]]:
        starts = range(0, len(packs), group)
        asked = [(packs[i : i + group], key) for i in starts]
        pool = self._take_idle()
        if pool is None:
            prepare = partial(_start_worker, own=self.of_torch.get("worker_init_fn"))
            of_torch = {**self.of_torch, "worker_init_fn": prepare}
            pool = DataLoader(_BatchDataset(self.source, group), batch_size=None, sampler=asked, **of_torch)
            with _STARTING_WORKERS, _no_interrupts():
                items = iter(pool)
        else:
            pool.sampler[:] = asked  # the list that the pool was made with
            items = iter(pool)
        try:
            for start, batch in zip(starts, items, strict=True):
                self._expect(packs, start, start + group)  # pages are shared with the workers
                if (layout := self.source.layout) is not None:  # notes at a tensor stay in their process
                    stores = {store._key: store for store in batch.stores}
                    note_largest((stores[slot.store][slot.name] for slot in layout.slots), layout)
                yield [batch]
        except GeneratorExit:  # stopped between two items; after an error within torch a pool is unusable
            self._keep_idle(pool, group)
            raise
        self._keep_idle(pool, group)

    def _take_idle(self) -> Any:
        try:
            return self._idle.pop()
        except IndexError:  # empty, or another thread was faster
            return None

    def _keep_idle(self, own: Any, group: int) -> None:
        reuses = self.of_torch.get("persistent_workers") if isinstance(own, DataLoader) else self.num_buffers
        if reuses and group == self._made_for:
            self._idle[:] = [own]

    def _chunks(self, packs: Packs, group: int, key: tuple[int, int]) -> Iterator[list[Batch]]:
        at_once = math.ceil(self.source.batches_at_once(packs) / group) * group
        ring: list[BatchMemory | None] = [None]
        if self.num_buffers:
            at_once = max(1, self.num_buffers // 2) * group
            # Each iterator has its own ring: a look at one batch must not overwrite items of a running epoch. One part
            # is in use while another is filled; with a thread, two more wait between them.
            parts = range(4 if self.background else 2)
            ring = self._take_idle() or [self._allocate(at_once, group) for _ in parts]
        start, stop, end = 0, group, len(packs)  # the first item is needed soon
        turn = 0
        while start < end:
            stop = min(stop, end)
            memory = ring[turn % len(ring)]
            if memory is None and self.pin_memory:
                memory = self._allocate(stop - start, group)
            self._expect(packs, start, stop)
            yield self.source.cut(packs[start:stop], key, group, memory)
            start, stop, turn = stop, stop + at_once, turn + 1
        self._keep_idle(ring, group)

    def _allocate(self, num_batches: int, group: int) -> BatchMemory | None:
        layout = self.source.layout
        return None if layout is None else BatchMemory(layout, num_batches, pin_memory=self.pin_memory, group=group)


class _BatchDataset(Dataset[Batch]):
    """The dataset of worker processes. An index consists of packs and a key (seed, epoch); the item is their batch."""

    def __init__(self, source: BatchSource, group: int) -> None:
        self.source, self.group = source, group

    def __getitem__(self, packs_with_key: tuple[Packs, tuple[int, int]]) -> Batch:
        packs, key = packs_with_key
        return self.source.cut(packs, key, self.group)[0]


def _start_worker(number: int, own: Callable[[int], None] | None) -> None:
    """Ignore interrupts, which the main process handles, and call the user's `worker_init_fn`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if own is not None:
        own(number)


@contextmanager
def _no_interrupts() -> Iterator[None]:
    """Delay interrupts inside this context. Processes that start inside it never receive interrupts."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
