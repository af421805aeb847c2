"""`poptorch.DataLoader`: batches for whole calls, of as many micro-batches as the options ask for."""

import weakref
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Any

import torch
from torch.utils.data import BatchSampler, Sampler

from popgeo.compat.account import honoured
from popgeo.compat.poptorch.async_data import AsynchronousDataAccessor, DatasetBlock, rebatched
from popgeo.compat.poptorch.enums import DataLoaderMode
from popgeo.compat.poptorch.errors import check, said
from popgeo.compat.poptorch.option_group import at_least_one
from popgeo.compat.poptorch.options import Options


class DataLoader(torch.utils.data.DataLoader):
    """torch's loader; one batch serves a whole call: device iterations x accumulation x replicas micro-batches.

    Args:
        options: Frozen from here on.
        dataset: Of either of torch's kinds.
        batch_size: Elements of a micro-batch; None leaves batches to the dataset.
        shuffle: Whether the order is drawn again for each epoch.
        num_workers: Processes that load.
        drop_last: Whether a last batch that is too small is left out.
        persistent_workers: Whether processes stay between epochs; by default those that there are do.
        auto_distributed_partitioning: Whether each process of `Options.Distributed` loads a part of the dataset.
        mode: Whether batches are loaded ahead of time, by a thread.
        async_options: For the `AsynchronousDataAccessor` that does it.
        rebatched_worker_size: With `AsyncRebatched`, how many elements a worker loads at a time.
        batch_sampler: The elements of each micro-batch, instead of `batch_size` and `shuffle`.
        kwargs: For torch's loader.

    Raises:
        AssertionError: the arguments contradict each other; it is a ValueError too.

    Example:
        >>> options = Options().deviceIterations(2)
        >>> loader = DataLoader(options, torch.arange(9), batch_size=2)
        >>> loader.combinedBatchSize, [batch.tolist() for batch in loader]
        (4, [[0, 1, 2, 3], [4, 5, 6, 7]])
    """

    _accessor: AsynchronousDataAccessor | None = None  # without one, batches are loaded as they are asked for

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
        self._part: DatasetBlock | None = None  # whose order all processes share
        is_iterable = isinstance(dataset, torch.utils.data.IterableDataset)
        if options.Distributed.numProcesses > 1 and auto_distributed_partitioning:
            check(not is_iterable, "auto_distributed_partitioning not supported for IterableDataset")
            check(batch_sampler is None, "auto_distributed_partitioning not supported with a batch_sampler")
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
            check("rebatched_size" not in chosen, "rebatched_size is the loader's own: use mode=AsyncRebatched")
            # Workers end at once where the loader is given up at its last use, and after seconds if it is found in a
            # circle: so its accessor does not keep it.
            self._accessor = AsynchronousDataAccessor(weakref.proxy(self), **chosen)

    combinedBatchSize = property(attrgetter("_combined"), doc="Elements of a call, unless the dataset makes batches.")
    options = property(attrgetter("_options"), doc="The options that the batches are for.")

    def terminate(self) -> None:
        """Stops the thread that loads ahead of time, if there is one, and its workers."""
        if self._accessor is not None:
            self._accessor.terminate()
            self._iterator = None

    def __len__(self) -> int:
        size = self._rebatched_to
        if size is None:
            return super().__len__()
        elements = len(self.dataset)  # type: ignore[arg-type]  # a TypeError says so if it has no length
        return elements // size if self._drop_last_row else -(-elements // size)

    def __iter__(self) -> Any:
        return self._loaded_as_asked() if self._accessor is None else self._epoch_ahead(self._accessor)

    def _epoch_ahead(self, accessor: AsynchronousDataAccessor) -> Iterator[Any]:
        yield from accessor  # here, so that the loader is not given up while its batches are wanted

    def _loaded_as_asked(self) -> Iterator[Any]:
        """The batches of an epoch, loaded as they are asked for."""
        if self._part is not None:
            self._part.next_epoch()
        batches, size = super().__iter__(), self._rebatched_to
        return batches if size is None else rebatched(batches, size, self._drop_last_row)


def generator_for_a_thread() -> torch.Generator:
    """Draws the orders of epochs on a thread, which must not draw from the numbers that the program uses meanwhile."""
    return torch.Generator().manual_seed(int(torch.empty((), dtype=torch.int64).random_()))


class _CombinedBatches(BatchSampler):
    """The elements of several micro-batches as one batch: torch's batches, of batches."""

    def __iter__(self) -> Iterator[list[int]]:
        return ([element for part in joined for element in part] for joined in super().__iter__())  # type: ignore[attr-defined]
