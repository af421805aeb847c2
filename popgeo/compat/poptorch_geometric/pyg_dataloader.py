"""Loaders of many graphs over torch's `DataLoader`: as PyG batches them, and with every batch of one size."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.data import RandomSampler, SequentialSampler
from torch_geometric.data import HeteroData

from popgeo.compat.poptorch_geometric.collate import FixedSizeCollater
from popgeo.compat.poptorch_geometric.fixed_size_options import FixedSizeOptions
from popgeo.compat.poptorch_geometric.older_releases import OLDER_WORDS, in_todays_words, packed_in_todays_words
from popgeo.compat.poptorch_geometric.pyg_collate import Collater
from popgeo.compat.poptorch_geometric.stream_packing_sampler import StreamPackingSampler
from popgeo.data.trim import OverSizeStrategy
from popgeo.loader.strategy import FixedSizeStrategy

__all__ = ["CustomFixedSizeDataLoader", "DataLoader", "FixedSizeDataLoader", "FixedSizeStrategy", "OverSizeStrategy"]


class DataLoader(torch.utils.data.DataLoader[Any]):
    """Loads graphs in batches as PyG makes them, such as graphs that `torch_geometric.transforms.Pad` has made equal.

    Args:
        dataset: The graphs.
        batch_size: Graphs of a batch.
        shuffle: Whether each epoch has an order of its own, drawn by torch's random numbers.
        follow_batch: Attributes to add an assignment vector for.
        exclude_keys: Attributes to leave out.
        kwargs: What torch's `DataLoader` takes; a `collate_fn` is not used.

    Example:
        >>> from torch_geometric.data import Data
        >>> graphs = [Data(x=torch.ones(3, 1), edge_index=torch.tensor([[0], [1]]))] * 4
        >>> next(iter(DataLoader(graphs, batch_size=2)))
        DataBatch(x=[6, 1], edge_index=[2, 2], batch=[6], ptr=[3])
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        shuffle: bool = False,
        follow_batch: Sequence[str] | None = None,
        exclude_keys: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        kwargs.pop("collate_fn", None)
        self.follow_batch, self.exclude_keys = follow_batch, exclude_keys
        collate = self._create_collater(follow_batch=follow_batch, exclude_keys=exclude_keys)
        super().__init__(dataset=dataset, batch_size=batch_size, shuffle=shuffle, collate_fn=collate, **kwargs)

    def _create_collater(self, **arguments: Any) -> Callable[[list[Any]], Any]:
        return Collater(**arguments)


