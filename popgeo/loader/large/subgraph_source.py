"""The source of batches of a large graph, which gathers each attribute directly into the batch."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Batch

from popgeo.data.attribute_names import TRIMMED
from popgeo.data.axes import GRAPHS, Attribute, Axis, Level, ends_of
from popgeo.data.batch import BatchBuilder
from popgeo.data.batch_contents import Layout, Slot, SlotKind
from popgeo.data.batch_layout import lay_out
from popgeo.data.collate import FixedSizeCollater
from popgeo.data.compiled_fill import Filler
from popgeo.data.cut import BatchMemory
from popgeo.data.flat_store import FlatStore
from popgeo.data.separate import Slicer
from popgeo.loader.large.feature_rows import FeatureRows, stays_in_store
from popgeo.loader.large.subgraph import PartSampler, Subgraph
from popgeo.loader.source import BatchSource
from popgeo.packing import Packs
from popgeo.random_numbers import seed_of

# Limits of one request to a feature store: batches, and bytes.
_MOST_AT_ONCE, _BYTES_AT_ONCE = 16, 1 << 26
_NUMBERS = {Level.NODE: "n_id", Level.EDGE: "e_id"}
Values = dict[int, tuple[Tensor, Tensor]]
"""For each slot that is gathered: the values, and the rows to take from them."""


class SubgraphSource(BatchSource):
    """A source that samples, trims and gathers batches of one large graph from packs of seeds or clusters.

    Args:
        sampler: Samples the subgraph of a pack.
        store: The graph, from `open_graph`.
        collater: Sizes, layout and trimming of batches.
        rows: Requests rows of attributes that stay in a feature store; None without a feature store.
    """

    layout: Layout

    def __init__(
        self, sampler: PartSampler, store: FlatStore, collater: FixedSizeCollater, rows: FeatureRows | None
    ) -> None:
        self.sampler, self.collater, self.axes, self.rows = sampler, collater, store.size_axes, rows
        self.limits = dict(zip(self.axes, collater.options.limits(self.axes).tolist(), strict=True))
        self.sorts, self.label_store = collater.layout.sort_edges, sampler.label_store
        self.names = {(attribute.store, attribute.name) for attribute in store.attributes}
        # Processes that answer each other have room for the rows of one batch.
        self.asks_batch_by_batch = rows is None or rows.is_collective
        of_rows = {a for a in store.attributes if a.is_tensor and a.axis.level is not Level.GRAPH}
        self.whole = dataclasses.replace(store, row_ends=None, indices=None)
        # Batches count lost nodes and edges only if trimming is possible.
        self.counts_lost = collater.trim_nodes or collater.trim_edges
        template = self._store_of(sampler.sample(np.empty(0, np.int64), seed=0))
        self.layout = lay_out(template, collater.options, collater.layout)
        is_gathered = [slot.kind is SlotKind.COPY and slot.attribute in of_rows for slot in self.layout.slots]
        self.from_graph = [i for i, gathered in enumerate(is_gathered) if gathered]
        self.from_sample = [i for i, gathered in enumerate(is_gathered) if not gathered]
        slots = tuple(self.layout.slots[i] for i in self.from_sample)
        self.rest = dataclasses.replace(self.layout, slots=slots)
        self.builder = BatchBuilder(template, self.layout)

    def cut(self, packs: Packs, key: tuple[int, int], group: int, memory: BatchMemory | None = None) -> list[Batch]:
        """Return the batches of some packs, each `group` batches joined to one item. An empty pack gives padding.

        Raises:
            ValueError: a subgraph does not fit, and may not be trimmed.
        """
        parts = [self.part(ids, key) for ids in packs]
        memory = memory or BatchMemory(self.layout, len(parts), group=group)
        # A batch has one graph, or no graph if it is padding.
        graphs = [np.arange(int(any(map(len, part.rows.values())))) for part in parts]
        parts = [part.sorted_by_destination() for part in parts] if self.sorts else parts
        requests = [[part] for part in parts] if self.asks_batch_by_batch else [parts]
        values = [of_part for together in requests for of_part in self._values(together)]
        slicers = [self._fill(i, part, graphs[i], values[i], memory.tensors) for i, part in enumerate(parts)]
        groups, ids = [slice(i, i + group) for i in range(0, len(parts), group)], [*packs]
        items = [self.builder.build(memory.items[i], graphs[g], slicers[g]) for i, g in enumerate(groups)]
        for item, g in zip(items, groups, strict=True):
            store = next(one for one in item.stores if one._key == self.sampler.seed_type)
            store._seeds, store._around_seeds = tuple(ids[g]), self.sampler.around_seeds
        return items

    def part(self, ids: np.ndarray, key: tuple[int, int]) -> Subgraph:
        """Return the subgraph for some seeds, trimmed to the size of a batch."""
        seed = seed_of(*key, ids)
        subgraph = self.sampler.sample(ids, seed)
        if all(len(rows) <= self.limits[axis] for axis, rows in subgraph.rows.items()):
            return subgraph
        flags = {"nodes": self.collater.trim_nodes, "edges": self.collater.trim_edges}
        return subgraph.trimmed(self.limits, **flags, generator=torch.Generator().manual_seed(seed))

    def batches_at_once(self, packs: Packs) -> int:
        """Return the number of batches that share a request to a feature store; 1 without a store.

        The cost of a request to a database may hardly depend on its number of rows.
        """
        if self.asks_batch_by_batch:
            return 1
        slots = [slot for slot in self.layout.slots if slot.attribute is not None and stays_in_store(slot.attribute)]
        nbytes = sum(slot.num_slots * slot.inner * slot.dtype.itemsize for slot in slots)
        return max(1, min(_MOST_AT_ONCE, _BYTES_AT_ONCE // max(1, nbytes)))

    def _fill(self, i: int, part: Subgraph, pack: np.ndarray, values: Values, tensors: Sequence[Tensor]) -> Slicer:
        """Write batch `i`, and return the slicer that splits the batch into its graphs."""
        store = self._store_of(part)
        own = {(attribute.store, attribute.name): attribute for attribute in store.attributes}
        slots = (dataclasses.replace(s, attribute=own.get((s.store, s.name))) for s in self.rest.slots)
        Filler(store, dataclasses.replace(self.rest, slots=tuple(slots)))(
            pack, np.array([0, len(pack)]), [tensors[j][i : i + 1] for j in self.from_sample]
        )
        for j in self.from_graph:
            _gather(self.layout.slots[j], *values[j], tensors[j][i])
        return Slicer(store, self.layout)

    def _values(self, parts: Sequence[Subgraph]) -> list[Values]:
        """Return the values of the gathered slots of each subgraph. One request reads all rows from a feature store."""
        attributes = {j: a for j in self.from_graph if (a := self.layout.slots[j].attribute) is not None}
        values: list[Values] = [{j: (a.tensor, part.rows[a.axis]) for j, a in attributes.items()} for part in parts]
        if self.rows is not None and parts:
            asked = {j: attribute for j, attribute in attributes.items() if stays_in_store(attribute)}
            wanted = {a.axis: torch.cat([part.rows[a.axis] for part in parts]) for a in asked.values()}
            for j, (found, places) in zip(asked, self.rows.of([*asked.values()], wanted), strict=True):
                counts = [len(part.rows[asked[j].axis]) for part in parts]
                for own, of_part in zip(values, places.split(counts), strict=True):
                    own[j] = found, of_part
        return values

    def _store_of(self, subgraph: Subgraph) -> FlatStore:
        """Return a subgraph as a flat dataset of one graph. Gathered attributes keep the values of the whole graph."""
        pointers = {**self.whole.row_pointers, GRAPHS: torch.arange(2)}
        for axis, rows in subgraph.rows.items():
            pointers[axis] = torch.tensor([0, len(rows)])
        attributes = list(self.whole.attributes)
        for i, one in enumerate(attributes):
            if one.name == "edge_index":
                steps, ends = _steps(subgraph, one.axis), subgraph.edge_index[one.axis]
                attributes[i] = dataclasses.replace(one, values=ends, increments=steps)
        made = [*self._of_nodes_and_edges(subgraph), *self._of_labels(subgraph, pointers)]
        if self.counts_lost:
            lost = zip(TRIMMED, subgraph.num_lost, strict=True)
            made += [Attribute(store=None, name=n, axis=GRAPHS, values=torch.tensor([count])) for n, count in lost]
        row_ends = {axis.store: ends for axis, ends in subgraph.row_ends().items()} if self.sorts else None
        return dataclasses.replace(
            self.whole, attributes=(*attributes, *made), row_pointers=pointers, row_ends=row_ends, _cache={}
        )

    def _of_nodes_and_edges(self, subgraph: Subgraph) -> list[Attribute]:
        numbers = ((axis, _NUMBERS[axis.level], rows) for axis, rows in subgraph.rows.items())
        made = [(axis, name, rows) for axis, name, rows in numbers if (axis.store, name) not in self.names]
        for axis, hops in subgraph.hops.items():
            made.append((axis, "seeds_mask", torch.arange(len(subgraph.rows[axis])) < hops[0]))
        made += [(axis, "tree", tree) for axis, tree in subgraph.trees.items()]
        return [Attribute(store=axis.store, name=name, axis=axis, values=values) for axis, name, values in made]

    def _of_labels(self, subgraph: Subgraph, pointers: dict[Axis, Tensor]) -> list[Attribute]:
        made = []
        for name, values in subgraph.labels.items():
            assert self.label_store is not None  # given with the labels
            key, is_index = self.label_store.store, "index" in name
            axis = Axis(Level.GRAPH, key, name)
            pointers[axis] = torch.tensor([0, values.shape[-1] if is_index else len(values)])
            steps = _steps(subgraph, self.label_store) if is_index else None
            dim = values.dim() - 1 if is_index else 0
            made.append(Attribute(store=key, name=name, axis=axis, values=values, dim=dim, increments=steps))
        return made


def _steps(subgraph: Subgraph, axis: Axis) -> Tensor:
    """Return the offset of edge indices from one subgraph to the next, for each end, int64 [1, 1 or 2]."""
    ends = ends_of(axis)[: 1 if axis.store is None else 2]
    return torch.tensor([[len(subgraph.rows[end]) for end in ends]])


def _gather(slot: Slot, values: Tensor, rows: Tensor, out: Tensor) -> None:
    """Write some rows of an attribute, then padding."""
    assert slot.attribute is not None  # only such slots are gathered
    dim, count = slot.attribute.dim, len(rows)
    if dim == 0:
        torch.index_select(values, 0, rows, out=out[:count])
    else:
        out.narrow(dim, 0, count).copy_(values.index_select(dim, rows))
    out.narrow(dim, count, slot.num_slots - count).fill_(slot.pad_value)
