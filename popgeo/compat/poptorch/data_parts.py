"""Which part of a dataset a process loads, and batches cut to another size."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from popgeo.capture.pytree import flatten, unflatten
from popgeo.compat.poptorch.errors import check
from popgeo.compat.poptorch.options import Options


class PartOfDataset(torch.utils.data.Dataset):
    """A block of a dataset for each process: those of process 0 first, then those of process 1.

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
        self._seed = options.random_seed if options.exists("random_seed") else None
        self._generator: torch.Generator | None = None
        self._order: Tensor | None = None

    def next_epoch(self) -> None:
        """Shuffles the whole dataset as all processes do, and takes turns with the elements that no batch has.

        Raises:
            AssertionError: the options have no random seed; it is a ValueError too.
        """
        if self._generator is None:
            check(self._seed is not None, "Options.randomSeed() must be set so that all processes shuffle alike.")
            self._generator = torch.Generator().manual_seed(self._seed or 0)
        order = torch.randperm(len(self._dataset), generator=self._generator)
        if self._order is None:
            self._order = order.share_memory_()  # workers that stay see the new order too
        else:
            self._order.copy_(order)
        self._offset = self._first if self._offset != self._first else self._first + self._left_over

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
        drop_last: Leave out the last one where it would be smaller.

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
