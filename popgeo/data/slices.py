"""What PyG's `to_data_list` needs to take a batch apart, worked out only when somebody asks."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from popgeo.data.flat_store import Axis, FlatStore
from popgeo.data.layout import Layout
from popgeo.data.levels import Level, StoreKey


class LazySlices(Mapping[Any, Any]):
    """PyG's `_slice_dict`: where each graph's part of each attribute starts, worked out when first looked at."""

    def __init__(self, store: FlatStore, layout: Layout, rows: np.ndarray) -> None:
        self._parts = (store, layout, rows)
        self._made: dict[Any, Any] | None = None
        self.increments: Mapping[Any, Any] = LazyIncrements(self)

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

    @property
    def stated_num_nodes(self) -> dict[StoreKey, list[int]]:
        """Nodes of each graph of the types whose `num_nodes` is stated, as PyG keeps them."""
        store = self._parts[0]
        return {key: self.of_axis(Axis(Level.NODE, key)).diff().tolist() for key in store.states_num_nodes}

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
        # The dataset does not travel with a batch.
        return MadeSlices, (self.make(), self.make_increments(), self.stated_num_nodes)


class MadeSlices(dict[Any, Any]):
    """What `LazySlices` becomes in another process: a dictionary with everything worked out."""

    def __init__(self, made: dict[Any, Any], increments: dict[Any, Any], stated: dict[StoreKey, list[int]]) -> None:
        super().__init__(made)
        self.increments, self.stated_num_nodes = increments, stated

    def __reduce__(self) -> Any:
        return MadeSlices, (dict(self), self.increments, self.stated_num_nodes)


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
