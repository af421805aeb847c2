"""The loader: an iterable of PyG batches that all have the same shapes."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

import pandas as pd
import torch

from popgeo.data.axes import Levels
from popgeo.data.collate import FixedSizeCollater
from popgeo.data.fixed_size_options import FixedSizeOptions
from popgeo.data.trim import OverSizeStrategy
from popgeo.loader.arguments import check_arguments, check_shard, member, sizes_of, strategy_of
from popgeo.loader.chunk_order import SHUFFLE_BYTES, ChunkOrder
from popgeo.loader.epoch import EpochPacker
from popgeo.loader.epoch_loader import EpochLoader
from popgeo.loader.fill_table import as_html, filling, in_one_line
from popgeo.loader.source import FetchingSource, FlatSource, open_dataset
from popgeo.loader.strategy import FixedSizeStrategy, Packing
from popgeo.loader.trainers import original_of


class FixedSizeDataLoader(EpochLoader):
    """Loads graphs in batches whose shapes never change.

    Every batch is a PyG `Batch` with `num_nodes` nodes, `num_edges` edges and `num_graphs` graphs. Real ones come
    first; `nodes_mask`, `edges_mask` and `graphs_mask` are True for them.

    Args:
        dataset: An `InMemoryDataset` (also indexed, shuffled or split), a list of `Data` or `HeteroData`, a `Subset`
            or `ConcatDataset` of those, or a `FlatStore`; any other dataset of graphs works too, but more slowly: where
            batches depend on the sizes of graphs, it is read once for them.
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
        rank: Which shard of the batches to load; by default that of this process in `torch.distributed`, looked up when
            an epoch begins. `rank=0` and `world_size=1` load all graphs in each process.
        world_size: Number of shards; they are disjoint, complete, and of equal length.
        drop_last: Drops an incomplete last batch (`PadToMax`) and an incomplete last item of several batches; otherwise
            batches are split until there are enough, so that every graph is used.
        sampler: The graphs of an epoch, in order, instead of all of them; beside several processes it needs `rank` and
            `world_size`.
        batch_sampler: The graphs of each batch, instead of a strategy; like `sampler`.
        shuffle_bytes: Bytes of graphs among which a store on disk is shuffled, so that it is read in stretches; a store
            that is no larger is shuffled as a whole. See `popgeo.loader.chunk_order`.
        progress_bar: Whether to show a bar where a first pass over the dataset lasts longer than a second; None means
            at a terminal and in notebooks.
        kwargs: `num_workers`, `pin_memory` and others, as torch's `DataLoader` takes them; and for a GPU or for JAX
            `device`, `batches_ahead`, `feature_dtype`, `output`, which `EpochLoader` explains.

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
        if (original := original_of(batch_sampler)) is not None:
            vars(self).update(vars(original))
            return
        self.strategy = strategy_of(fixed_size_strategy)
        self.over_size_strategy = member(OverSizeStrategy, over_size_strategy)
        check_arguments(dataset, self.strategy, shuffle, sampler, batch_sampler, kwargs)
        check_shard(rank, world_size)
        self.shuffle = shuffle
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
        self._like, self._sizes = like, sizes
        chunk_order = ChunkOrder.of(like, shuffle_bytes) if is_flat else None
        self.source: FlatSource | FetchingSource = (
            FlatSource(like, self.collater, chunk_order) if is_flat else FetchingSource(dataset, self.collater, like)
        )
        packer = EpochPacker(
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
            chunk_order=chunk_order,
        )
        super().__init__(
            dataset,
            self.collater,
            packer,
            batch_size=self.fixed_size_options.num_graphs,
            options=options,
            seed=seed,
            rank=rank,
            world_size=world_size,
            num_buffers=num_buffers,
            background=background,
            **kwargs,
        )

    @property
    def num_skipped(self) -> int:
        """Graphs that `OverSizeStrategy.Skip` leaves out of the epoch that is running or comes next."""
        return len(self.plan().skipped)

    def filling(self) -> pd.DataFrame:
        """How full the batches of the coming epoch are; see `popgeo.loader.fill_table`.

        A dataset that is not in memory, and has not been measured yet, is read for it.
        """
        return filling(self._sizes.values, self.plan(), self.fixed_size_options, self._like.size_axes)

    def __repr__(self) -> str:
        try:
            if not self._sizes.are_known:  # a line is not worth a pass over the dataset
                known = in_one_line(None, self.plan(), self.fixed_size_options, len(self._like.node_types))
                return f"{type(self).__name__}({known})"
            table = self.filling()
        except ValueError as error:
            return f"{type(self).__name__}({self.source.num_items:,} graphs; no batches: {error})"
        line = in_one_line(table, self.plan(), self.fixed_size_options, len(self._like.node_types))
        return f"{type(self).__name__}({line})"

    def _repr_html_(self) -> str:
        try:
            return f"{escape(repr(self))}{as_html(self.filling()) if self._sizes.are_known else ''}"
        except ValueError:
            return escape(repr(self))
