"""Sources that make batches from packs of graphs, either from a flat dataset or graph by graph."""

import math
import warnings
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from popgeo.data.axes import levels_of
from popgeo.data.batch_contents import Layout
from popgeo.data.batch_layout import LayoutChoices, for_all_graphs, lay_out
from popgeo.data.collate import FixedSizeCollater
from popgeo.data.cut import BatchCutter, BatchMemory
from popgeo.data.flat_store import FlatStore
from popgeo.data.open_dataset import OpenDataset
from popgeo.data.sort_edges import sort_edges as sorted_by_destination
from popgeo.data.subset import take
from popgeo.data.super_batch import join
from popgeo.loader.chunk_order import ChunkOrder, ReadAhead
from popgeo.packing import Packs, totals_of_packs
from popgeo.random_numbers import generator_of

if TYPE_CHECKING:
    from torch_geometric.data import Batch

_GRAPHS_AT_ONCE = 512


class BatchSource(ABC):
    """A source that makes batches from packs of graphs, seeds, events or triples.

    Attributes:
        collater: Makes a batch from a list of graphs; None if batches are not made from lists.
        layout: Layout of a batch; None if `cut` ignores the memory that it is given.
        asks_batch_by_batch: Whether to ask for each batch alone. Only a feature store answers several batches at once.
    """

    collater: Any = None
    layout: Layout | None = None
    asks_batch_by_batch: bool = True

    @abstractmethod
    def cut(self, packs: Packs, key: tuple[int, int], group: int, memory: BatchMemory | None = None) -> "list[Batch]":
        """Return the batches of some packs, each `group` batches joined to one item.

        Args:
            packs: Graphs of each batch.
            key: Seed and epoch, for random draws.
            group: Batches in one item; it divides the number of packs.
            memory: Memory to write to. Default: new memory.
        """

    def expect(self, packs: Packs, start: int) -> None:
        """Prepare for the next batches, from number `start` on."""
        return

    def batches_at_once(self, packs: Packs) -> int:
        """Return the number of batches to make in one call, which is large as long as their graphs fit the cache."""
        return math.ceil(_GRAPHS_AT_ONCE * len(packs) / max(1, packs.num_graphs))


class FlatSource(BatchSource):
    """A source that copies batches from a flat dataset, and reads ahead if the dataset is on disk.

    Batches to be trimmed are made one by one.
    """

    def __init__(self, store: FlatStore, collater: FixedSizeCollater, chunk_order: ChunkOrder | None = None) -> None:
        self.store, self.collater = store, collater
        self._ahead = None if chunk_order is None else ReadAhead(store, chunk_order)
        self.layout = for_all_graphs(lay_out(store, collater.options, collater.layout), store)
        self.cutter = BatchCutter(store, self.layout)
        self.limits = collater.options.limits(store.size_axes)

    def cut(self, packs: Packs, key: tuple[int, int], group: int, memory: BatchMemory | None = None) -> "list[Batch]":
        """Return the batches of some packs, each `group` batches joined to one item."""
        if not (self.collater.trim_nodes or self.collater.trim_edges):
            return self.cutter.cut(packs, memory, group)
        over = np.asarray((totals_of_packs(self.store.sizes, packs.indices, packs.ptr) > self.limits).any(axis=1))
        batches = []
        for i, ids in enumerate(packs):
            if over[i]:
                batches.append(self.collater.collate(take(self.store, ids), generator_of(*key, ids)))
            else:
                batch = self.cutter.cut(packs[i : i + 1])[0]
                zeros = torch.zeros(2, self.collater.options.num_graphs, dtype=torch.int64)
                batch.num_trimmed_nodes, batch.num_trimmed_edges = zeros
                batches.append(batch)
        return grouped(batches, group)

    def expect(self, packs: Packs, start: int) -> None:
        """Read the graphs of the next batches from disk."""
        if self._ahead is not None:
            self._ahead.expect(packs, start)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_ahead": None}  # one process reads ahead for all


class FetchingSource(BatchSource):
    """A source that fetches each graph from a dataset that is not flat, for example with a random transform.

    A batch may turn out too large, because its graphs were not measured or a transform changed them. It is then treated
    as any oversize batch.
    """

    def __init__(self, dataset: Any, collater: FixedSizeCollater, like: FlatStore) -> None:
        self.dataset, self.collater, self.like = dataset, collater, like

    def cut(self, packs: Packs, key: tuple[int, int], group: int, memory: BatchMemory | None = None) -> "list[Batch]":
        """Fetch each graph again, and return the batches of some packs, each `group` batches joined to one item."""
        batches = []
        for ids in packs:
            try:
                graphs = [self.dataset[i] for i in ids.tolist()]
            except StopIteration as error:  # it would end the epoch
                raise RuntimeError(f"The dataset raised StopIteration for one of its items {ids.tolist()}.") from error
            # A batch of padding has no graph, but the same attributes as the other batches.
            store = self.collater.flat(graphs, ids.tolist()) if graphs else self.like.view([])
            batches.append(self.collater.collate(store, generator_of(*key, ids)))
        return grouped(batches, group)


def opened_for(dataset: Any, layout: LayoutChoices, progress_bar: bool | None) -> tuple[OpenDataset, LayoutChoices]:
    """Return the open dataset of a loader, and the layout with the level of each attribute.

    Warns if graphs must be fetched again in each epoch.
    """
    levels = layout.levels
    opened = OpenDataset.of(dataset, exclude_keys=layout.exclude_keys, levels=levels, progress_bar=progress_bar)
    if opened.holds_all:
        store = sorted_by_destination(opened.store) if layout.sort_edges else opened.store
        return replace(opened, store=store), replace(layout, sort_edges=store.row_ends is not None)
    warnings.warn(
        f"{opened.why_not_all}, so each graph is fetched again in every epoch, which is slow. To avoid this, "
        f"pass list(dataset) or FlatStore.from_dataset(dataset): transforms then run once.",
        stacklevel=5,
    )
    return opened, replace(layout, levels=levels_of(opened.store.attributes, levels))


def grouped(batches: "list[Batch]", group: int) -> "list[Batch]":
    """Concatenate each `group` batches to one item."""
    if group == 1:
        return batches
    return [join(batches[i : i + group]) for i in range(0, len(batches), group)]
