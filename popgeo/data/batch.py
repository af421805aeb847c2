"""Puts filled tensors into PyG's `Batch`, cheaply, with what `to_data_list` needs worked out only when asked for."""

import copy
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Batch

from popgeo.data.flat_store import Axis, FlatStore
from popgeo.data.layout import Layout
from popgeo.data.levels import Level, StoreKey


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
        self.fast = _is_laid_out_as_expected(self.template)

    def build(self, tensors: list[Tensor], rows: np.ndarray) -> Any:
        """A `Batch` of the given tensors, one for each slot, made of the stored graphs `rows`."""
        mappings: list[dict[str, Any]] = [{} for _ in self.keys]
        for (position, name), tensor in zip(self.places, tensors):  # noqa: B905  hot, and of equal length by construction
            mappings[position][name] = tensor
        if self.layout.lists:
            self._add_lists(mappings, rows)
        batch = _copy_fast(self.template, mappings) if self.fast else _copy_slowly(self.template, mappings)
        slices = LazySlices(self.store, self.layout, rows)
        main = batch.stores[0].__dict__
        main["_slice_dict"], main["_inc_dict"] = slices, slices.increments
        if self.store.states_num_nodes:
            self._state_num_nodes(batch, rows)
        return batch

    def _add_lists(self, mappings: list[dict[str, Any]], rows: np.ndarray) -> None:
        options = self.layout.options
        num_padding = options.num_graphs - len(rows)
        for attribute in self.layout.lists:
            values = [attribute.values[i] for i in rows.tolist()]
            default = values[0] if values else attribute.values[0]
            padding = (options.pad_graph_defaults or {}).get(attribute.name, default)
            mappings[self.keys.index(attribute.store)][attribute.name] = values + [padding] * num_padding

    def _state_num_nodes(self, batch: Any, rows: np.ndarray) -> None:
        for store in batch.stores:
            if store._key in self.store.states_num_nodes:
                axis = Axis(Level.NODE, store._key)
                store._num_nodes = LazySlices(self.store, self.layout, rows).of_axis(axis).diff().tolist()
                store.num_nodes = self.layout.num_slots(axis)


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


class LazySlices(Mapping[Any, Any]):
    """PyG's `_slice_dict`: where each graph's part of each attribute starts, worked out when first looked at."""

    def __init__(self, store: FlatStore, layout: Layout, rows: np.ndarray) -> None:
        self._parts = (store, layout, rows)
        self._made: dict[Any, Any] | None = None
        self.increments: LazyIncrements = LazyIncrements(self)

    def of_axis(self, axis: Axis) -> Tensor:
        """Where each graph's rows along an axis start in the batch. int64 [num_graphs + 1]"""
        store, layout, rows = self._parts
        num_graphs = layout.options.num_graphs
        counts = np.zeros(num_graphs, dtype=np.int64)
        counts[: len(rows)] = np.diff(store.row_pointers[axis].numpy())[rows]
        slot = next(slot for slot in layout.slots if slot.axis == axis)
        if slot.fixed_rows:
            counts[:] = slot.num_slots // num_graphs
        else:
            counts[len(rows)] = slot.num_slots - counts.sum()  # the first padding graph owns the padding
        return torch.from_numpy(np.concatenate([[0], counts.cumsum()]))

    def make(self) -> dict[Any, Any]:
        """The dictionary that PyG's collate would have made."""
        if self._made is None:
            store, layout, _ = self._parts
            entries: dict[tuple[StoreKey, str], Any] = {}
            for attribute in store.attributes:
                whole = torch.arange(layout.options.num_graphs + 1)
                entries[attribute.store, attribute.name] = (
                    self.of_axis(attribute.axis) if attribute.is_tensor else whole
                )
            self._made = _by_store(store, entries)
        return self._made

    def make_increments(self) -> dict[Any, Any]:
        """The `_inc_dict` that PyG's collate would have made."""
        store, layout, rows = self._parts
        entries: dict[tuple[StoreKey, str], Any] = {}
        for attribute in store.attributes:
            if attribute.increments is None:
                entries[attribute.store, attribute.name] = (
                    torch.zeros(layout.options.num_graphs, dtype=torch.int64) if attribute.is_tensor else None
                )
                continue
            real = attribute.increments[torch.from_numpy(rows)].cumsum(0)
            running = real.new_zeros(layout.options.num_graphs, real.shape[1])
            running[1 : len(rows) + 1] = real
            running[len(rows) + 1 :] = real[-1] if len(real) else 0
            if real.shape[1] == 1:
                entries[attribute.store, attribute.name] = running[:, 0]
            else:
                trailing = attribute.tensor.dim() - attribute.dim
                outer = attribute.tensor.shape[: attribute.dim]
                entries[attribute.store, attribute.name] = running.view(-1, *outer, *[1] * trailing)
        return _by_store(store, entries)

    def __getitem__(self, key: Any) -> Any:
        return self.make()[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.make())

    def __len__(self) -> int:
        return len(self.make())

    def __reduce__(self) -> Any:
        return dict, (self.make(),)  # the dataset does not travel with a batch


class LazyIncrements(Mapping[Any, Any]):
    """PyG's `_inc_dict`, worked out when first looked at."""

    def __init__(self, slices: LazySlices) -> None:
        self._slices = slices
        self._made: dict[Any, Any] | None = None

    def make(self) -> dict[Any, Any]:
        """The dictionary that PyG's collate would have made."""
        if self._made is None:
            self._made = self._slices.make_increments()
        return self._made

    def __getitem__(self, key: Any) -> Any:
        return self.make()[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.make())

    def __len__(self) -> int:
        return len(self.make())

    def __reduce__(self) -> Any:
        return dict, (self.make(),)


def _by_store(store: FlatStore, entries: dict[tuple[StoreKey, str], Any]) -> dict[Any, Any]:
    if not store.is_hetero:
        return {name: entry for (_, name), entry in entries.items()}
    nested: dict[Any, Any] = {key: {} for key in (*store.node_types, *store.edge_types)}
    for (key, name), entry in entries.items():
        (nested if key is None else nested[key])[name] = entry
    return nested
