"""Makes the batches of an epoch: here, on a thread, or in worker processes; in new memory or in reused one."""

import math
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset
from torch_geometric.data import Batch

from popgeo.data.cut import BatchMemory, note_largest
from popgeo.loader.epoch_choices import EpochChoices
from popgeo.loader.prefetch import in_background
from popgeo.loader.source import BatchSource
from popgeo.packing import Packs

_ONE_STARTS_WORKERS = threading.Lock()  # a process that is forked while another is gets half of its state


class BatchMaker:
    """Makes the batches of one epoch after another, or of several at a time: each pass has its own workers and memory.

    Args:
        source: Makes batches from packs of graphs.
        choices: Whether memory is reused, and whether a thread makes the coming batches.
        of_torch: What torch's `DataLoader` takes, such as `pin_memory`; `num_workers` processes make the batches if
            there are any, else this one.
    """

    def __init__(self, source: BatchSource, choices: EpochChoices, of_torch: dict[str, Any]) -> None:
        self.source, self.of_torch = source, {**of_torch, "in_order": True}  # a run that continues counts items
        self.num_buffers, self.background = choices.num_buffers, choices.background
        self.pin_memory = of_torch.get("pin_memory", False) and torch.cuda.is_available()
        self._idle: list[Any] = []  # at most one: the workers, or the memory, of the pass that ended last
        # In the cycle that a loader is part of, the queues of workers would be closed before they receive the message
        # to end.
        weakref.finalize(self, self._idle.clear)
        self._made_for = 1

    def make(self, packs: Packs, group: int, start: int, key: tuple[int, int]) -> Iterator[list[Batch]]:
        """The items of an epoch, a few at a time.

        Args:
            packs: The graphs of each batch.
            group: Batches in one item.
            start: How many items to leave out, as they have been used already.
            key: Seed and epoch, from which trimming draws.
        """
        packs = Packs(packs.indices, packs.ptr)[start * group :]  # what was skipped need not travel to workers
        if group != self._made_for:
            self._idle.clear()
            self._made_for = group
        if self.of_torch.get("num_workers", 0) > 0:
            return self._from_workers(packs, group, key)
        chunks = self._chunks(packs, group, key)
        return in_background(chunks) if self.background else chunks

    def _from_workers(self, packs: Packs, group: int, key: tuple[int, int]) -> Iterator[list[Batch]]:
        starts = range(0, len(packs), group)
        asked = [(packs[i : i + group], key) for i in starts]
        pool = self._take_idle()
        if pool is None:
            prepare = partial(_start_worker, own=self.of_torch.get("worker_init_fn"))
            of_torch = {**self.of_torch, "worker_init_fn": prepare}
            pool = DataLoader(_BatchDataset(self.source, group), batch_size=None, sampler=asked, **of_torch)
            with _ONE_STARTS_WORKERS, _no_interrupts():
                items = iter(pool)
        else:
            pool.sampler[:] = asked  # the list that it was made with
            items = iter(pool)
        try:
            for start, batch in zip(starts, items, strict=True):
                self.source.expect(packs, start)  # pages are shared with the workers
                if (layout := self.source.layout) is not None:  # what is noted at a tensor stays in its process
                    stores = {store._key: store for store in batch.stores}
                    note_largest((stores[slot.store][slot.name] for slot in layout.slots), layout)
                yield [batch]
        except GeneratorExit:  # given up between two items; after an error or an interrupt within torch a pool is lost
            self._keep_idle(pool, group)
            raise
        self._keep_idle(pool, group)

    def _take_idle(self) -> Any:
        try:
            return self._idle.pop()
        except IndexError:  # there is none, or another thread has just taken it
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
            # An iterator has a ring of its own: what a peek draws must not stand where an epoch's items are in use.
            # One part is in use while one is filled; with a thread more wait between them.
            parts = range(4 if self.background else 2)
            ring = self._take_idle() or [self._allocate(at_once, group) for _ in parts]
        start, stop, end = 0, group, len(packs)  # the first item is wanted at once
        turn = 0
        while start < end:
            stop = min(stop, end)
            memory = ring[turn % len(ring)]
            if memory is None and self.pin_memory:
                memory = self._allocate(stop - start, group)
            self.source.expect(packs, start)
            yield self.source.cut(packs[start:stop], key, group, memory)
            start, stop, turn = stop, stop + at_once, turn + 1
        self._keep_idle(ring, group)

    def _allocate(self, num_batches: int, group: int) -> BatchMemory | None:
        layout = self.source.layout
        return None if layout is None else BatchMemory(layout, num_batches, pin_memory=self.pin_memory, group=group)


class _BatchDataset(Dataset[Batch]):
    """What workers look up: the item that some packs make, with a key, which is seed and epoch."""

    def __init__(self, source: BatchSource, group: int) -> None:
        self.source, self.group = source, group

    def __getitem__(self, packs_with_key: tuple[Packs, tuple[int, int]]) -> Batch:
        packs, key = packs_with_key
        return self.source.cut(packs, key, self.group)[0]


def _start_worker(number: int, own: Callable[[int], None] | None) -> None:
    """Ignore interrupts, because the main process may catch them and continue, and call the user's `worker_init_fn`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if own is not None:
        own(number)


@contextmanager
def _no_interrupts() -> Iterator[None]:
    """Hold back interrupts until the end; processes that start within it never get them."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
