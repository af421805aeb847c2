"""Loaders of graphs and clusters over torch's `DataLoader`, in PyG's batches or in batches of one size."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch.utils.data import RandomSampler
from torch_geometric.loader import ClusterLoader

from popgeo.compat.poptorch.data_loader import generator_for_a_thread
from popgeo.compat.poptorch.errors import check, said
from popgeo.compat.poptorch_geometric import fixed_size_options as _older
from popgeo.compat.poptorch_geometric.collate import Collater, FixedSizeCollater, make_per_type
from popgeo.compat.poptorch_geometric.fixed_size_options import FixedSizeOptions
from popgeo.compat.poptorch_geometric.stream_packing_sampler import StreamPackingSampler
from popgeo.data.trim import OverSizeStrategy
from popgeo.loader.strategy import FixedSizeStrategy as FixedSizeStrategy


class DataLoader(torch.utils.data.DataLoader[Any]):
    """Loader of graphs in PyG's batches, for example of graphs that `torch_geometric.transforms.Pad` has padded.

    Args:
        dataset: Graphs.
        batch_size: Graphs of a batch.
        shuffle: Whether to draw a new order for each epoch with torch's random numbers.
        follow_batch: Attributes that get an assignment vector.
        exclude_keys: Attributes to omit.
        kwargs: Arguments of torch's `DataLoader`. A `collate_fn` has no effect.

    Example:
        >>> from torch_geometric.data import Data
        >>> graphs = [Data(x=torch.ones(3, 1), edge_index=torch.tensor([[0], [1]]))] * 4
        >>> next(iter(DataLoader(graphs, batch_size=2)))
        DataBatch(x=[6, 1], edge_index=[2, 2], batch=[6], ptr=[3])
    """

    def __init__(
        self, dataset: Any, batch_size: int = 1, shuffle: bool = False, follow_batch: Sequence[str] | None = None,
        exclude_keys: Sequence[str] | None = None, **kwargs: Any,
    ) -> None:  # fmt: skip
        kwargs.pop("collate_fn", None)
        self._mini_batch_size = batch_size
        self.follow_batch, self.exclude_keys = follow_batch, exclude_keys
        collate = Collater(follow_batch, exclude_keys)
        super().__init__(dataset=dataset, batch_size=batch_size, shuffle=shuffle, collate_fn=collate, **kwargs)


class FixedSizeDataLoader(torch.utils.data.DataLoader[Any]):
    """Loader of graphs in batches of one shape. See `popgeo.data.batch_contents` for their contents.

    Args:
        dataset: Graphs.
        batch_size: Graphs of a batch, including one graph of padding. It must equal `fixed_size_options.num_graphs`.
        shuffle: Whether to draw a new order for each epoch with torch's random numbers.
        fixed_size_options: Sizes of a batch. Default: `FixedSizeOptions.from_dataset(dataset, batch_size)`. A
            heterogeneous dataset converts it to sizes per type, in place.
        fixed_size_strategy: `PadToMax` puts `batch_size - 1` graphs into each batch. `StreamPack` puts as many graphs
            as fit.
        over_size_strategy: Treatment of graphs that do not fit.
        add_pad_masks: Whether batches have masks.
        follow_batch: Attributes that get an assignment vector.
        exclude_keys: Attributes to omit.
        kwargs: Arguments of torch's `DataLoader`. `num_nodes`, `num_edges` and `collater_args` of release 3.2 are
            accepted and pack graphs, as in that release.

    Raises:
        AssertionError: `batch_size` is not `fixed_size_options.num_graphs`, or a `collate_fn` is given.
        ValueError: A strategy and a `batch_sampler` contradict each other.

    Example:
        >>> from torch_geometric.data import Data
        >>> graphs = [Data(x=torch.ones(n, 1), edge_index=torch.tensor([[0], [1]])) for n in (2, 3, 2, 4)]
        >>> loader = FixedSizeDataLoader(graphs, 3, fixed_size_options=FixedSizeOptions(8, 9, 3))
        >>> [batch.x.shape for batch in loader]
        [torch.Size([8, 1]), torch.Size([8, 1])]
    """

    @_older.with_older_words(_older.packed_in_todays_words)
    def __init__(
        self, dataset: Any, batch_size: int = 2, shuffle: bool = False,
        fixed_size_options: FixedSizeOptions | None = None,
        fixed_size_strategy: FixedSizeStrategy = FixedSizeStrategy.PadToMax,
        over_size_strategy: OverSizeStrategy = OverSizeStrategy.Error, add_pad_masks: bool | None = True,
        follow_batch: Sequence[str] | None = None, exclude_keys: Sequence[str] | None = None, **kwargs: Any,
    ) -> None:  # fmt: skip
        check("collate_fn" not in kwargs, said("FixedSizeDataLoader", kind=type(self).__name__), AssertionError)
        self.fixed_size_options = fixed_size_options or FixedSizeOptions.from_dataset(dataset, batch_size)
        make_per_type(self.fixed_size_options, dataset[0])
        if batch_size != self.fixed_size_options.num_graphs:
            raise AssertionError(
                "`num_graphs` in fixed size options must match provided batch size in dataloader. `num_graphs` is "
                f"{self.fixed_size_options.num_graphs} but batch size is {batch_size}."
            )
        if fixed_size_strategy not in (FixedSizeStrategy.PadToMax, FixedSizeStrategy.StreamPack):
            raise ValueError(said("FixedSizeDataLoader 2", fixed_size_strategy=fixed_size_strategy))
        sampler, skips = kwargs.pop("batch_sampler", None), over_size_strategy is OverSizeStrategy.Skip
        if fixed_size_strategy is FixedSizeStrategy.StreamPack:
            check(sampler is None, said("FixedSizeDataLoader 3", sampler=sampler), ValueError)
            sampler = self._packing(dataset, shuffle, over_size_strategy, kwargs)
        self.batch_sampler, self.padded_batch_size = sampler, batch_size
        self._mini_batch_size = None if sampler is not None else batch_size - 1
        chosen = {"follow_batch": follow_batch, "exclude_keys": exclude_keys, "skip": skips}
        collate = FixedSizeCollater.of_loader(self.fixed_size_options, over_size_strategy, add_pad_masks, **chosen)
        kwargs |= {"batch_size": batch_size - 1, "shuffle": shuffle} if sampler is None else {"batch_sampler": sampler}
        super().__init__(dataset=dataset, collate_fn=collate, **kwargs)

    def _packing(
        self, dataset: Any, shuffle: bool, over_size_strategy: OverSizeStrategy, kwargs: dict[str, Any]
    ) -> StreamPackingSampler:
        """Return the sampler that packs graphs in the loader's order, with one graph, node and edge left for padding.

        Sizes that are trimmed later count over all types, as in PopTorch Geometric.
        """
        order = kwargs.pop("sampler", None)
        if shuffle and kwargs.get("mode"):  # a thread of PopTorch's DataLoader draws the order
            kwargs["generator"] = kwargs.get("generator") or generator_for_a_thread()
        if order is None and shuffle:
            order = RandomSampler(dataset, generator=kwargs.get("generator"))
        options: Any = self.fixed_size_options
        nodes = options.total_num_nodes if over_size_strategy.trims_nodes else options.num_nodes
        edges = options.total_num_edges if over_size_strategy.trims_edges else options.num_edges
        nodes, edges = (
            {key: count - 1 for key, count in sizes.items()} if isinstance(sizes, dict) else sizes - 1
            for sizes in (nodes, edges)
        )
        skips = over_size_strategy is OverSizeStrategy.Skip
        return StreamPackingSampler(dataset, options.num_graphs - 1, nodes, edges, order, skips)


class OlderArguments:
    """Mixin that accepts the arguments of `CustomFixedSizeDataLoader` in older releases; see `in_todays_words`."""

    def __init__(
        self, dataset: Any, num_nodes: int | None = None, batch_size: int | None = None, **kwargs: Any
    ) -> None:
        given = {"num_nodes": num_nodes, "batch_size": batch_size, **kwargs}
        super().__init__(dataset, **_older.in_todays_words(dataset, given))  # type: ignore[call-arg]


class CustomFixedSizeDataLoader(OlderArguments, FixedSizeDataLoader):
    """Loader with the arguments of older releases; see `fixed_size_options.in_todays_words`.

    Example:
        >>> from torch_geometric.data import Data
        >>> graphs = [Data(x=torch.ones(n, 1), edge_index=torch.tensor([[0], [1]])) for n in (2, 3)]
        >>> loader = CustomFixedSizeDataLoader(graphs, num_nodes=5, collater_args={"num_edges": 4})
        >>> next(iter(loader))
        DataBatch(x=[5, 1], edge_index=[2, 4], batch=[5], ptr=[3])
    """


_NOT_TAKEN = {"collate_fn", "batch_sampler", "exclude_keys"}


class FixedSizeClusterLoader(torch.utils.data.DataLoader[Any]):
    """Loader of clusters with the edges inside and between them, in batches of one shape.

    `popgeo.loader.FixedSizeClusterLoader` is faster and makes the clusters itself.

    Args:
        cluster_data: PyG's `ClusterData`.
        fixed_size_options: Sizes of a batch with two graphs: one real graph and one graph of padding.
        batch_size: Clusters of a batch.
        over_size_strategy: Treatment of clusters that do not fit together.
        add_pad_masks: Whether batches have masks.
        kwargs: Arguments of torch's `DataLoader`, such as `shuffle`. `num_nodes` and `collater_args` of release 3.2 may
            replace `fixed_size_options` and `over_size_strategy`.

    Raises:
        ValueError: Sizes are missing, or given twice.
        AssertionError: `num_graphs` is not 2, or an argument is not supported.
    """

    @_older.with_older_words(_older.clusters_in_todays_words)
    def __init__(
        self, cluster_data: Any, fixed_size_options: FixedSizeOptions | None = None, batch_size: int = 1,
        over_size_strategy: OverSizeStrategy = OverSizeStrategy.TrimNodesAndEdges, add_pad_masks: bool | None = True,
        **kwargs: Any,
    ) -> None:  # fmt: skip
        if fixed_size_options is None:
            raise ValueError(f"{type(self).__name__} needs the sizes of a batch; pass fixed_size_options.")
        if fixed_size_options.num_graphs != 2:
            raise AssertionError(
                "The number of graphs in a batch specified by the fixed sized options must be 2 when using the "
                f"{type(self).__name__}, currently it is set to {fixed_size_options.num_graphs}."
            )
        if odd := _NOT_TAKEN & {*kwargs}:
            raise AssertionError(f"`{type(self).__name__}` does not support the following arguments: {sorted(odd)}.")
        self.cluster_data = cluster_data
        self._mini_batch_size = batch_size
        pad = FixedSizeCollater.of_loader(fixed_size_options, over_size_strategy, add_pad_masks)
        collate = partial(_together, ClusterLoader(cluster_data), pad)
        super().__init__(dataset=range(len(cluster_data)), batch_size=batch_size, collate_fn=collate, **kwargs)  # type: ignore[arg-type]


def _together(loader: ClusterLoader, collate: FixedSizeCollater, clusters: list[int]) -> Any:
    """Return a batch of the clusters with these numbers."""
    return collate([loader._collate(clusters)])
