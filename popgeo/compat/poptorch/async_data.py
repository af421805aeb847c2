"""Batches loaded ahead of time by a thread, cut to another size, or of one process's part of a dataset."""

import weakref
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor

from popgeo.capture.pytree import flatten, unflatten
from popgeo.compat.account import honoured, ignored
from popgeo.compat.poptorch.enums import SharingStrategy
from popgeo.compat.poptorch.errors import Error, check, said
from popgeo.compat.poptorch.option_group import at_least_one
from popgeo.compat.poptorch.options import Options
from popgeo.loader.prefetch import in_background


class DatasetBlock(torch.utils.data.Dataset):
    """A block of a dataset for each process: the elements of process 0 first, then the elements of process 1.

    Args:
        dataset: All of it.
        options: Which process this is, and the seed of the order that processes share.
        batch: What a process takes at a time.
        drop_last: Every process gets the same number of whole batches; otherwise all elements are dealt out.
    """

    def __init__(self, dataset: Any, options: Options, batch: int, drop_last: bool) -> None:
        total, processes, this = len(dataset), options.Distributed.numProcesses, options.Distributed.processId
        if drop_last:
            self._length = batch * (total // (batch * processes))
            self._first = this * self._length
            self._left_over = total - processes * self._length
        else:
            shares = [total // processes + (total % processes > process) for process in range(processes)]
            self._first, self._length, self._left_over = sum(shares[:this]), shares[this], 0
        self._dataset, self._offset = dataset, self._first
        self._generator = torch.Generator().manual_seed(options.random_seed if options.exists("random_seed") else 0)
        self._order: Tensor | None = None

    def next_epoch(self) -> None:
        """Shuffles the whole dataset as all processes do, and takes turns with the elements that no batch has."""
        if self._order is None:  # workers that stay see the new order too
            self._order = torch.empty(len(self._dataset), dtype=torch.int64).share_memory_()
        torch.randperm(len(self._order), generator=self._generator, out=self._order)
        self._offset = self._first if self._offset != self._first else self._first + self._left_over

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_generator": None}  # a worker reads the order and draws none

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        place = index + self._offset
        return self._dataset[place if self._order is None else int(self._order[place])]


def rebatched(batches: Iterable[Any], size: int, drop_last: bool) -> Iterator[Any]:
    """The same rows in batches of another size.

    Args:
        batches: Nests of tensors whose first dimension is the batch.
        size: Rows of each batch that comes out.
        drop_last: Leave out the last one if it would be smaller.

    Example:
        >>> [batch.tolist() for batch in rebatched([torch.tensor([1, 2]), torch.tensor([3])], size=3, drop_last=True)]
        [[1, 2, 3]]
    """
    waiting: list[Tensor] = []
    structure = None
    for batch in batches:
        tensors, structure = flatten(batch)
        waiting = [torch.cat(pair) for pair in zip(waiting, tensors, strict=True)] if waiting else tensors
        while waiting and waiting[0].shape[0] >= size:
            yield unflatten(structure, [tensor[:size] for tensor in waiting])
            waiting = [tensor[size:] for tensor in waiting]
        if waiting and not waiting[0].shape[0]:
            waiting = []
    if waiting and structure is not None and not drop_last:
        yield unflatten(structure, waiting)


class AsynchronousDataAccessor:
    """Loads batches ahead of time; every iteration is one epoch, and the first one is begun at once.

    Args:
        dataset: A loader, or anything that can be iterated over again and again.
        buffer_size: Batches that wait at most.
        miss_sleep_time_in_ms: Not needed: the thread is woken up.
        load_indefinitely: Not needed: the next epoch begins when it is asked for.
        early_preload: Not needed: the first epoch is begun at once in any case.
        sharing_strategy: Not needed: a thread has the dataset itself.
        rebatched_size: Elements of a batch, where the dataset's own have another number.

    Raises:
        Error: the first batch cannot be loaded, or the loader loads ahead of time itself.

    Example:
        >>> import torch
        >>> [batch.tolist() for batch in AsynchronousDataAccessor([torch.tensor([1]), torch.tensor([2])])]
        [[1], [2]]
    """

    def __init__(
        self, dataset: Any, buffer_size: int = 3, miss_sleep_time_in_ms: float = 0.1, load_indefinitely: bool = True,
        early_preload: bool = False, sharing_strategy: SharingStrategy = SharingStrategy.ForkServer,
        rebatched_size: int | None = None,
    ) -> None:  # fmt: skip
        check(getattr(dataset, "_accessor", None) is None, said("AsynchronousDataAccessor"), Error)
        check(rebatched_size is None or rebatched_size > 1, "rebatched_size must be None or greater than 1")
        honoured("AsynchronousDataAccessor", "a thread loads ahead, instead of a process")
        if sharing_strategy != SharingStrategy.ForkServer:
            ignored("AsynchronousDataAccessor(sharing_strategy=...)", "a thread has the dataset itself")
        self._dataset, self._depth = dataset, at_least_one("buffer_size", buffer_size)
        self.rebatched_size = rebatched_size
        self._epoch: Iterator[Any]
        self._running = ExitStack()  # closing it stops the thread
        weakref.finalize(self, self._running.close)  # also where the program ends
        self._begin()

    def terminate(self) -> None:
        """Stops the thread; what it has loaded is dropped."""
        self._running.close()
        self._epoch, self._is_fresh = iter(()), False

    def __len__(self) -> int:
        length = len(self._dataset)
        if self.rebatched_size is None:
            return length
        return length * (getattr(self._dataset, "batch_size", None) or 1) // self.rebatched_size

    def __iter__(self) -> "AsynchronousDataAccessor":
        if not self._is_fresh:
            self.terminate()
            self._begin()
        self._is_fresh = False
        return self

    def __next__(self) -> Any:
        return next(self._epoch)

    def _begin(self) -> None:
        """Starts an epoch, and waits for its first batch.

        Workers are started here rather than by the thread, since a process that is copied while another of its threads
        computes may hang.
        """
        try:
            ahead: Any = in_background(self._batches(), self._depth)
            self._running.callback(ahead.close)
            self._epoch = chain([*islice(ahead, 1)], ahead)
        except Exception as error:
            raise Error("AsynchronousDataAccessor worker thread failed to start (Check above for details)") from error
        self._is_fresh = True

    def _batches(self) -> Iterator[Any]:
        begin = getattr(self._dataset, "_loaded_as_asked", None)  # a loader that has this accessor iterates over that
        batches = iter(self._dataset) if begin is None else begin()
        return batches if self.rebatched_size is None else rebatched(batches, self.rebatched_size, drop_last=True)
