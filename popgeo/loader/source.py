"""Turns packs of graphs into batches: from a flat dataset, or graph by graph where it cannot be flattened."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Batch

from popgeo.data.axes import Level, Levels
from popgeo.data.batch_layout import lay_out
from popgeo.data.collate import FixedSizeCollater
from popgeo.data.cut import BatchCutter, Memory
from popgeo.data.flat_store import FlatStore, why_not_flat
from popgeo.data.graph_sizes import GraphSizes, first_graphs
from popgeo.data.sort_edges import sort_edges as sorted_by_destination
from popgeo.data.subset import take
from popgeo.data.super_batch import join
from popgeo.loader.chunk_order import ChunkOrder
from popgeo.loader.read_ahead import ReadAhead
from popgeo.packing import Packs, totals_of_packs

_LOOKED_AT = 16  # graphs that tell what the attributes of a dataset belong to


class Source(ABC):
    """Makes batches from packs of graphs, or of what else a batch is made from."""

    # Making so many graphs at once spreads the cost of a call over several batches, while they still fit the cache.
    items_at_once = 512

    def __init__(self, collater: FixedSizeCollater) -> None:
        self.collater = collater

    @property
    @abstractmethod
    def num_items(self) -> int:
        """How many graphs, or what else packs hold, there are."""

    @abstractmethod
    def cut(self, packs: Packs, key: tuple[int, int], group: int, memory: Memory | None = None) -> list[Batch]:
        """One item for each `group` packs.

        Args:
            packs: The graphs of each batch.
            key: Seed and epoch, from which trimming draws.
            group: Batches in one item; it divides the number of packs.
            memory: Where to write, from `allocate`; None takes new memory.
        """

    def expect(self, packs: Packs, start: int) -> None:
        """Says that the batches from number `start` on come next, to a source that can prepare for it."""
        return

    @abstractmethod
    def allocate(self, num_batches: int, pin_memory: bool, group: int) -> Memory | None:
        """Memory to hand to `cut`, or None where it is not used."""


class FlatSource(Source):
    """Cuts batches out of a flat dataset, read ahead where it lies on disk; those to be trimmed are made one by one."""

    def __init__(self, store: FlatStore, collater: FixedSizeCollater, chunk_order: ChunkOrder | None = None) -> None:
        super().__init__(collater)
        self.store = store
        self._ahead = None if chunk_order is None else ReadAhead(store, chunk_order)
        self.cutter = BatchCutter(store, lay_out(store, collater.options, **collater.choices))
        self.limits = collater.options.limits(store.size_axes)

    @property
    def num_items(self) -> int:
        """How many graphs there are."""
        return len(self.store)

    def cut(self, packs: Packs, key: tuple[int, int], group: int, memory: Memory | None = None) -> list[Batch]:
        """One item for each `group` packs."""
        if not (self.collater.trim_nodes or self.collater.trim_edges):
            return self.cutter.cut(packs, memory, group)
        over = np.asarray((totals_of_packs(self.store.sizes, packs.indices, packs.ptr) > self.limits).any(axis=1))
        batches = []
        for i, ids in enumerate(packs):
            if over[i]:
                batches.append(self.collater.collate(take(self.store, ids), _generator(key, ids)))
            else:
                batch = self.cutter.cut(packs[i : i + 1])[0]
                zeros = torch.zeros(2, self.collater.options.num_graphs, dtype=torch.int64)
                batch.num_trimmed_nodes, batch.num_trimmed_edges = zeros
                batches.append(batch)
        return grouped(batches, group)

    def allocate(self, num_batches: int, pin_memory: bool, group: int) -> Memory | None:
        """Memory to hand to `cut`."""
        return self.cutter.allocate(num_batches, pin_memory, group)

    def expect(self, packs: Packs, start: int) -> None:
        """Reads the graphs of coming batches from disk."""
        if self._ahead is not None:
            self._ahead.expect(packs, start)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_ahead": None}  # one process reads ahead for all


class FetchingSource(Source):
    """Fetches each graph from a dataset that is not flat, such as one with a random transform, or one on disk.

    A batch that turns out too large, since its graphs were not measured or a transform changed them, is treated as any
    oversize batch.
    """

    def __init__(self, dataset: Any, collater: FixedSizeCollater, like: FlatStore) -> None:
        super().__init__(collater)
        self.dataset, self.like = dataset, like

    @property
    def num_items(self) -> int:
        """How many graphs there are."""
        return len(self.dataset)

    def cut(self, packs: Packs, key: tuple[int, int], group: int, memory: Memory | None = None) -> list[Batch]:
        """One item for each `group` packs, each graph fetched anew."""
        batches = []
        for ids in packs:
            graphs = [self.dataset[i] for i in ids.tolist()]
            store = self.like.view([])  # a batch of padding alone
            if graphs:
                keys, levels = self.collater.exclude_keys, self.collater.levels
                store = FlatStore.from_dataset(graphs, exclude_keys=keys, levels=levels)
            batches.append(self.collater.collate(store, _generator(key, ids)))
        return grouped(batches, group)

    def allocate(self, num_batches: int, pin_memory: bool, group: int) -> Memory | None:
        """None: each batch has memory of its own."""
        return None


def open_dataset(
    dataset: Any, exclude_keys: Sequence[str] | None, levels: Levels | None, sort_edges: bool, progress_bar: bool | None
) -> tuple[FlatStore, GraphSizes, Levels | None, bool]:
    """The graphs of a dataset, flat; their sizes; what attributes belong to; and whether these are all graphs.

    They are only the first ones, enough to know how a batch is laid out, where graphs must be fetched anew in each
    epoch, which a warning then says. Their sizes are then not read before they are asked for.
    """
    why = why_not_flat(dataset)
    if why is None:
        store = FlatStore.from_dataset(dataset, exclude_keys=exclude_keys, levels=levels, progress_bar=progress_bar)
        store = sorted_by_destination(store) if sort_edges else store
        return store, GraphSizes(dataset, known=store.sizes), levels, True
    warnings.warn(
        f"{why}, so each graph is fetched anew in every epoch, which is slow. If that is not wanted, pass "
        f"list(dataset) or FlatStore.from_dataset(dataset): transforms then run once.",
        stacklevel=3,
    )
    store = first_graphs(dataset, _LOOKED_AT, exclude_keys)
    sizes = GraphSizes(dataset, exclude_keys, progress_bar=progress_bar)
    return store, sizes, {**levels_of(store), **(levels or {})}, False


def levels_of(store: FlatStore) -> Mapping[Any, Level]:
    """What each attribute's rows belong to, for collating other graphs alike."""
    return {
        (attribute.store, attribute.name): attribute.axis.level for attribute in store.attributes if attribute.is_tensor
    }


def _generator(key: tuple[int, int], ids: np.ndarray) -> torch.Generator:
    """Source of randomness of one batch: the same in whatever process it is made."""
    seed = np.random.SeedSequence((*key, *ids.tolist())).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(seed >> np.uint64(1)))


def grouped(batches: list[Batch], group: int) -> list[Batch]:
    """One item for each `group` batches."""
    if group == 1:
        return batches
    return [join(batches[i : i + group]) for i in range(0, len(batches), group)]
