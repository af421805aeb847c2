"""Puts filled tensors into PyG's `Batch`, cheaply, with what `to_data_list` needs worked out only when asked for."""

import copy
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor
from torch_geometric.data import Batch

from popgeo.data.flat_store import Attribute, FlatStore
from popgeo.data.layout import Layout
from popgeo.data.levels import Level
from popgeo.data.slices import LazySlices
from popgeo.data.super_batch import mark


class BatchBuilder:
    """Makes `Batch` objects of one layout.

    `Batch(**tensors)` takes longer than filling the tensors does, so an empty batch is made once by PyG itself and each
    further one is a copy of its dictionaries. Where PyG's classes are not laid out as expected, PyG copies instead.
    """

    def __init__(self, store: FlatStore, layout: Layout) -> None:
        self.store, self.layout = store, layout
        self.template = _empty_batch(store)
        self.template._num_graphs = layout.options.num_graphs
        self.keys = [s._key for s in self.template.stores]
        self.places = [(self.keys.index(slot.store), slot.name) for slot in layout.slots]
        self.num_nodes = {
            axis.store: layout.options.slots(axis) for axis in store.size_axes if axis.level is Level.NODE
        }
        self.num_edges = {
            axis.store: layout.options.slots(axis) for axis in store.size_axes if axis.level is Level.EDGE
        }
        self.fast = _is_laid_out_as_expected(self.template)

    def build(self, tensors: Sequence[Tensor], packs: Sequence[np.ndarray]) -> Any:
        """A `Batch` of filled tensors.

        Args:
            tensors: One for each slot.
            packs: The stored graphs of the batch; of each batch, where the tensors hold several on dimension 0.
        """
        mappings: list[dict[str, Any]] = [{} for _ in self.keys]
        for (position, name), tensor in zip(self.places, tensors):  # noqa: B905  hot, and of equal length by construction
            mappings[position][name] = tensor
        for attribute in self.layout.lists:
            values = [value for rows in packs for value in self._list(attribute, rows)]
            mappings[self.keys.index(attribute.store)][attribute.name] = values
        batch = _copy_fast(self.template, mappings) if self.fast else _copy_slowly(self.template, mappings)
        slices = [LazySlices(self.store, self.layout, rows) for rows in packs]
        if len(packs) > 1:
            return mark(batch, slices, self.num_nodes, self.num_edges)
        main = batch.stores[0].__dict__
        main["_slice_dict"], main["_inc_dict"] = slices[0], slices[0].increments
        if self.store.states_num_nodes:
            for part in batch.stores:
                if part._key in self.store.states_num_nodes:
                    part.num_nodes = self.num_nodes[part._key]
                    part._num_nodes = slices[0].stated_num_nodes[part._key]
        return batch

    def _list(self, attribute: Attribute, rows: np.ndarray) -> list[Any]:
        options = self.layout.options
        values = [attribute.values[i] for i in rows.tolist()]
        default = values[0] if values else attribute.values[0]
        padding = (options.pad_graph_defaults or {}).get(attribute.name, default)
        return values + [padding] * (options.num_graphs - len(rows))


def _empty_batch(store: FlatStore) -> Any:
    batch = Batch(_base_cls=store.data_cls)
    for key in (*store.node_types, *store.edge_types):
        if key is not None:
            batch[key]  # PyG makes the store of a type when it is first asked for
    return batch


def _is_laid_out_as_expected(template: Any) -> bool:
    """Whether a batch is a `__dict__` of stores, and a store a `__dict__` with `_mapping` and a weak `_parent`."""
    expected = (
        {"_store"} if "_store" in template.__dict__ else {"_global_store", "_node_store_dict", "_edge_store_dict"}
    )
    stores = [store.__dict__ for store in template.stores]
    return expected <= set(template.__dict__) and all(
        isinstance(store.get("_mapping"), dict) and isinstance(store.get("_parent"), weakref.ref) for store in stores
    )


def _copy_fast(template: Any, mappings: list[dict[str, Any]]) -> Any:
    batch = object.__new__(type(template))
    parts = dict(template.__dict__)
    parent = weakref.ref(batch)
    stores = []
    for store, mapping in zip(template.stores, mappings):  # noqa: B905  as above
        new = object.__new__(type(store))
        new.__dict__.update(store.__dict__)
        new.__dict__["_mapping"], new.__dict__["_parent"] = mapping, parent
        stores.append(new)
    if "_store" in parts:
        parts["_store"] = stores[0]
    else:
        parts["_global_store"] = stores[0]
        split = 1 + len(parts["_node_store_dict"])
        parts["_node_store_dict"] = dict(zip(parts["_node_store_dict"], stores[1:split]))  # noqa: B905
        parts["_edge_store_dict"] = dict(zip(parts["_edge_store_dict"], stores[split:]))  # noqa: B905
    batch.__dict__.update(parts)
    return batch


def _copy_slowly(template: Any, mappings: list[dict[str, Any]]) -> Any:
    batch = copy.copy(template)
    for store, mapping in zip(batch.stores, mappings, strict=True):
        for name, value in mapping.items():
            store[name] = value
    return batch
