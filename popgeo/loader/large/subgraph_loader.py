"""The base class of the three loaders of large graphs."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import count, islice
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from popgeo.data.axes import Level
from popgeo.data.batch_layout import LayoutChoices
from popgeo.data.collate import FixedSizeCollater
from popgeo.data.fixed_size_options import FixedSizeOptions
from popgeo.data.flat_store import FlatStore
from popgeo.data.trim import OverSizeStrategy
from popgeo.loader.epoch_choices import EpochChoices
from popgeo.loader.epoch_loader import EpochLoader
from popgeo.loader.large.feature_rows import stays_in_store
from popgeo.loader.large.graph_stores import rows_of
from popgeo.loader.large.measure_sizes import SizeEstimate, measure_sizes
from popgeo.loader.large.subgraph import PartSampler
from popgeo.loader.large.subgraph_source import SubgraphSource
from popgeo.loader.large.whole_graph import num_rows
from popgeo.loader.sampler import EpochSampler, OrderPacker
from popgeo.loader.strategy import in_equal_numbers, member
from popgeo.loader.tensor_versions import GraphVersions
from popgeo.packing import Packs
from popgeo.random_numbers import seed_of

# Sizes are measured on separate draws, so that no measured batch is a batch of an epoch.
_MEASURED = 0x5125
_PROBED = 16


class SubgraphLoader(EpochLoader):
    """A loader of subgraphs of one large graph in batches with constant shapes.

    Args:
        data: The graph, which the loader shows as `data`. Its `dataset` is the numbers of all seeds.
        store: The graph, from `open_graph`.
        part_sampler: Samples the part of the graph for some seeds, or clusters.
        layout: Layout of a batch.
        choices: Choices of the epochs.
        batch_size: Seeds, or clusters, of a batch.
        arguments: All keyword arguments of the loader: `fixed_size_options`, the sizes of a batch, by default measured
            on sampled batches; `over_size_strategy`; and arguments of torch's `DataLoader`.
        seen: Values of the graph when the loader read it, from `versions_of`.
    """

    _most_seeds: Mapping[Any, int] = {}
    """Largest number of seeds of each node type in a batch."""

    def __init__(
        self,
        data: Any,
        store: FlatStore,
        part_sampler: PartSampler,
        layout: LayoutChoices,
        choices: EpochChoices,
        batch_size: int,
        arguments: Mapping[str, Any],
        seen: GraphVersions,
    ) -> None:
        if choices.batch_sampler is not None:
            raise ValueError(f"Sizes decide which {self._unit} share a batch; leave batch_sampler out.")
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}; a batch holds 1 or more {self._unit}.")
        strategy = arguments.get("over_size_strategy", OverSizeStrategy.TrimNodesAndEdges)
        self.over_size_strategy = strategy = member(OverSizeStrategy, strategy)
        features = rows_of(data)
        if features is not None and "background" not in arguments:
            choices = replace(choices, background=True)  # the next batch is requested while a step runs
        self.choices = choices
        self.part_sampler, self._axes, self._batch_size = part_sampler, store.size_axes, batch_size
        self._num_node_types = len(store.node_types)
        self._packer = OrderPacker(num_items=part_sampler.num_items, together=self._together, seen=seen)
        part_sampler.sample(np.empty(0, np.int64), seed=0)  # raises now, not in an epoch
        self.size_estimate: SizeEstimate | None = None
        """Measured sizes; None if sizes were given."""
        sizes = arguments.get("fixed_size_options") or self._measured(store, choices.seed or 0)
        sizes = sizes.to_hetero(store.node_types, store.edge_types) if store.is_hetero else sizes
        rows = {name: v.shape[-1 if "index" in name else 0] for name, v in part_sampler.labels.items()}
        self.fixed_size_options = replace(sizes, num_rows={**(sizes.num_rows or {}), **rows} or None)
        self.collater = FixedSizeCollater(
            self.fixed_size_options, trim_nodes=strategy.trims_nodes, trim_edges=strategy.trims_edges, layout=layout
        )
        if self.size_estimate is None:  # measured sizes may count a repeated seed once
            self._check_seeds_fit()
        self.source: SubgraphSource
        source = SubgraphSource(part_sampler, store, self.collater, features)
        measure = getattr(features and features.feature_store, "measure", None)
        if measure is not None:
            measure(self._sampled_rows(store, choices.seed or 0))
        self.data = data
        # As in PyG the dataset is the seeds, so that len(loader.dataset) is their number.
        seeds = range(part_sampler.num_items)
        super().__init__(seeds, source, self._packer, choices, batch_size, arguments)

    def _together(self, order: np.ndarray) -> Packs:
        """Group seeds or clusters into batches in the given order."""
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
        """Measure sizes that at most one batch in a thousand exceeds; see `measure_sizes`."""
        if not self.part_sampler.num_items:
            raise ValueError(f"There are no {self._unit}, so there is nothing to measure. Pass fixed_size_options.")
        unlimited = np.iinfo(np.int64).max // 4
        most = np.array([unlimited if self.part_sampler.repeats else num_rows(store, axis) for axis in self._axes])
        packs = self._packs_like_an_epoch(seed)
        self.size_estimate = measure_sizes(self.part_sampler, packs, self._axes, most, (seed, _MEASURED))
        sizes = self.size_estimate.sizes.copy()
        sizes[: self._num_node_types] += 1  # for padding
        return FixedSizeOptions.from_sizes(store, sizes, 2)

    def _packs_like_an_epoch(self, seed: int) -> Iterator[np.ndarray]:
        """Yield packs as an epoch could have, from other random draws, in an infinite sequence."""
        for epoch in count():
            found = EpochSampler(self._packer, self.choices).whole(seed ^ _MEASURED, epoch)
            full = np.flatnonzero(np.diff(found.ptr) == np.diff(found.ptr).max())
            for i in np.random.default_rng((seed, epoch, _MEASURED)).permutation(full):
                yield found[int(i)]

    def _sampled_rows(self, store: FlatStore, seed: int) -> list[dict[Any, Tensor]]:
        """Return, for some batches, the rows of each attribute that stays in a feature store."""
        attributes = [attribute for attribute in store.attributes if stays_in_store(attribute)]
        packs = islice(self._packs_like_an_epoch(seed), 2 * _PROBED)
        parts = [self.part_sampler.sample(ids, seed_of(seed, _MEASURED, ids)) for ids in packs]
        return [{(a.store, a.name): part.rows[a.axis] for a in attributes} for part in parts]

    def filling(self) -> pd.DataFrame:
        """Compute how full the batches of the next epoch are, from up to 16 batches.

        Returns:
            One row per node and edge type: `slots` of a batch, `real` nodes or edges of a mean batch, their share
            `full`, and `lost`, the share that trimming removed, 0 to 1.
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


def versions_of(data: Any, store: FlatStore, *copied: str | None) -> GraphVersions:
    """Return a record of a large graph's present values, which is compared with them before each epoch.

    Args:
        data: The graph. Of a pair of stores nothing is checked.
        store: The opened graph.
        copied: Names of attributes that the sampler copies. `edge_index` and values that are not contiguous are copied,
            too.
    """
    tensors = [item for one in getattr(data, "stores", ()) for item in one.items() if isinstance(item[1], Tensor)]
    strided = {name for name, value in tensors if value.layout is torch.strided and not value.is_contiguous()}
    names = {attribute.name for attribute in store.attributes}
    return GraphVersions(data, names, {"edge_index", *copied, *strided})
