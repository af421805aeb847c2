"""Loaders over PopTorch's `DataLoader`. Each item holds the batches of a whole call of the executor."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import Sampler

from popgeo.compat import poptorch
from popgeo.compat.poptorch_geometric import pyg_dataloader
from popgeo.compat.poptorch_geometric.collate import CombinedBatchingCollater


class WholeCallLoader(poptorch.DataLoader):
    """Base class that loads the batches of a whole call in one item; its other base is a loader of `pyg_dataloader`.

    Args:
        dataset: Graphs.
        collate_fn: Collater of a single batch.
        options: Options of the model. Default: `poptorch.Options()`.
        kwargs: Arguments of `poptorch.DataLoader`.
    """

    def __init__(
        self: Any, dataset: Any, collate_fn: Callable[[list[Any]], Any], options: poptorch.Options | None = None,
        **kwargs: Any,
    ) -> None:  # fmt: skip
        if self._mini_batch_size is None:  # a sampler makes batches of different sizes, so each batch is one element
            dataset, kwargs["batch_sampler"] = GroupedDataset(dataset), _SingleElementBatches(kwargs["batch_sampler"])
        collate = CombinedBatchingCollater(collate_fn, self._mini_batch_size)
        options = poptorch.Options() if options is None else options
        super().__init__(options=options, dataset=dataset, collate_fn=collate, **kwargs)


class DataLoader(pyg_dataloader.DataLoader, WholeCallLoader):
    """Loader of graphs in PyG's batches; see `pyg_dataloader.DataLoader` and `WholeCallLoader`."""


class FixedSizeDataLoader(pyg_dataloader.FixedSizeDataLoader, WholeCallLoader):
    """Loader of graphs in batches of one shape; see `pyg_dataloader.FixedSizeDataLoader` and `WholeCallLoader`."""


class CustomFixedSizeDataLoader(pyg_dataloader.OlderArguments, FixedSizeDataLoader):
    """Loader with the arguments of older releases; see `fixed_size_options.in_todays_words`."""


class FixedSizeClusterLoader(pyg_dataloader.FixedSizeClusterLoader, WholeCallLoader):
    """Loader of clusters in batches of one shape; see `pyg_dataloader.FixedSizeClusterLoader` and `WholeCallLoader`."""


class GroupedDataset(torch.utils.data.Dataset[Any]):
    """Dataset that returns a list of graphs for a tuple of indices. Other attributes are the dataset's.

    Args:
        dataset: Graphs.

    Example:
        >>> GroupedDataset("abc")[(0, 2)], GroupedDataset("abc")[1], len(GroupedDataset("abc"))
        (['a', 'c'], 'b', 3)
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __getitem__(self, index: Any) -> Any:
        return [self.dataset[i] for i in index] if isinstance(index, tuple) else self.dataset[index]

    def __len__(self) -> int:
        return len(self.dataset)

    def __getattr__(self, name: str) -> Any:
        # "dataset" is missing during unpickling; __getitems__ would skip groups
        if name in ("dataset", "__getitems__"):
            raise AttributeError(name)
        return getattr(self.dataset, name)


class _SingleElementBatches(Sampler[Any]):
    """Sampler that yields each batch of another sampler as a list with one element, a tuple."""

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler

    def __iter__(self) -> Iterator[list[tuple[int, ...]]]:
        return ([tuple(batch)] for batch in self._sampler)

    def __len__(self) -> int:
        return len(self._sampler)
