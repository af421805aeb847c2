"""Loaders over PopTorch's `DataLoader`. Each item holds the batches of a whole call of the executor."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import Sampler

from popgeo.compat import poptorch
from popgeo.compat.poptorch.data_loader import generator_for_a_thread
from popgeo.compat.poptorch_geometric import pyg_dataloader
from popgeo.compat.poptorch_geometric.collate import CombinedBatchingCollater


class WholeCallsMixin:
    """Mixin for loaders of `pyg_dataloader` over `poptorch.DataLoader`: each item holds the batches of a whole call.

    Args:
        args: Arguments of the loader of single batches.
        options: Options of the model. Default: `poptorch.Options()`.
        kwargs: Keyword arguments of the loader of single batches and of `poptorch.DataLoader`.
    """

    def __init__(self, *args: Any, options: poptorch.Options | None = None, **kwargs: Any) -> None:
        options = poptorch.Options() if options is None else options
        super().__init__(*args, options=options, **kwargs)  # type: ignore[call-arg]

    def _create_collater(self: Any, *args: Any, **kwargs: Any) -> Callable[[list[Any]], Any]:
        collate = super()._create_collater(*args, **kwargs)  # type: ignore[misc]
        return CombinedBatchingCollater(collate, self._mini_batch_size)


class DataLoader(WholeCallsMixin, pyg_dataloader.DataLoader, poptorch.DataLoader):
    """Loader of graphs in PyG's batches; see `pyg_dataloader.DataLoader` and `WholeCallsMixin`."""


class FixedSizeDataLoader(WholeCallsMixin, pyg_dataloader.FixedSizeDataLoader, poptorch.DataLoader):
    """Loader of graphs in batches of one shape; see `pyg_dataloader.FixedSizeDataLoader` and `WholeCallsMixin`."""

    def _sampler_arguments(self, dataset: Any, sampler: Any) -> dict[str, Any]:
        # An item holds several batches with different numbers of graphs, so each batch is one element.
        return {"dataset": GroupedDataset(dataset), "batch_sampler": _SingleElementBatches(sampler)}

    def _packing(self, dataset: Any, shuffle: bool, *args: Any) -> Any:
        kwargs = args[-1]
        if shuffle and kwargs.get("mode", poptorch.DataLoaderMode.Sync) != poptorch.DataLoaderMode.Sync:
            kwargs["generator"] = kwargs.get("generator") or generator_for_a_thread()
        return super()._packing(dataset, shuffle, *args)


class CustomFixedSizeDataLoader(pyg_dataloader.OlderArguments, FixedSizeDataLoader):
    """Loader with the arguments of older releases; see `fixed_size_options.in_todays_words`."""


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
        if name in (
            "dataset",
            "__getitems__",
        ):  # "dataset" is missing during unpickling; __getitems__ would skip groups
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


class FixedSizeClusterLoader(WholeCallsMixin, pyg_dataloader.FixedSizeClusterLoader, poptorch.DataLoader):
    """Loader of clusters in batches of one shape; see `pyg_dataloader.FixedSizeClusterLoader` and `WholeCallsMixin`."""
