"""What the three loaders of large graphs share: sizes, order, and what they say of themselves."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import count, islice
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from popgeo.data.axes import Level
from popgeo.data.batch_layout import LayoutChoices
from popgeo.data.collate import FixedSizeCollater
from popgeo.data.fixed_size_options import FixedSizeOptions
from popgeo.data.flat_store import FlatStore
from popgeo.data.trim import OverSizeStrategy
from popgeo.loader.epoch_choices import EpochChoices, chosen
from popgeo.loader.epoch_loader import EpochLoader
from popgeo.loader.large.feature_rows import stays_in_store
from popgeo.loader.large.graph_stores import rows_of
from popgeo.loader.large.measure_sizes import SizeEstimate, measure_sizes
from popgeo.loader.large.subgraph import PartSampler
from popgeo.loader.large.subgraph_source import SubgraphSource
from popgeo.loader.large.whole_graph import num_rows
from popgeo.loader.sampler import EpochSampler, OrderPacker
from popgeo.loader.strategy import in_equal_numbers, member
from popgeo.packing import Packs
from popgeo.random_numbers import seed_of

# Sizes are measured on draws of their own, so that no batch of an epoch is one of those measured.
_MEASURED = 0x5125
_PROBED = 16


class SubgraphLoader(EpochLoader):
    """Loads parts of one large graph in batches whose shapes never change.

    Args:
        data: The graph, which the loader shows as `data`; its `dataset` is the numbers of all seeds.
        store: The graph, from `open_graph`.
        part_sampler: Says which part of the graph some seeds, or clusters, represent.
        layout: How a batch is laid out.
        batch_size: Seeds, or clusters, of a batch.
        fixed_size_options: Sizes of a batch; None has them measured on sampled batches.
        over_size_strategy: What happens to a batch that is too large.
        kwargs: What `EpochChoices` has, by its names, and what torch's `DataLoader` takes.
    """

    _most_seeds: Mapping[Any, int] = {}
    """The most seeds of each node type that a batch may have."""

    def __init__(
        self,
        data: Any,
        store: FlatStore,
        part_sampler: PartSampler,
        layout: LayoutChoices,
        batch_size: int,
        *,
        fixed_size_options: FixedSizeOptions | None = None,
        over_size_strategy: OverSizeStrategy | str = OverSizeStrategy.TrimNodesAndEdges,
        **kwargs: Any,
    ) -> None:
        if kwargs.get("batch_sampler") is not None:
            raise ValueError(f"Sizes decide which {self._unit} share a batch; leave batch_sampler out.")
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}; a batch holds 1 or more {self._unit}.")
        self.over_size_strategy = strategy = member(OverSizeStrategy, over_size_strategy)
        features = rows_of(data)
        if features is not None:
            kwargs.setdefault("background", True)  # the next batch is asked for while a step runs
        self.choices = choices = chosen(EpochChoices, kwargs)
        self.part_sampler, self._axes, self._batch_size = part_sampler, store.size_axes, batch_size
        self._num_node_types = len(store.node_types)
        self._packer = OrderPacker(num_items=part_sampler.num_items, together=self._together)
        part_sampler.sample(np.empty(0, np.int64), seed=0)  # refuses what cannot be sampled before an epoch begins
        self.size_estimate: SizeEstimate | None = None
        """What the sizes were measured on; None if they were given."""
        sizes = fixed_size_options or self._measured(store, choices.seed or 0)
        sizes = sizes.to_hetero(store.node_types, store.edge_types) if store.is_hetero else sizes
        rows = {name: v.shape[-1 if "index" in name else 0] for name, v in part_sampler.labels.items()}
        self.fixed_size_options = replace(sizes, num_rows={**(sizes.num_rows or {}), **rows} or None)
        self.collater = FixedSizeCollater(
            self.fixed_size_options, trim_nodes=strategy.trims_nodes, trim_edges=strategy.trims_edges, layout=layout
        )
        if self.size_estimate is None:  # sizes that were measured may rely on seeds that coincide
            self._check_seeds_fit()
        self.source: SubgraphSource
        source = SubgraphSource(part_sampler, store, self.collater, features)
        measure = getattr(features and features.feature_store, "measure", None)
        if measure is not None:
            measure(self._sampled_rows(store, choices.seed or 0))
        self.data = data
        # As in PyG the dataset is the seeds, so that len(loader.dataset) is their number.
        seeds = range(part_sampler.num_items)
        super().__init__(seeds, source, self._packer, choices, batch_size=batch_size, **kwargs)

    def _together(self, order: np.ndarray) -> Packs:
        """Puts seeds, or clusters, together into batches, in the order given."""
        return in_equal_numbers(order, self._batch_size, self.choices.drop_last)

    def _check_seeds_fit(self) -> None:
        for axis in self._axes[: self._num_node_types]:
            seeds, room = self._most_seeds.get(axis.store, 0), self.fixed_size_options.slots(axis) - 1
            if seeds > room:
                raise ValueError(
                    f"A batch has up to {seeds} seeds, and FixedSizeOptions.num_nodes has room for {room} real "
                    f"{axis.label} and one of padding. Raise it to {seeds + 1} or more, or lower batch_size."
                )

    def _measured(self, store: FlatStore, seed: int) -> FixedSizeOptions:
        """Sizes that at most one batch in a thousand exceeds; see `measure_sizes`."""
        if not self.part_sampler.num_items:
            raise ValueError(f"There are no {self._unit}, so there is nothing to measure. Pass fixed_size_options.")
        unlimited = np.iinfo(np.int64).max // 4
        most = np.array([unlimited if self.part_sampler.repeats else num_rows(store, axis) for axis in self._axes])
        packs = self._packs_like_an_epoch(seed)
        self.size_estimate = measure_sizes(self.part_sampler, packs, self._axes, most, (seed, _MEASURED))
        sizes = self.size_estimate.sizes.copy()
        sizes[: self._num_node_types] += 1  # of padding
        return FixedSizeOptions.from_sizes(store, sizes, 2)

    def _packs_like_an_epoch(self, seed: int) -> Iterator[np.ndarray]:
        """Batches such as those of an epoch, but of other draws if they are drawn; without end."""
        for epoch in count():
            found = EpochSampler(self._packer, self.choices).whole(seed ^ _MEASURED, epoch)
            full = np.flatnonzero(np.diff(found.ptr) == np.diff(found.ptr).max())
            for i in np.random.default_rng((seed, epoch, _MEASURED)).permutation(full):
                yield found[int(i)]

    def _sampled_rows(self, store: FlatStore, seed: int) -> list[dict[Any, Tensor]]:
        """What some batches want of each attribute that stays in a feature store."""
        attributes = [attribute for attribute in store.attributes if stays_in_store(attribute)]
        packs = islice(self._packs_like_an_epoch(seed), 2 * _PROBED)
        parts = [self.part_sampler.sample(ids, seed_of(seed, _MEASURED, ids)) for ids in packs]
        return [{(a.store, a.name): part.rows[a.axis] for a in attributes} for part in parts]

    def filling(self) -> pd.DataFrame:
        """How full the batches of the coming epoch are, from up to 16 of them.

        Returns:
            One row for each node and edge type: `slots` of a batch, `real` ones of a mean batch, their share `full`,
            and `lost`, the share that trimming removed, 0 to 1.
        """
        packs, key, axes = self.plan(), self._epochs.plan().key, self._axes
        step = max(1, len(packs) // _PROBED)
        parts = [self.source.part(packs[i], key) for i in range(0, len(packs), step)[:_PROBED]]
        found = np.array([[*part.sizes(axes), *part.num_lost] for part in parts] or [[0] * len(axes) + [0, 0]])
        real, lost = np.split(found.mean(axis=0), [len(axes)])
        slots = [self.fixed_size_options.slots(axis) for axis in axes]
        table = pd.DataFrame({"slots": slots, "real": real}, index=[axis.label for axis in axes])
        is_node = np.array([axis.level is Level.NODE for axis in axes])
        totals = np.where(is_node, real[is_node].sum() + lost[0], real[~is_node].sum() + lost[1])
        return table.assign(full=real / np.maximum(slots, 1), lost=np.where(is_node, *lost) / np.maximum(totals, 1))

    def _table(self) -> pd.DataFrame:
        return self.filling()

    def _in_one_line(self) -> str:
        table, num_batches, sizes = self.filling(), len(self.plan()), self.fixed_size_options
        nodes, lost = table.iloc[: self._num_node_types], float(table["lost"].max())
        return (
            f"{self.part_sampler.num_items:,} {self._unit} -> {num_batches:,} batches of "
            f"{sizes.total_num_nodes:,} nodes, {sizes.total_num_edges:,} edges; "
            f"{nodes['real'].sum() / max(1, nodes['slots'].sum()):.1%} full"
            f"{f'; {lost:.2%} trimmed' if lost else ''}"
        )
