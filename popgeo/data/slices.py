"""What PyG's `to_data_list` needs to take a batch apart, worked out only when somebody asks."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from popgeo.data.flat_store import Attribute, Axis, FlatStore
from popgeo.data.layout import Layout
from popgeo.data.levels import Level, StoreKey


class LazyDict(Mapping[Any, Any]):
    """A dictionary about the graphs of a batch that is made when first looked at; pickled, it is a plain one."""

    __slots__ = ("_made", "_make", "_rows")

    def __init__(self, make: Callable[[np.ndarray], dict[Any, Any]], rows: np.ndarray) -> None:
        self._make, self._rows = make, rows
        self._made: dict[Any, Any] | None = None

    def _get(self) -> dict[Any, Any]:
        if self._made is None:
            self._made = self._make(self._rows)
        return self._made

    def __getitem__(self, key: Any) -> Any:
        return self._get()[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._get())

    def __len__(self) -> int:
        return len(self._get())

    def __reduce__(self) -> Any:
        return dict, (self._get(),)  # the dataset does not travel with a batch


class Slicer:
    """Works out where the graphs of a batch lie in it; `rows` are the stored graphs that it is made of."""

    def __init__(self, store: FlatStore, layout: Layout) -> None:
        self.store, self.layout, self.num_graphs = store, layout, layout.options.num_graphs

    def slices(self, rows: np.ndarray) -> dict[Any, Any]:
        """PyG's `_slice_dict`: where each graph's part of each attribute starts."""
        whole = torch.arange(self.num_graphs + 1)
        return self._by_store(lambda a: self._starts(a.axis, rows) if a.is_tensor else whole)

    def increments(self, rows: np.ndarray) -> dict[Any, Any]:
        """PyG's `_inc_dict`: by how much each graph's values have been shifted."""
        return self._by_store(lambda attribute: self._shifts(attribute, rows))

    def num_nodes(self, rows: np.ndarray) -> dict[StoreKey, list[int]]:
        """Nodes of each graph, for the node types whose `num_nodes` is stated."""
        types = self.store.states_num_nodes
        return {key: self._starts(Axis(Level.NODE, key), rows).diff().tolist() for key in types}

    def _starts(self, axis: Axis, rows: np.ndarray) -> Tensor:
        counts = np.zeros(self.num_graphs, dtype=np.int64)
        pointer = self.store.row_pointers[axis].numpy()
        counts[: len(rows)] = pointer[rows + 1] - pointer[rows]
        slot = next(slot for slot in self.layout.slots if slot.axis == axis)
        if slot.fixed_rows:
            counts[:] = slot.num_slots // self.num_graphs
        else:
            counts[len(rows)] = slot.num_slots - counts.sum()  # the first padding graph owns the padding
        return torch.from_numpy(np.concatenate([[0], counts.cumsum()]))

    def _shifts(self, attribute: Attribute, rows: np.ndarray) -> Tensor | None:
        if attribute.increments is None:
            return torch.zeros(self.num_graphs, dtype=torch.int64) if attribute.is_tensor else None
        width = attribute.increments.shape[1]
        running = torch.zeros(self.num_graphs, width, dtype=torch.int64)
        running[1 : len(rows) + 1] = attribute.increments[torch.from_numpy(rows)]
        running = running.cumsum(0)
        if width == 1:
            return running[:, 0]
        outer, trailing = attribute.tensor.shape[: attribute.dim], attribute.tensor.dim() - attribute.dim
        return running.view(-1, *outer, *[1] * trailing)

    def _by_store(self, entry: Callable[[Attribute], Any]) -> dict[Any, Any]:
        if not self.store.is_hetero:
            return {attribute.name: entry(attribute) for attribute in self.store.attributes}
        nested: dict[Any, Any] = {key: {} for key in (*self.store.node_types, *self.store.edge_types)}
        for attribute in self.store.attributes:
            (nested if attribute.store is None else nested[attribute.store])[attribute.name] = entry(attribute)
        return nested
