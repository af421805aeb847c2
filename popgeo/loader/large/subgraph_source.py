"""Turns packs of seeds, or of clusters, into batches: sample, trim, gather."""

import numpy as np
import torch
from torch_geometric.data import Batch

from popgeo.data.collate import FixedSizeCollater
from popgeo.data.cut import BatchMemory
from popgeo.data.flat_store import FlatStore
from popgeo.loader.large.cut_subgraphs import SubgraphCutter
from popgeo.loader.large.feature_rows import FeatureRows
from popgeo.loader.large.subgraph import PartSampler, Subgraph
from popgeo.loader.source import BatchSource
from popgeo.packing import Packs
from popgeo.random_numbers import seed_of


class SubgraphSource(BatchSource):
    """Makes batches from packs of seeds or of clusters."""

    def __init__(
        self, sampler: PartSampler, store: FlatStore, collater: FixedSizeCollater, rows: FeatureRows | None
    ) -> None:
        self.sampler, self.collater, self.axes = sampler, collater, store.size_axes
        self.limits = dict(zip(self.axes, collater.options.limits(self.axes).tolist(), strict=True))
        self.cutter = SubgraphCutter(store, collater, sampler, rows)
        self.layout = self.cutter.layout

    def batches_at_once(self, packs: Packs) -> int:
        """One, whose nodes fill the cache alone; of a feature store's rows what shares a request."""
        return self.cutter.batches_at_once

    def cut(self, packs: Packs, key: tuple[int, int], group: int, memory: BatchMemory | None = None) -> list[Batch]:
        """One item for each `group` packs.

        Raises:
            ValueError: a subgraph does not fit, and nothing of it may be trimmed.
        """
        return self.cutter.cut([self.part(ids, key) for ids in packs], memory, group)

    def part(self, ids: np.ndarray, key: tuple[int, int]) -> Subgraph:
        """The part of the graph that some seeds represent, cut down to what a batch holds."""
        seed = seed_of(*key, ids)
        subgraph = self.sampler.sample(ids, seed)
        if all(len(rows) <= self.limits[axis] for axis, rows in subgraph.rows.items()):
            return subgraph
        flags = {"nodes": self.collater.trim_nodes, "edges": self.collater.trim_edges}
        return subgraph.trimmed(self.limits, **flags, generator=torch.Generator().manual_seed(seed))
