"""What the three loaders of large graphs share: choices, sizes, order, and what they say of themselves."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any

import numpy as np
import pandas as pd
import torch

from popgeo.data.axes import Level, Levels
from popgeo.data.collate import FixedSizeCollater
from popgeo.data.fixed_size_options import FixedSizeOptions
from popgeo.data.flat_store import FlatStore
from popgeo.data.trim import OverSizeStrategy
from popgeo.loader.arguments import check_shard, member
from popgeo.loader.epoch_loader import EpochLoader
from popgeo.loader.fill_table import as_html
from popgeo.loader.large.measure_sizes import SizeEstimate, measure_sizes
from popgeo.loader.large.pack_order import OrderPacker
from popgeo.loader.large.subgraph_source import PartSampler, SubgraphSource
from popgeo.loader.large.whole_graph import num_rows
from popgeo.loader.shard import Shard
from popgeo.packing import Packs

# Sizes are measured on draws of their own, so that no batch of an epoch is one of those measured.
_MEASURED = 0x5125
_PROBED = 16


@dataclass(frozen=True, kw_only=True)
class LoaderChoices:
    """What every loader of a large graph can be told, beside what it samples.

    Args:
        fixed_size_options: Sizes of a batch; None has them measured on sampled batches.
        over_size_strategy: What happens to a batch that is too large.
        add_pad_masks: Whether batches carry masks.
        follow_batch: Attributes to add an assignment vector for.
        exclude_keys: Attributes to leave out.
        options: How many batches one item holds: a number, or an object such as `popgeo.ipu.Options`.
        levels: What an attribute's rows belong to, where names and sizes do not tell.
        index_dtype: For `edge_index`, `batch`, `ptr`.
        sort_edges: Sorts edges by destination and adds `rowptr`.
        spread_padding_edges: Deals padding edges out to all padding nodes.
        num_buffers: Reuses the memory of so many items.
        background: Makes the coming batches on a thread.
        shuffle: Whether each epoch has an order of its own.
        sampler: Those of an epoch, in order, instead of all.
        seed: With the number of the epoch it decides every order and every draw.
        rank: Which shard of the batches to load; by default that of this process.
        world_size: Number of shards.
        drop_last: Drops an incomplete last batch, and an incomplete last item of several batches.

    Raises:
        ValueError: choices contradict each other.

    Example:
        >>> LoaderChoices(over_size_strategy="Error").over_size_strategy
        <OverSizeStrategy.Error: 0>
    """

    fixed_size_options: FixedSizeOptions | None = None
    over_size_strategy: OverSizeStrategy | str = OverSizeStrategy.TrimNodesAndEdges
    add_pad_masks: bool = True
    follow_batch: Sequence[str] | None = None
    exclude_keys: Sequence[str] | None = None
    options: Any = None
    levels: Levels | None = None
    index_dtype: torch.dtype = torch.int64
    sort_edges: bool = False
    spread_padding_edges: bool = False
    num_buffers: int = 0
    background: bool = False
    shuffle: bool = False
    sampler: Iterable[int] | None = None
    seed: int = 0
    rank: int | None = None
    world_size: int | None = None
    drop_last: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "over_size_strategy", member(OverSizeStrategy, self.over_size_strategy))
        if self.sampler is not None and self.shuffle:
            raise ValueError("A sampler decides the order, so it excludes shuffle. Pass only one.")


class SubgraphLoader(EpochLoader):
    """Loads parts of one large graph in batches whose shapes never change.

    Args:
        data: What torch's `DataLoader` shows as its dataset.
        store: The graph, from `open_graph`.
        part_sampler: Says which part of the graph some seeds, or clusters, stand for.
        choices: See `LoaderChoices`.
        batch_size: Seeds, or clusters, of a batch.
        most: What no batch can exceed, in nodes and edges of each type. int64 [num_dimensions]
        kwargs: For torch's `DataLoader`.
    """

    def __init__(
        self,
        data: Any,
        store: FlatStore,
        part_sampler: PartSampler,
        choices: LoaderChoices,
        batch_size: int,
        most: np.ndarray | None = None,
        **kwargs: Any,
    ) -> None:
        refused = [name for name in ("collate_fn", "generator", "batch_sampler", "dataset") if name in kwargs]
        if refused:
            raise ValueError(f"{type(self).__name__} decides {refused} by itself; leave them out.")
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}; a batch holds 1 or more {self._unit}.")
        strategy = choices.over_size_strategy
        assert isinstance(strategy, OverSizeStrategy)  # LoaderChoices made it one
        self.over_size_strategy, self.shuffle = strategy, choices.shuffle
        check_shard(choices.rank, choices.world_size)
        self.part_sampler, self._axes = part_sampler, store.size_axes
        self._num_node_types = len(store.node_types)
        self._packer = OrderPacker(
            num_items=part_sampler.num_items,
            together=self._together,
            shuffle=choices.shuffle,
            sampler=choices.sampler,
            drop_last=choices.drop_last,
        )
        part_sampler.sample(np.empty(0, np.int64), seed=0)  # refuses what cannot be sampled before an epoch begins
        self.size_estimate: SizeEstimate | None = None
        """What the sizes were measured on; None where they were given."""
        sizes = choices.fixed_size_options or self._measured(store, batch_size, choices.seed, most)
        sizes = sizes.to_hetero(store.node_types, store.edge_types) if store.is_hetero else sizes
        rows = {name: v.shape[-1 if "index" in name else 0] for name, v in part_sampler.labels.items()}
        self.fixed_size_options = replace(sizes, num_rows={**(sizes.num_rows or {}), **rows} or None)
        self.collater = FixedSizeCollater(
            self.fixed_size_options,
            choices.add_pad_masks,
            strategy.trims_nodes,
            strategy.trims_edges,
            choices.follow_batch,
            choices.exclude_keys,
            levels=choices.levels,
            index_dtype=choices.index_dtype,
            spread_padding_edges=choices.spread_padding_edges,
            sort_edges=choices.sort_edges,
        )
        self._check_seeds_fit()
        self.source: SubgraphSource = SubgraphSource(part_sampler, store, self.collater)
        super().__init__(
            data,
            self.collater,
            self._packer,
            batch_size=batch_size,
            options=choices.options,
            seed=choices.seed,
            rank=choices.rank,
            world_size=choices.world_size,
            num_buffers=choices.num_buffers,
            background=choices.background,
            **kwargs,
        )

    @abstractmethod
    def _together(self, order: np.ndarray) -> Packs:
        """Puts seeds, or clusters, together into batches, in the order given."""

    def _seeds_of_a_batch(self) -> dict[Any, int]:
        """The most seeds of each node type that a batch may have."""
        return {}

    def _check_seeds_fit(self) -> None:
        for axis in self._axes[: self._num_node_types]:
            seeds = self._seeds_of_a_batch().get(axis.store, 0)
            room = self.fixed_size_options.slots(axis) - 1
            if seeds > room:
                where = "" if axis.store is None else f" of type {axis.store!r}"
                raise ValueError(
                    f"A batch has up to {seeds} seeds{where}, FixedSizeOptions.num_nodes has room for {room} real "
                    f"nodes and one of padding. Raise it to {seeds + 1} or more, or lower batch_size."
                )

    def _measured(self, store: FlatStore, batch_size: int, seed: int, most: np.ndarray | None) -> FixedSizeOptions:
        """Sizes that at most one batch in a thousand exceeds; see `measure_sizes`."""
        most = np.array([num_rows(store, axis) for axis in self._axes]) if most is None else most
        if not self.part_sampler.num_items:
            raise ValueError(f"There are no {self._unit}, so there is nothing to measure. Pass fixed_size_options.")

        def packs() -> Iterator[np.ndarray]:
            epoch = 0
            while True:
                found = self._measurable(seed, epoch, batch_size)
                full = np.flatnonzero(np.diff(found.ptr) == np.diff(found.ptr).max())
                for i in np.random.default_rng((seed, epoch, _MEASURED)).permutation(full):
                    yield found[int(i)]
                epoch += 1

        self.size_estimate = measure_sizes(self.part_sampler, packs(), self._axes, most, (seed, _MEASURED))
        sizes = self.size_estimate.sizes.copy()
        sizes[: self._num_node_types] += 1  # of padding
        return FixedSizeOptions.from_sizes(store, sizes, 2)

    def _measurable(self, seed: int, epoch: int, batch_size: int) -> Packs:
        """Batches such as those of an epoch, but of other draws where they are drawn."""
        return self._packer.pack(seed ^ _MEASURED, epoch, Shard()).whole

    def filling(self) -> pd.DataFrame:
        """How full the batches of the coming epoch are, from up to 16 of them.

        Returns:
            One row for each node and edge type: `slots` of a batch, `real` ones of a mean batch, their share `full`,
            and `lost`, the share that trimming removed, 0 to 1.
        """
        packs, key = self.plan(), (self.seed, self.epoch)
        step = max(1, len(packs) // _PROBED)
        real, lost = np.zeros(len(self._axes)), np.zeros(2)
        chosen = [packs[i] for i in range(0, len(packs), step)][:_PROBED]
        for ids in chosen:
            part = self.source.part(ids, key)
            real += part.subgraph.sizes(self._axes)
            lost += [part.num_nodes, part.num_edges]
        real, lost = real / max(1, len(chosen)), lost / max(1, len(chosen))
        slots = [self.fixed_size_options.slots(axis) for axis in self._axes]
        table = pd.DataFrame({"slots": slots, "real": real}, index=[axis.label for axis in self._axes])
        is_node = np.array([axis.level is Level.NODE for axis in self._axes])
        totals = np.where(is_node, real[is_node].sum() + lost[0], real[~is_node].sum() + lost[1])
        table["full"] = table["real"] / table["slots"].clip(lower=1)
        return table.assign(lost=np.where(is_node, *lost) / np.maximum(totals, 1))

    def __repr__(self) -> str:
        try:
            table, num_batches = self.filling(), len(self.plan())
        except ValueError as error:
            return f"{type(self).__name__}({self.source.num_items:,} {self._unit}; no batches: {error})"
        nodes = table.iloc[: self._num_node_types]
        sizes, lost = self.fixed_size_options, float(table["lost"].max())
        return (
            f"{type(self).__name__}({self.source.num_items:,} {self._unit} -> {num_batches:,} batches of "
            f"{sizes.total_num_nodes:,} nodes, {sizes.total_num_edges:,} edges; "
            f"{nodes['real'].sum() / max(1, nodes['slots'].sum()):.1%} full"
            f"{f'; {lost:.2%} trimmed' if lost else ''})"
        )

    def _repr_html_(self) -> str:
        try:
            return f"{escape(repr(self))}{as_html(self.filling())}"
        except ValueError:
            return escape(repr(self))