class FixedSizeDataLoader(torch.utils.data.DataLoader[Any]):
    """Loads graphs in batches whose shapes never change.

    What a batch holds says `popgeo.data.slots`.

    Args:
        dataset: The graphs.
        batch_size: Graphs of a batch, one of padding included; it must equal `fixed_size_options.num_graphs`.
        shuffle: Whether each epoch has an order of its own, drawn by torch's random numbers.
        fixed_size_options: Sizes of a batch; None means `FixedSizeOptions.from_dataset(dataset, batch_size)`. A
            heterogeneous dataset makes them sizes per type, in place.
        fixed_size_strategy: `PadToMax` puts `batch_size - 1` graphs into each batch, `StreamPack` as many as fit.
        over_size_strategy: What happens to graphs that do not fit.
        add_pad_masks: Whether batches carry masks.
        follow_batch: Attributes to add an assignment vector for.
        exclude_keys: Attributes to leave out.
        kwargs: What torch's `DataLoader` takes. `num_nodes`, `num_edges` and `collater_args` of release 3.2 are
            understood: by these words graphs are packed.

    Raises:
        AssertionError: `batch_size` is not `fixed_size_options.num_graphs`, or a `collate_fn` is given.
        ValueError: a strategy and a `batch_sampler` contradict each other.

    Example:
        >>> from torch_geometric.data import Data
        >>> graphs = [Data(x=torch.ones(n, 1), edge_index=torch.tensor([[0], [1]])) for n in (2, 3, 2, 4)]
        >>> loader = FixedSizeDataLoader(graphs, 3, fixed_size_options=FixedSizeOptions(8, 9, 3))
        >>> [batch.x.shape for batch in loader]
        [torch.Size([8, 1]), torch.Size([8, 1])]
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
        **kwargs: Any,
    ) -> None:
        if OLDER_WORDS & {*kwargs}:
            kwargs = packed_in_todays_words(dataset, batch_size, kwargs | {"fixed_size_options": fixed_size_options})
            fixed_size_options, fixed_size_strategy = (
                kwargs.pop("fixed_size_options"),
                kwargs.pop("fixed_size_strategy"),
            )
            over_size_strategy, add_pad_masks = kwargs.pop("over_size_strategy"), kwargs.pop("add_pad_masks")
            batch_size = kwargs.pop("batch_size")
        if "collate_fn" in kwargs:
            raise AssertionError(
                f"Cannot set `collate_fn` with `{type(self).__name__}`. Use torch's DataLoader with it, and "
                "torch_geometric.transforms.Pad for batches of one size."
            )
        if fixed_size_options is None:
            fixed_size_options = FixedSizeOptions.from_dataset(dataset, batch_size)
        self.fixed_size_options = fixed_size_options
        first = dataset[0]
        if isinstance(first, HeteroData) and not fixed_size_options.is_hetero():
            fixed_size_options.to_hetero(first.node_types, first.edge_types)
        if batch_size != fixed_size_options.num_graphs:
            raise AssertionError(
                "`num_graphs` in fixed size options must match provided batch size in dataloader. `num_graphs` is "
                f"{fixed_size_options.num_graphs} but batch size is {batch_size}."
            )
        self.padded_batch_size = batch_size
        sampler = kwargs.pop("batch_sampler", None)
        if fixed_size_strategy is FixedSizeStrategy.StreamPack:
            sampler = self._packing(dataset, self._order(dataset, shuffle, kwargs), sampler, over_size_strategy)
        elif fixed_size_strategy is not FixedSizeStrategy.PadToMax:
            raise ValueError(
                f"{fixed_size_strategy} is not one of PadToMax and StreamPack; pass it to "
                "popgeo.loader.FixedSizeDataLoader, which has all of them."
            )
        self.batch_sampler = sampler
        collate = self._create_collater(
            fixed_size_options=fixed_size_options,
            add_masks_to_batch=add_pad_masks,
            trim_nodes=over_size_strategy.trims_nodes,
            trim_edges=over_size_strategy.trims_edges,
            follow_batch=follow_batch,
            exclude_keys=exclude_keys,
            skip=over_size_strategy is OverSizeStrategy.Skip,
        )
        if sampler is None:
            kwargs |= {"dataset": dataset, "batch_size": batch_size - 1, "shuffle": shuffle, "collate_fn": collate}
        else:
            kwargs |= self._of_sampler(dataset, sampler, collate, kwargs.get("options"))
        super().__init__(**kwargs)

    def _of_sampler(self, dataset: Any, sampler: Any, collate: Callable[..., Any], options: Any) -> dict[str, Any]:
        """What torch's loader takes where a sampler chooses the graphs of each batch."""
        return {"dataset": dataset, "batch_sampler": sampler, "collate_fn": collate}

    def _order(self, dataset: Any, shuffle: bool, kwargs: dict[str, Any]) -> Any:
        """The order of the graphs that are packed."""
        chosen, generator = kwargs.pop("sampler", None), kwargs.get("generator")
        if chosen is not None:
            return chosen
        return RandomSampler(dataset, generator=generator) if shuffle else SequentialSampler(dataset)

    def _packing(
        self, dataset: Any, order: Any, batch_sampler: Any, over_size_strategy: OverSizeStrategy
    ) -> StreamPackingSampler:
        if batch_sampler is not None:
            raise ValueError(
                f"Fixed size strategy StreamPack is incompatible with the provided batch_sampler {batch_sampler}. "
                "Either use a different strategy or set `batch_sampler` to `None`."
            )
        options = self.fixed_size_options
        nodes, edges = options.num_nodes, options.num_edges
        return StreamPackingSampler(
            dataset,
            options.num_graphs - 1,
            {key: count - 1 for key, count in nodes.items()} if isinstance(nodes, dict) else nodes - 1,
            {key: count - 1 for key, count in edges.items()} if isinstance(edges, dict) else edges - 1,
            order,
            over_size_strategy is OverSizeStrategy.Skip,
        )

    def _create_collater(self, **arguments: Any) -> Callable[[list[Any]], Any]:
        return FixedSizeCollater(**arguments)


class CustomFixedSizeDataLoader(FixedSizeDataLoader):
    """The loader of older releases, by its arguments; see `older_releases.in_todays_words`.

    Example:
        >>> from torch_geometric.data import Data
        >>> graphs = [Data(x=torch.ones(n, 1), edge_index=torch.tensor([[0], [1]])) for n in (2, 3)]
        >>> loader = CustomFixedSizeDataLoader(graphs, num_nodes=5, collater_args={"num_edges": 4})
        >>> next(iter(loader))
        DataBatch(x=[5, 1], edge_index=[2, 4], batch=[5], ptr=[3])
    """

    def __init__(
        self, dataset: Any, num_nodes: int | None = None, batch_size: int | None = None, **kwargs: Any
    ) -> None:
        super().__init__(dataset, **in_todays_words(dataset, num_nodes, batch_size, kwargs))
