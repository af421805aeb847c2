"""The loader: an iterable of PyG batches that all have the same shapes."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader
from torch_geometric.data import Batch

from popgeo.data.cutter import BatchCutter
from popgeo.data.flat_store import FlatStore
from popgeo.data.levels import Level
from popgeo.data.sizes import FixedSizeOptions
from popgeo.data.trim import OverSizeStrategy
from popgeo.loader.epoch import FixedSizeStrategy, Packing, Plan, epoch_generator, plan_epoch, shard

_GRAPHS_AT_ONCE = 512


class FixedSizeDataLoader(DataLoader):
    """Loads graphs in batches whose shapes never change.

    Every batch is a PyG `Batch` with `num_nodes` nodes, `num_edges` edges and `num_graphs` graphs. Real ones come
    first; `nodes_mask`, `edges_mask` and `graphs_mask` are True for them.

    Args:
        dataset: An `InMemoryDataset` (also indexed, shuffled or split), a list of `Data` or `HeteroData`, a `Subset`
            or `ConcatDataset` of those, or a `FlatStore`; any other dataset of graphs works too, but more slowly.
        batch_size: Graphs of a batch, the padding graph included, as in PopTorch Geometric: with `PadToMax` a batch has
            `batch_size - 1` real graphs. It must equal `fixed_size_options.num_graphs`.
        shuffle: Whether each epoch has an order of its own, given by `seed` and the number of the epoch.
        fixed_size_options: Sizes of a batch; None means `FixedSizeOptions.from_dataset(dataset, batch_size)`.
        fixed_size_strategy: How graphs are put together into batches: a `FixedSizeStrategy`, or a function with the
            signature of those in `popgeo.packing`.
        over_size_strategy: What happens to graphs that do not fit.
        add_pad_masks: Whether batches carry masks.
        follow_batch: Attributes to add an assignment vector for.
        exclude_keys: Attributes to leave out.
        options: How many batches one item holds, concatenated on dimension 0 as PopTorch does: a number, or an object
            with `device_iterations`, `replication_factor` and `gradient_accumulation` (such as `popgeo.ipu.Options`).
        num_nodes: Short for `fixed_size_options`, with `num_edges` and `batch_size`.
        num_edges: See `num_nodes`.
        levels: What an attribute's rows belong to, as `{"y": "graph"}`, where names and sizes do not tell.
        index_dtype: `torch.int64` or `torch.int32`, for `edge_index`, `batch`, `ptr` and other indices.
        spread_padding_edges: Deals padding edges out to all padding nodes.
        seed: With the number of the epoch it decides every order.
        rank: Which shard of the batches to load.
        world_size: Number of shards; they are disjoint, complete, and of equal length.
        kwargs: `num_workers`, `drop_last`, `pin_memory` and others, as torch's `DataLoader` takes them.

    Raises:
        ValueError: a graph does not fit (unless `over_size_strategy` says what to do), or arguments contradict.

    Example:
        >>> from torch_geometric.data import Data
        >>> graphs = [Data(x=torch.ones(n, 1), edge_index=torch.tensor([[0], [1]])) for n in (2, 3, 2, 4)]
        >>> loader = FixedSizeDataLoader(graphs, num_nodes=8, num_edges=9, batch_size=4)
        >>> [batch.x.shape for batch in loader]
        [torch.Size([8, 1]), torch.Size([8, 1])]
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = None,
        shuffle: bool = False,
        fixed_size_options: FixedSizeOptions | None = None,
        fixed_size_strategy: FixedSizeStrategy | Packing | str = FixedSizeStrategy.PadToMax,
        over_size_strategy: OverSizeStrategy | str = OverSizeStrategy.Error,
        add_pad_masks: bool = True,
        follow_batch: Sequence[str] | None = None,
        exclude_keys: Sequence[str] | None = None,
        options: Any = None,
        *,
        num_nodes: int | dict[str, int] | None = None,
        num_edges: int | dict[tuple[str, str, str], int] | None = None,
        levels: Mapping[str, str | Level] | None = None,
        index_dtype: torch.dtype = torch.int64,
        spread_padding_edges: bool = False,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        **kwargs: Any,
    ) -> None:
        self.strategy = _strategy(fixed_size_strategy)
        self.over_size_strategy = (
            OverSizeStrategy[over_size_strategy] if isinstance(over_size_strategy, str) else over_size_strategy
        )
        self.store = FlatStore.from_dataset(dataset, exclude_keys=exclude_keys, levels=levels)
        self.fixed_size_options = _sizes(self.store, batch_size, fixed_size_options, num_nodes, num_edges)
        self.shuffle, self.seed, self.rank, self.world_size = shuffle, seed, rank, world_size
        self.group = _mini_batches(options)
        self.epoch = 0
        self._started = False
        self._position = 0
        self._plan: tuple[Any, Plan] | None = None
        self._cutter = BatchCutter(
            self.store,
            self.fixed_size_options,
            add_pad_masks=add_pad_masks,
            follow_batch=tuple(follow_batch or ()),
            index_dtype=index_dtype,
            spread_padding_edges=spread_padding_edges,
        )
        super().__init__(dataset, batch_sampler=_PackSampler(self), **kwargs)

    def plan(self) -> Plan:
        """The batches of the epoch that is running or comes next; made when first asked for."""
        if self._plan is None or self._plan[0] != self.epoch:
            generator = epoch_generator(self.seed, self.epoch)
            order = np.arange(len(self.store))
            if self.shuffle:
                order = torch.randperm(len(self.store), generator=generator).numpy()
            plan = plan_epoch(
                self.store.sizes,
                self.fixed_size_options.limits(self.store.size_axes),
                self.fixed_size_options.num_graphs - 1,
                self.strategy,
                order,
                shuffle=self.shuffle,
                generator=generator,
                skip=self.over_size_strategy is OverSizeStrategy.Skip,
            )
            self._plan = self.epoch, shard(plan, self.rank, self.world_size, self.group)
        return self._plan[1]

    def __len__(self) -> int:
        """Batches of the epoch that is running or comes next."""
        return len(self.plan()) // self.group

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch that the next iteration runs through; without it they are counted."""
        self.epoch, self._started, self._position = epoch, False, 0

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]  # torch names its own iterator class
        if self._started:
            self.set_epoch(self.epoch + 1)
        self._started = True
        return self._batches(self.plan())

    def _batches(self, plan: Plan) -> Iterator[Batch]:
        epoch, start = self.epoch, self._position
        at_once = max(1, _GRAPHS_AT_ONCE * len(plan) // max(1, len(plan.ids)))
        stop = min(start + 1, len(plan))  # the first batch is wanted at once
        while start < len(plan):
            ptr = plan.ptr[start : stop + 1]
            for batch in self._cutter.cut(plan.ids[ptr[0] : ptr[-1]], ptr - ptr[0]):
                if self.epoch == epoch:
                    self._position += 1
                yield batch
            start, stop = stop, min(stop + at_once, len(plan))
        if self.epoch == epoch:
            self.set_epoch(epoch + 1)

    def __repr__(self) -> str:
        options, plan = self.fixed_size_options, self.plan()
        real = self.store.sizes[plan.ids, : len(self.store.node_types)].sum()
        room = max(1, len(plan) * self._cutter.options.total_num_nodes)
        return (
            f"{type(self).__name__}({len(plan.ids):,} graphs -> {len(self):,} batches of {options.total_num_nodes:,} "
            f"nodes, {options.total_num_edges:,} edges, {options.num_graphs:,} graphs; {100 * real / room:.1f} % full)"
        )


class _PackSampler:
    """Lets tools that look into a `DataLoader` see the batches as lists of graph ids."""

    def __init__(self, loader: FixedSizeDataLoader) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[list[int]]:
        plan = self.loader.plan()
        return (plan.pack(i).tolist() for i in range(len(plan)))

    def __len__(self) -> int:
        return len(self.loader.plan())


def _strategy(strategy: FixedSizeStrategy | Packing | str) -> FixedSizeStrategy | Packing:
    if isinstance(strategy, FixedSizeStrategy) or callable(strategy):
        return strategy
    if strategy in FixedSizeStrategy.__members__:
        return FixedSizeStrategy[strategy]
    raise ValueError(
        f"fixed_size_strategy is {strategy!r}; pass one of {list(FixedSizeStrategy.__members__)} or a function like "
        f"those in popgeo.packing."
    )


def _sizes(
    store: FlatStore,
    batch_size: int | None,
    options: FixedSizeOptions | None,
    num_nodes: int | dict[str, int] | None,
    num_edges: int | dict[tuple[str, str, str], int] | None,
) -> FixedSizeOptions:
    if options is not None and (num_nodes is not None or num_edges is not None):
        raise ValueError("Both fixed_size_options and num_nodes or num_edges are given; pass one or the other.")
    if options is None and num_nodes is None:
        if num_edges is not None:
            raise ValueError("num_edges is given without num_nodes; pass both, or neither to have them measured.")
        options = FixedSizeOptions.from_dataset(store, batch_size or 2)
    elif options is None:
        options = FixedSizeOptions(num_nodes, num_edges, batch_size or 2)  # type: ignore[arg-type]
    if batch_size is not None and batch_size != options.num_graphs:
        raise ValueError(
            f"batch_size is {batch_size} and fixed_size_options.num_graphs is {options.num_graphs}; both count the "
            f"graphs of a batch, padding included. Leave batch_size out or make them equal."
        )
    return options.to_hetero(store.node_types, store.edge_types) if store.is_hetero else options  # type: ignore[arg-type]


def _mini_batches(options: Any) -> int:
    if options is None:
        return 1
    if isinstance(options, int):
        return options
    return math.prod(
        getattr(options, name) for name in ("device_iterations", "replication_factor", "gradient_accumulation")
    )
