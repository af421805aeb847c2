"""`poptorch.DataLoader`: batches for whole calls, loaded ahead of time or for one process's part of a dataset."""

import weakref
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import chain, islice
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, Sampler

from popgeo.capture.pytree import flatten, unflatten
from popgeo.compat.account import honoured, ignored
from popgeo.compat.poptorch.enums import DataLoaderMode, SharingStrategy
from popgeo.compat.poptorch.errors import Error, check, said
from popgeo.compat.poptorch.option_group import at_least_one
from popgeo.compat.poptorch.options import Options
from popgeo.loader.prefetch import in_background


class DatasetBlock(torch.utils.data.Dataset):
    """One process's block of a dataset: process 0 gets the first elements, process 1 the next ones, and so on.

    Args:
        dataset: Whole dataset.
        options: Options with the number of this process and the seed of the shared order.
        batch: Elements that a process takes at a time.
        drop_last: Whether every process gets the same number of whole batches. Otherwise all elements are used.
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
        """Shuffle the whole dataset as all processes do, and alternate the elements that no batch contains."""
        if self._order is None:  # persistent workers see the new order, too
            self._order = torch.empty(len(self._dataset), dtype=torch.int64).share_memory_()
        torch.randperm(len(self._order), generator=self._generator, out=self._order)
        self._offset = self._first if self._offset != self._first else self._first + self._left_over

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_generator": None}  # a worker reads the order and does not draw it

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        place = index + self._offset
        return self._dataset[place if self._order is None else int(self._order[place])]


def rebatched(batches: Iterable[Any], size: int, drop_last: bool) -> Iterator[Any]:
    """Yield the same rows in batches of another size.

    Args:
        batches: Batches, which are nests of tensors with the batch as their first dimension.
        size: Rows of each new batch.
        drop_last: Whether to omit a smaller last batch.

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
    """Loader that loads batches ahead of time in a thread. Each iteration is one epoch; the first epoch starts at once.

    Args:
        dataset: Loader, or another iterable that can be iterated repeatedly.
        buffer_size: Maximum number of waiting batches.
        miss_sleep_time_in_ms: No effect: the thread needs no polling.
        load_indefinitely: No effect: each epoch starts on demand.
        early_preload: No effect: the first epoch always starts at once.
        sharing_strategy: No effect: the thread shares the dataset.
        rebatched_size: Elements of a batch. Default: as the dataset's batches.

    Raises:
        Error: The first batch cannot be loaded, or the loader already loads ahead of time.

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
        honoured("AsynchronousDataAccessor", "a thread loads ahead, not a process")
        if sharing_strategy != SharingStrategy.ForkServer:
            ignored("AsynchronousDataAccessor(sharing_strategy=...)", "a thread shares the dataset")
        self._dataset, self._depth = dataset, at_least_one("buffer_size", buffer_size)
        self.rebatched_size = rebatched_size
        self._epoch: Iterator[Any]
        self._running = ExitStack()  # closing it stops the thread
        weakref.finalize(self, self._running.close)  # also when the program ends
        self._begin()

    def terminate(self) -> None:
        """Stop the thread and drop the loaded batches."""
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
        """Start an epoch, and wait for its first batch.

        This thread starts the workers: a process that is forked while another thread computes may hang.
        """
        try:
            ahead: Any = in_background(self._batches(), self._depth)
            self._running.callback(ahead.close)
            self._epoch = chain([*islice(ahead, 1)], ahead)
        except Exception as error:
            raise Error("AsynchronousDataAccessor worker thread failed to start (Check above for details)") from error
        self._is_fresh = True

    def _batches(self) -> Iterator[Any]:
        begin = getattr(self._dataset, "_load_on_demand", None)  # iterating over such a loader would call this accessor
        batches = iter(self._dataset) if begin is None else begin()
        return batches if self.rebatched_size is None else rebatched(batches, self.rebatched_size, drop_last=True)


class DataLoader(torch.utils.data.DataLoader):
    """torch's loader with batches for a whole call: device iterations x accumulation x replicas micro-batches.

    Args:
        options: Options of the model. The loader freezes them.
        dataset: Map-style or iterable dataset.
        batch_size: Elements of a micro-batch. None: the dataset makes batches.
        shuffle: Whether to draw a new order for each epoch.
        num_workers: Number of worker processes.
        drop_last: Whether to omit a smaller last batch.
        persistent_workers: Whether workers stay alive between epochs. Default: True if there are workers.
        auto_distributed_partitioning: Whether each process of `Options.Distributed` loads a part of the dataset.
        mode: Whether a thread loads batches ahead of time.
        async_options: Arguments of the `AsynchronousDataAccessor`.
        rebatched_worker_size: Elements that a worker loads at a time with `AsyncRebatched`.
        batch_sampler: Elements of each micro-batch, instead of `batch_size` and `shuffle`.
        kwargs: Arguments of torch's loader.

    Raises:
        AssertionError: Two arguments contradict each other. The error is also a ValueError.

    Example:
        >>> options = Options().deviceIterations(2)
        >>> loader = DataLoader(options, torch.arange(9), batch_size=2)
        >>> loader.combinedBatchSize, [batch.tolist() for batch in loader]
        (4, [[0, 1, 2, 3], [4, 5, 6, 7]])
    """

    _accessor: AsynchronousDataAccessor | None = None  # None: batches are loaded on demand

    def __init__(
        self, options: Options, dataset: Any, batch_size: int | None = 1, shuffle: bool | None = None,
        num_workers: int = 0, drop_last: bool = True, persistent_workers: bool | None = None,
        auto_distributed_partitioning: bool = True, mode: DataLoaderMode = DataLoaderMode.Sync,
        async_options: dict[str, Any] | None = None, rebatched_worker_size: int | None = None,
        batch_sampler: Sampler[list[int]] | Iterable[list[int]] | None = None, **kwargs: Any,
    ) -> None:  # fmt: skip
        check(isinstance(options, Options), f"The options are {options!r}; pass poptorch.Options().")
        options._freeze()
        honoured("DataLoader")
        self._options, self._drop_last_row = options, drop_last
        factor = options.device_iterations * options.Training.gradient_accumulation
        factor *= options.replication_factor // options.input_group_size
        self._combined = None if batch_size is None else factor * at_least_one("batch_size", batch_size)
        self._part: DatasetBlock | None = None  # its order is the same in all processes
        is_iterable = isinstance(dataset, torch.utils.data.IterableDataset)
        if options.Distributed.numProcesses > 1 and auto_distributed_partitioning:
            check(not is_iterable, "auto_distributed_partitioning not supported for IterableDataset")
            for name, chooses in {"sampler": kwargs.get("sampler"), "batch_sampler": batch_sampler}.items():
                check(chooses is None, said("DataLoader 3", name=name))
            check(self._combined is not None, "batch_size=None not allowed when using auto_distributed_partitioning.")
            check(not shuffle or options.exists("random_seed"), said("DataLoader"))
            dataset = DatasetBlock(dataset, options, self._combined or 1, drop_last)
            self._part, shuffle = dataset if shuffle else None, False
        self._rebatched_to = self._combined if mode == DataLoaderMode.AsyncRebatched else None
        loaded = self._combined
        if self._rebatched_to is not None:
            loaded = rebatched_worker_size or self._rebatched_to
            check(loaded <= self._rebatched_to, said("DataLoader 2", loaded=loaded, rebatched_to=self._rebatched_to))
        if mode != DataLoaderMode.Sync and shuffle:
            kwargs["generator"] = kwargs.get("generator") or generator_for_a_thread()
        if batch_sampler is not None:
            check(not shuffle, "batch_sampler option is mutually exclusive with shuffle")
            size = batch_sampler.batch_size if isinstance(batch_sampler, BatchSampler) else None
            self._combined = None if size is None else size * factor
            kwargs |= {"batch_sampler": _CombinedBatches(batch_sampler, factor, drop_last)}  # type: ignore[arg-type]
            check(self._rebatched_to is None, "batch_sampler is not supported with DataLoaderMode.AsyncRebatched")
        else:
            last = drop_last and self._rebatched_to is None and loaded is not None
            kwargs |= {"batch_size": loaded, "drop_last": last, "shuffle": shuffle}
        stay = num_workers > 0 if persistent_workers is None else persistent_workers
        super().__init__(dataset, num_workers=num_workers, persistent_workers=stay, **kwargs)
        if mode != DataLoaderMode.Sync:
            chosen = async_options or {}
            check("rebatched_size" not in chosen, "the loader sets rebatched_size itself: use mode=AsyncRebatched")
            # Without a reference cycle the loader's workers end at once when the loader is deleted.
            self._accessor = AsynchronousDataAccessor(weakref.proxy(self), **chosen)

    combinedBatchSize = property(attrgetter("_combined"), doc="Elements of a call. None if the dataset makes batches.")
    options = property(attrgetter("_options"), doc="Options of the model that gets the batches.")

    def terminate(self) -> None:
        """Stop the thread that loads ahead of time and its workers."""
        if self._accessor is not None:
            self._accessor.terminate()
            self._iterator = None

    def __len__(self) -> int:
        size = self._rebatched_to
        if size is None:
            return super().__len__()
        elements = len(self.dataset)  # type: ignore[arg-type]  # a TypeError if it has no length
        return elements // size if self._drop_last_row else -(-elements // size)

    def __iter__(self) -> Any:
        return self._load_on_demand() if self._accessor is None else self._epoch_ahead(self._accessor)

    def _epoch_ahead(self, accessor: AsynchronousDataAccessor) -> Iterator[Any]:
        yield from accessor  # a generator keeps the loader alive meanwhile

    def _load_on_demand(self) -> Iterator[Any]:
        """Return an iterator over an epoch that loads each batch on demand."""
        if self._part is not None:
            self._part.next_epoch()
        batches, size = super().__iter__(), self._rebatched_to
        return batches if size is None else rebatched(batches, size, self._drop_last_row)


def generator_for_a_thread() -> torch.Generator:
    """Return a separate generator for a thread, which must not change the program's random numbers."""
    return torch.Generator().manual_seed(int(torch.empty((), dtype=torch.int64).random_()))


class _CombinedBatches(BatchSampler):
    """Sampler that joins several micro-batches into one batch."""

    def __iter__(self) -> Iterator[list[int]]:
        return ([element for part in joined for element in part] for joined in super().__iter__())  # type: ignore[attr-defined]
