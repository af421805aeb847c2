"""The loader: an iterable of PyG batches that all have the same shapes."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from typing import Any

import pandas as pd
import torch
from torch.utils.data import DataLoader
from torch_geometric.data import Batch

from popgeo.data.axes import Levels
from popgeo.data.collate import FixedSizeCollater
from popgeo.data.fixed_size_options import FixedSizeOptions
from popgeo.data.trim import OverSizeStrategy
from popgeo.loader.arguments import check_arguments, member, num_mini_batches, shard_of, sizes_of, strategy_of
from popgeo.loader.chunk_order import SHUFFLE_BYTES, ChunkOrder
from popgeo.loader.epoch import EpochPacker
from popgeo.loader.fill_table import as_html, filling, in_one_line
from popgeo.loader.make_batches import OF_WORKERS, BatchMaker
from popgeo.loader.source import FetchingSource, FlatSource, Source, open_dataset
from popgeo.loader.strategy import FixedSizeStrategy, Packing
from popgeo.packing import Packs


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
            with `device_iterations`, `replication_factor` and `gradient_accumulation` (such as `popgeo.ipu.Options`),
            whose replicas are shared by the ranks.
        num_nodes: Short for `fixed_size_options`, with `num_edges` and `batch_size`.
        num_edges: See `num_nodes`.
        levels: What an attribute's rows belong to, as `{"y": "graph"}`, where names and sizes do not tell.
        index_dtype: `torch.int64` or `torch.int32`, for `edge_index`, `batch`, `ptr` and other indices.
        sort_edges: Sorts edges by destination, once, and adds `rowptr`: the edges that end at node `i` are `rowptr[i]`
            to `rowptr[i + 1]`.
        spread_padding_edges: Deals padding edges out to all padding nodes.
        protect: A boolean node attribute, True for nodes that trimming must keep.
        num_buffers: Reuses the memory of so many items, which saves time; an item is then overwritten once
            `num_buffers // 2` more are drawn. 0 gives each item memory of its own.
        background: Makes the coming batches on a thread while one is in use.
        seed: With the number of the epoch it decides every order.
        rank: Which shard of the batches to load; by default that of this process in `torch.distributed`, where
            `options` has a `replication_factor`, and else the only one.
        world_size: Number of shards; they are disjoint, complete, and of equal length.
        drop_last: Drops an incomplete last batch (`PadToMax`) and an incomplete last item of several batches; otherwise
            batches are split until there are enough, so that every graph is used.
        sampler: The graphs of an epoch, in order, instead of all of them.
        batch_sampler: The graphs of each batch, instead of a strategy.
        shuffle_bytes: Bytes of graphs among which a store on disk is shuffled, so that it is read in stretches; a store
            that is no larger is shuffled as a whole. See `popgeo.loader.chunk_order`.
        progress_bar: Whether to show a bar where a first pass over the dataset lasts longer than a second; None means
            at a terminal and in notebooks.
        kwargs: `num_workers`, `pin_memory` and others, as torch's `DataLoader` takes them.

    Raises:
        ValueError: a graph does not fit (unless `over_size_strategy` says what to do), or arguments contradict.

    Example:
        >>> from torch_geometric.data import Data
        >>> graphs = [Data(x=torch.ones(n, 1), edge_index=torch.tensor([[0], [1]])) for n in (2, 3, 2, 4)]
        >>> loader = FixedSizeDataLoader(graphs, num_nodes=8, num_edges=9, batch_size=4)
        >>> [batch.x.shape for batch in loader]
        [torch.Size([8, 1]), torch.Size([8, 1])]
        >>> loader
        FixedSizeDataLoader(4 graphs -> 2 batches of 8 nodes, 9 edges, 4 graphs; 68.8 % full)
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
        levels: Levels | None = None,
        index_dtype: torch.dtype = torch.int64,
        sort_edges: bool = False,
        spread_padding_edges: bool = False,
        protect: str | None = None,
        num_buffers: int = 0,
        background: bool = False,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        drop_last: bool = False,
        sampler: Iterable[int] | None = None,
        batch_sampler: Iterable[Sequence[int]] | None = None,
        shuffle_bytes: int = SHUFFLE_BYTES,
        progress_bar: bool | None = None,
        **kwargs: Any,
    ) -> None:
        self.strategy = strategy_of(fixed_size_strategy)
        self.over_size_strategy = member(OverSizeStrategy, over_size_strategy)
        check_arguments(dataset, self.strategy, shuffle, sampler, batch_sampler, kwargs)
        self.shuffle, self.seed = shuffle, seed
        self.rank, self.world_size = shard_of(options, rank, world_size)
        self.items_of = num_mini_batches(options, self.world_size)
        self._progress = _Progress(0, 0)
        self._packs: tuple[int, Packs] | None = None
        like, sizes, levels, is_flat = open_dataset(dataset, exclude_keys, levels, sort_edges, progress_bar)
        chosen = sizes_of(like, sizes, batch_size, fixed_size_options, num_nodes, num_edges)
        self.fixed_size_options = chosen.with_rows_for(like)
        self.collater = FixedSizeCollater(
            self.fixed_size_options,
            add_pad_masks,
            self.over_size_strategy.trims_nodes,
            self.over_size_strategy.trims_edges,
            follow_batch,
            exclude_keys,
            levels=levels,
            index_dtype=index_dtype,
            spread_padding_edges=spread_padding_edges,
            sort_edges=sort_edges or like.row_ends is not None,
            protect=protect,
        )
        self._like = like
        chunk_order = ChunkOrder.of(like, shuffle_bytes) if is_flat else None
        self.source: Source = (
            FlatSource(like, self.collater, chunk_order)
            if is_flat
            else FetchingSource(dataset, sizes, self.collater, like)
        )
        self._packer = EpochPacker(
            sizes=sizes,
            store=like,
            holds_all=is_flat,
            options=self.fixed_size_options,
            strategy=self.strategy,
            over_size_strategy=self.over_size_strategy,
            shuffle=shuffle,
            sampler=sampler,
            batch_sampler=batch_sampler,
            drop_last=drop_last,
            rank=self.rank,
            world_size=self.world_size,
            group=self.items_of,
            chunk_order=chunk_order,
        )
        super().__init__(dataset, batch_sampler=_GraphIds(self.plan), collate_fn=self.collater, **kwargs)
        # torch leaves it None beside a batch sampler; scripts print and log it.
        object.__setattr__(self, "batch_size", self.fixed_size_options.num_graphs)
        self._maker = BatchMaker(
            self.source,
            self.items_of,
            num_buffers=num_buffers,
            background=background,
            pin_memory=self.pin_memory,
            workers={name: getattr(self, name) for name in OF_WORKERS} if self.num_workers > 0 else None,
        )

    def plan(self) -> Packs:
        """The graphs of each batch of the epoch that is running or comes next; made when first asked for."""
        if self._packs is None or self._packs[0] != self.epoch:
            self._packs = self.epoch, self._packer.pack(self.seed, self.epoch)
        return self._packs[1]

    def __len__(self) -> int:
        """Items of the epoch that is running or comes next."""
        return len(self.plan()) // self.items_of

    @property
    def num_skipped(self) -> int:
        """Graphs that `OverSizeStrategy.Skip` leaves out of the epoch that is running or comes next."""
        return len(self.plan().skipped)

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch that the next iteration runs through; without it they are counted from 0."""
        self._progress = _Progress(epoch, 0)

    @property
    def epoch(self) -> int:
        """The number of the epoch that is running or comes next."""
        return self._progress.epoch

    def state_dict(self) -> dict[str, int]:
        """Where the iteration stands: after how many items of which epoch."""
        return {
            "epoch": self.epoch,
            "position": self._progress.position,
            "seed": self.seed,
            "num_graphs": len(self.source.sizes),
        }

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Makes the next iteration go on where `state_dict` was taken.

        Raises:
            ValueError: the state is of a loader with another number of graphs.
        """
        if state["num_graphs"] != len(self.source.sizes):
            raise ValueError(
                f"The state is of a loader of {state['num_graphs']} graphs, this one has {len(self.source.sizes)}. "
                f"Load it into a loader of the same dataset."
            )
        self.seed, self._packs = state["seed"], None
        self._progress = _Progress(state["epoch"], state["position"])

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]  # torch names its own iterator class
        at = self._progress
        self._progress = _Progress(at.epoch + 1, 0) if at.has_started else _Progress(at.epoch, at.position)
        self._progress.has_started = True
        return self._iterate(self.plan(), self._progress)

    def _iterate(self, packs: Packs, progress: "_Progress") -> Iterator[Batch]:
        for batches in self._maker.make(packs, progress.position, (self.seed, progress.epoch)):
            for batch in batches:
                progress.position += 1
                yield batch
        if self._progress is progress:  # no other iteration has begun since
            self.set_epoch(progress.epoch + 1)

    def filling(self) -> pd.DataFrame:
        """How full the batches of the coming epoch are; see `popgeo.loader.fill_table`."""
        return filling(self.source.sizes, self.plan(), self.fixed_size_options, self._like.size_axes)

    def __repr__(self) -> str:
        try:
            table = self.filling()
        except ValueError as error:
            return f"{type(self).__name__}({len(self.source.sizes):,} graphs; no batches: {error})"
        line = in_one_line(table, self.plan(), self.fixed_size_options, len(self._like.node_types))
        return f"{type(self).__name__}({line})"

    def _repr_html_(self) -> str:
        try:
            return f"{escape(repr(self))}{as_html(self.filling())}"
        except ValueError:
            return escape(repr(self))


class _GraphIds:
    """Lets tools that look into a `DataLoader` see the batches as lists of graph ids."""

    def __init__(self, plan: Callable[[], Packs]) -> None:
        self.plan = plan

    def __iter__(self) -> Iterator[list[int]]:
        return (pack.tolist() for pack in self.plan())

    def __len__(self) -> int:
        return len(self.plan())


class _Progress:
    """How far an iteration has come; an object of its own, because torch's `DataLoader` is slow to set attributes."""

    __slots__ = ("epoch", "has_started", "position")

    def __init__(self, epoch: int, position: int) -> None:
        self.epoch, self.position, self.has_started = epoch, position, False
