"""Builds PyG's `Batch` from filled tensors; the data for `to_data_list` is computed at its first use.

`batch_contents.py` describes each tensor of such a batch.
"""

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from popgeo.data.axes import Attribute, Axis, Level
from popgeo.data.batch_contents import Layout
from popgeo.data.flat_store import FlatStore
from popgeo.data.separate import LazyDict, Slicer, mark, state_num_nodes


class BatchBuilder:
    """A builder of `Batch` objects of one layout.

    `Batch(**tensors)` takes longer than filling the tensors. So PyG makes one empty batch, and each further batch is a
    copy of its dictionaries.
    """

    def __init__(self, store: FlatStore, layout: Layout) -> None:
        self.store, self.layout, self.slicer = store, layout, Slicer(store, layout)
        from popgeo.data.fixed_batch import STORAGES, batch_class

        self.cls: Any = batch_class(store.graph_class)
        template = self.cls(_base_cls=self.cls)
        for key in (*store.node_types, *store.edge_types):
            if key is not None:
                template[key]  # PyG makes the store of a type at its first access
        template._num_graphs = layout.options.num_graphs
        self.rest = dict(template.__dict__)
        self.stores: list[tuple[Any, dict[str, Any]]] = [
            (STORAGES.get(type(one), type(one)), dict(one.__dict__)) for one in template.stores
        ]
        self.keys = [store._key for store in template.stores]
        self.names = [slot.name for slot in layout.slots]
        self.positions = [self.keys.index(slot.store) for slot in layout.slots]
        self.num_nodes = {key: layout.options.slots(Axis(Level.NODE, key)) for key in store.node_types}
        self.num_edges = {key: layout.options.slots(Axis(Level.EDGE, key)) for key in store.edge_types}

    def __reduce__(self) -> Any:
        return BatchBuilder, (self.store, self.layout)  # PyG makes the class of batches again in each process

    def build(
        self, tensors: Sequence[Tensor], packs: Sequence[np.ndarray], slicers: Sequence[Slicer] | None = None
    ) -> Any:
        """Return a `Batch` of filled tensors.

        Args:
            tensors: One tensor per slot.
            packs: The stored graphs of each batch; several batches are concatenated on dimension 0 of the tensors.
            slicers: The slicer of each batch, if the batches come from different stores.
        """
        if len(self.keys) == 1:
            mappings: list[dict[str, Any]] = [dict(zip(self.names, tensors))]  # noqa: B905  hot; equal by construction
        else:
            mappings = [{} for _ in self.keys]
            for position, name, tensor in zip(self.positions, self.names, tensors, strict=True):
                mappings[position][name] = tensor
        for attribute in self.layout.lists:
            values = [value for rows in packs for value in self._list(attribute, rows)]
            mappings[self.keys.index(attribute.store)][attribute.name] = values
        slicer = self.slicer if slicers is None else slicers[0]
        of_packs = [*zip(slicers or [slicer] * len(packs), packs, strict=True)]
        real = tuple(LazyDict(one.real, rows) for one, rows in of_packs)
        if len(packs) > 1:
            parts = [tuple(LazyDict(make, p) for make in (s.slices, s.increments, s.num_nodes)) for s, p in of_packs]
            return mark(self._copy(mappings, {}, real), parts, self.num_nodes, self.num_edges)
        rows = packs[0]
        private = {"_slice_dict": LazyDict(slicer.slices, rows), "_inc_dict": LazyDict(slicer.increments, rows)}
        batch = self._copy(mappings, private, real)
        if self.store.states_num_nodes:
            state_num_nodes(batch, slicer.num_nodes(rows), self.num_nodes)
        return batch

    def _copy(self, mappings: Sequence[dict[str, Any]], private: dict[str, Any], real: tuple[LazyDict, ...]) -> Any:
        """Return a batch with these attributes, private attributes in the first store and numbers of real rows in each.

        A copy by PyG takes 1.5 times as long as filling the tensors, so this copies the dictionaries of an empty batch.
        """
        batch = object.__new__(self.cls)
        parent = weakref.ref(batch)
        stores = []
        for (cls, parts), mapping in zip(self.stores, mappings):  # noqa: B905  hot; equal by construction
            store = object.__new__(cls)
            own = store.__dict__
            own.update(parts)
            own["_mapping"], own["_parent"], own["_real"] = mapping, parent, real
            stores.append(store)
        first = stores[0]
        first.__dict__.update(private)
        own = batch.__dict__
        own.update(self.rest)
        if len(stores) > 1:
            types = list(zip(self.keys[1:], stores[1:], strict=True))
            own["_global_store"] = first
            own["_node_store_dict"] = {key: store for key, store in types if isinstance(key, str)}
            own["_edge_store_dict"] = {key: store for key, store in types if not isinstance(key, str)}
        else:
            own["_store"] = first
        return batch

    def _list(self, attribute: Attribute, rows: np.ndarray) -> list[Any]:
        options = self.layout.options
        values = [attribute.values[i] for i in rows.tolist()]
        default = values[0] if values else attribute.values[0]
        padding = (options.pad_graph_defaults or {}).get(attribute.name, default)
        return values + [padding] * (options.num_graphs - len(rows))
