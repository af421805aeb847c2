"""The loaders over PopTorch's `DataLoader`: as many batches in one item as a call of the executor takes."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import Sampler

from popgeo.compat import poptorch
from popgeo.compat.poptorch_geometric import pyg_dataloader
from popgeo.compat.poptorch_geometric.collate import CombinedBatchingCollater
from popgeo.compat.poptorch_geometric.fixed_size_options import FixedSizeOptions
from popgeo.compat.poptorch_geometric.older_releases import in_todays_words
from popgeo.data.trim import OverSizeStrategy
from popgeo.loader.strategy import FixedSizeStrategy

__all__ = ["CustomFixedSizeDataLoader", "DataLoader", "FixedSizeDataLoader"]


class DataLoader(pyg_dataloader.DataLoader, poptorch.DataLoader):
    """Loads graphs in batches as PyG makes them; see `pyg_dataloader.DataLoader`.

    Args:
        dataset: The graphs.
        batch_size: Graphs of one batch.
        shuffle: Whether each epoch has an order of its own.
        follow_batch: Attributes to add an assignment vector for.
        exclude_keys: Attributes to leave out.
        options: `poptorch.Options`, which say how many batches one item holds.
        kwargs: What `poptorch.DataLoader` takes, such as `mode` and `async_options`.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        shuffle: bool = False,
        follow_batch: Sequence[str] | None = None,
        exclude_keys: Sequence[str] | None = None,
        options: Any = None,
        **kwargs: Any,
    ) -> None:
        self._mini_batch_size = batch_size
        options = poptorch.Options() if options is None else options
        super().__init__(dataset, batch_size, shuffle, follow_batch, exclude_keys, options=options, **kwargs)

    def _create_collater(self, **arguments: Any) -> Callable[[list[Any]], Any]:
        return CombinedBatchingCollater(super()._create_collater(**arguments), self._mini_batch_size)


class FixedSizeDataLoader(pyg_dataloader.FixedSizeDataLoader, poptorch.DataLoader):
    """Loads graphs in batches whose shapes never change; see `pyg_dataloader.FixedSizeDataLoader`.

    Args:
        dataset: The graphs.
        batch_size: Graphs of one batch, one of padding included.
        shuffle: Whether each epoch has an order of its own.
        fixed_size_options: Sizes of one batch.
        fixed_size_strategy: How graphs are put together into batches.
        over_size_strategy: What happens to graphs that do not fit.
        add_pad_masks: Whether batches carry masks.
        follow_batch: Attributes to add an assignment vector for.
        exclude_keys: Attributes to leave out.
        options: `poptorch.Options`, which say how many batches one item holds.
        kwargs: What `poptorch.DataLoader` takes, such as `mode` and `async_options`.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 2,
        shuffle: bool = False,
        fixed_size_options: FixedSizeOptions | None = None,
        fixed_size_strategy: FixedSizeStrategy = FixedSizeStrategy.PadToMax,
        over_size_strategy: OverSizeStrategy = OverSizeStrategy.Error,
        add_pad_masks: bool | None = True,
        follow_batch: Sequence[str] | None = None,
        exclude_keys: Sequence[str] | None = None,
        options: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            fixed_size_options,
            fixed_size_strategy,
            over_size_strategy,
            add_pad_masks,
            follow_batch,
            exclude_keys,
            options=poptorch.Options() if options is None else options,
            **kwargs,
        )

    def _create_collater(self, **arguments: Any) -> Callable[[list[Any]], Any]:
        size = None if self.batch_sampler is not None else self.padded_batch_size - 1
        return CombinedBatchingCollater(super()._create_collater(**arguments), size)

    def _of_sampler(self, dataset: Any, sampler: Any, collate: Callable[..., Any], options: Any) -> dict[str, Any]:
        if _num_mini_batches(options) == 1:
            return super()._of_sampler(dataset, sampler, collate, options)
        # Batches of different numbers of graphs, several of them in one item: each travels as one element.
        together = CombinedBatchingCollater(_OfOneBatch(collate), 1)
        return {"dataset": BatchesOf(dataset), "batch_sampler": _AsElements(sampler), "collate_fn": together}

    def _order(self, dataset: Any, shuffle: bool, kwargs: dict[str, Any]) -> Any:
        mode = kwargs.get("mode", poptorch.DataLoaderMode.Sync)
        if shuffle and mode != poptorch.DataLoaderMode.Sync and kwargs.get("generator") is None:
            # A thread draws the order, so it must not draw from the numbers that the program uses meanwhile.
            kwargs["generator"] = torch.Generator().manual_seed(int(torch.empty((), dtype=torch.int64).random_()))
        return super()._order(dataset, shuffle, kwargs)


class BatchesOf(torch.utils.data.Dataset[Any]):
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


class _AsElements(Sampler[Any]):
    """The batches of a sampler, each as a list of one element."""

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler

    def __iter__(self) -> Iterator[list[tuple[int, ...]]]:
        return ([tuple(batch)] for batch in self._sampler)

    def __len__(self) -> int:
        return len(self._sampler)


class _OfOneBatch:
    """Collates the one element of a list."""

    def __init__(self, collate: Callable[..., Any]) -> None:
        self._collate = collate

    def __call__(self, batches: list[list[Any]]) -> Any:
        return self._collate(batches[0])


def _num_mini_batches(options: poptorch.Options) -> int:
    replicas = options.replication_factor // options.input_group_size
    return options.device_iterations * options.Training.gradient_accumulation * replicas


class CustomFixedSizeDataLoader(FixedSizeDataLoader):
    """The loader of older releases, by its arguments; see `older_releases.in_todays_words`."""

    def __init__(
        self, dataset: Any, num_nodes: int | None = None, batch_size: int | None = None, **kwargs: Any
    ) -> None:
        super().__init__(dataset, **in_todays_words(dataset, num_nodes, batch_size, kwargs))
