"""The loaders over PopTorch's `DataLoader`: as many batches in one item as a call of the executor takes."""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch.utils.data import Sampler

from popgeo.compat import poptorch
from popgeo.compat.poptorch.data_loader import generator_for_a_thread
from popgeo.compat.poptorch_geometric import pyg_dataloader
from popgeo.compat.poptorch_geometric.collate import CombinedBatchingCollater

Loader = TypeVar("Loader", bound=torch.utils.data.DataLoader[Any])


def of_whole_calls(loader: type[Loader]) -> type[Loader]:
    """Return a class of loaders whose items hold the batches of a whole call; it has no class in between.

    Args:
        loader: A class of loaders of single batches, over `poptorch.DataLoader`. It takes `options`, too.
    """

    initialize: Any = loader.__init__  # the class's own, or an inherited one
    create_collater: Any = loader._create_collater  # type: ignore[attr-defined]

    def __init__(self: Any, *args: Any, options: poptorch.Options | None = None, **kwargs: Any) -> None:
        initialize(self, *args, options=poptorch.Options() if options is None else options, **kwargs)

    def _create_collater(self: Any, *args: Any, **kwargs: Any) -> Callable[[list[Any]], Any]:
        return CombinedBatchingCollater(create_collater(self, *args, **kwargs), self._mini_batch_size)

    for method in (__init__, _create_collater):
        setattr(loader, method.__name__, method)
    return loader


@of_whole_calls
class DataLoader(pyg_dataloader.DataLoader, poptorch.DataLoader):
    """Loads graphs in batches as PyG makes them; see `pyg_dataloader.DataLoader` and `of_whole_calls`."""


@of_whole_calls
class FixedSizeDataLoader(pyg_dataloader.FixedSizeDataLoader, poptorch.DataLoader):
    """Loads graphs in batches of one shape; see `pyg_dataloader.FixedSizeDataLoader` and `of_whole_calls`."""

    def _of_sampler(self, dataset: Any, sampler: Any) -> dict[str, Any]:
        # Batches of different numbers of graphs, several of them in one item: each travels as one element.
        return {"dataset": GroupedDataset(dataset), "batch_sampler": _SingleElementBatches(sampler)}

    def _packing(self, dataset: Any, shuffle: bool, *args: Any) -> Any:
        kwargs = args[-1]
        if shuffle and kwargs.get("mode", poptorch.DataLoaderMode.Sync) != poptorch.DataLoaderMode.Sync:
            kwargs["generator"] = kwargs.get("generator") or generator_for_a_thread()
        return super()._packing(dataset, shuffle, *args)


class CustomFixedSizeDataLoader(pyg_dataloader.OlderArguments, FixedSizeDataLoader):
    """The loader of older releases, by its arguments; see `older_releases.in_todays_words`."""


class GroupedDataset(torch.utils.data.Dataset[Any]):
    """A dataset of which several graphs, by a tuple of their numbers, are one element; all else is the dataset's.

    Args:
        dataset: The graphs.

    Example:
        >>> BatchesOf("abc")[(0, 2)], BatchesOf("abc")[1], len(BatchesOf("abc"))
        (['a', 'c'], 'b', 3)
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __getitem__(self, index: Any) -> Any:
        return [self.dataset[i] for i in index] if isinstance(index, tuple) else self.dataset[index]

    def __len__(self) -> int:
        return len(self.dataset)

    def __getattr__(self, name: str) -> Any:
        if name in ("dataset", "__getitems__"):  # absent while it is unpickled; and each element is fetched by itself
            raise AttributeError(name)
        return getattr(self.dataset, name)


class _SingleElementBatches(Sampler[Any]):
    """The batches of a sampler, each as a list of one element."""

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler

    def __iter__(self) -> Iterator[list[tuple[int, ...]]]:
        return ([tuple(batch)] for batch in self._sampler)

    def __len__(self) -> int:
        return len(self._sampler)


@of_whole_calls
class FixedSizeClusterLoader(pyg_dataloader.FixedSizeClusterLoader, poptorch.DataLoader):
    """Loads clusters in batches of one shape; see `pyg_dataloader.FixedSizeClusterLoader` and `of_whole_calls`."""
