"""The dictionaries that PyG needs to split a batch into graphs (`to_data_list`), computed at their first use."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from popgeo.data.axes import Attribute, Axis, Level, StoreKey
from popgeo.data.batch_contents import Layout
from popgeo.data.flat_store import FlatStore

if TYPE_CHECKING:
    from torch_geometric.data import Batch


class LazyDict(Mapping[Any, Any]):
    """A dictionary about the graphs of a batch, computed at its first use; its pickle is a plain dictionary."""

    def __init__(self, make: Callable[[np.ndarray], dict[Any, Any]], rows: np.ndarray) -> None:
        self._make, self._rows = make, rows

    @cached_property
    def _made(self) -> dict[Any, Any]:
        return self._make(self._rows)

    def __getitem__(self, key: Any) -> Any:
        return self._made[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._made)

    def __len__(self) -> int:
        return len(self._made)

    def __reduce__(self) -> Any:
        return dict, (self._made,)  # a pickled batch does not contain the dataset


@dataclass(frozen=True, eq=False)
class Slicer:
    """The places of the graphs of a batch. The argument `rows` of its methods has the stored graphs of the batch."""

    store: FlatStore
    layout: Layout

    def slices(self, rows: np.ndarray) -> dict[Any, Any]:
        """Return PyG's `_slice_dict`: the start of each graph in each attribute."""
        whole = torch.arange(self.layout.options.num_graphs + 1)
        return self._by_store(lambda a: self._starts(a.axis, rows) if a.is_tensor else whole)

    def increments(self, rows: np.ndarray) -> dict[Any, Any]:
        """Return PyG's `_inc_dict`: the number that was added to the values of each graph."""
        return self._by_store(lambda attribute: self._shifts(attribute, rows))

    def num_nodes(self, rows: np.ndarray) -> dict[StoreKey, list[int]]:
        """Return the nodes of each graph, for the node types with a stated `num_nodes`."""
        types = self.store.states_num_nodes
        return {key: self._starts(Axis(Level.NODE, key), rows).diff().tolist() for key in types}

    def real(self, rows: np.ndarray) -> dict[tuple[str, StoreKey], int]:
        """Return the numbers of real graphs, nodes and edges, for each type."""
        found: dict[tuple[str, StoreKey], int] = {("graphs", None): len(rows)}
        for axis in self.store.size_axes:
            pointer = self.store.row_pointers[axis].numpy()
            found[f"{axis.level.value}s", axis.store] = int((pointer[rows + 1] - pointer[rows]).sum())
        return found

    def _starts(self, axis: Axis, rows: np.ndarray) -> Tensor:
        num_graphs = self.layout.options.num_graphs
        counts = np.zeros(num_graphs, dtype=np.int64)
        pointer = self.store.row_pointers[axis].numpy()
        counts[: len(rows)] = pointer[rows + 1] - pointer[rows]
        slot = next(slot for slot in self.layout.slots if slot.axis == axis)
        if slot.fixed_rows:
            counts[:] = slot.num_slots // num_graphs
        elif len(rows) < num_graphs:
            counts[len(rows)] = slot.num_slots - counts.sum()  # the first padding graph owns the padding
        return torch.from_numpy(np.concatenate([[0], counts.cumsum()]))

    def _shifts(self, attribute: Attribute, rows: np.ndarray) -> Tensor | None:
        num_graphs = self.layout.options.num_graphs
        if attribute.increments is None:
            return torch.zeros(num_graphs, dtype=torch.int64) if attribute.is_tensor else None
        width = attribute.increments.shape[1]
        running = torch.zeros(num_graphs, width, dtype=torch.int64)
        running[1 : len(rows) + 1] = attribute.increments[torch.from_numpy(rows)][: num_graphs - 1]
        running = running.cumsum(0)
        if width == 1:
            return running[:, 0]
        outer, trailing = attribute.tensor.shape[: attribute.dim], attribute.tensor.dim() - attribute.dim
        return running.view(-1, *outer, *[1] * trailing)

    def _by_store(self, entry: Callable[[Attribute], Any]) -> dict[Any, Any]:
        types = (*self.store.node_types, *self.store.edge_types)
        found: dict[Any, Any] = {key: {} for key in types if key is not None}
        for attribute in self.store.attributes:
            (found if attribute.store is None else found[attribute.store])[attribute.name] = entry(attribute)
        return found


def state_num_nodes(batch: Any, of_graphs: Mapping[Any, list[int]], of_batch: Mapping[Any, Any]) -> None:
    """Set the number of nodes of a batch and of its graphs, for the node types with a stated `num_nodes`."""
    for store in batch.stores:
        if store._key in of_graphs:
            store.num_nodes, store._num_nodes = of_batch[store._key], of_graphs[store._key]


def mark(
    batch: Any, parts: Sequence[tuple[Mapping[Any, Any], ...]], num_nodes: dict[Any, int], num_edges: dict[Any, int]
) -> "Batch":
    """Mark a batch as several batches in one item; its sizes become the sizes of one batch.

    Args:
        batch: The concatenated tensors of all batches.
        parts: For each batch, PyG's `_slice_dict` and `_inc_dict`, and the stated nodes of each graph.
        num_nodes: Nodes of one batch, for each node type.
        num_edges: Edges of one batch, for each edge type.
    """
    main = batch.stores[0].__dict__
    main.pop("_slice_dict", None)
    main.pop("_inc_dict", None)
    main["_mini_batches"] = tuple(parts)
    for store in batch.stores:
        store.__dict__.pop("_num_nodes", None)
        if store._key in num_nodes:
            store["num_nodes"] = num_nodes[store._key]
        if store._key in num_edges:
            store["num_edges"] = num_edges[store._key]
    return batch
