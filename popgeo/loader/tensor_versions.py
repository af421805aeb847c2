"""Checks that graphs in memory have not changed since a loader read them."""

from collections.abc import Collection, Sequence
from itertools import accumulate, chain
from operator import attrgetter, eq, is_
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from torch import Tensor
from torch.utils.data import ConcatDataset, Subset

Owned: TypeAlias = list[tuple[int | str, dict[str, Any]]]
_Seen: TypeAlias = dict[tuple[Any, str], tuple[Any, int]]
_version = attrgetter("_version")


class TensorVersions:
    """The identities and versions of all values of a dataset's graphs when they were read.

    Args:
        dataset: The dataset.

    Example:
        >>> import torch
        >>> from torch_geometric.data import Data
        >>> graphs = [Data(y=torch.zeros(1)), Data(y=torch.zeros(1))]
        >>> seen = TensorVersions(graphs)
        >>> graphs[1].y += 1
        >>> seen.first_change(graphs)
        "'y' of graph 1"
    """

    def __init__(self, dataset: Any) -> None:
        self._look(dataset)

    def _look(self, dataset: Any) -> None:
        owned, self._orders = _contents(dataset)
        shared: dict[tuple[str, ...], tuple[str, ...]] = {}
        names = [shared.setdefault(tuple(store), tuple(store)) for _, store in owned]
        tensors = [[one for one in store.values() if _has_version(one)] for _, store in owned]
        values = [*chain.from_iterable(store.values() for _, store in owned)]
        flat = [*chain.from_iterable(tensors)]
        self._noted = _Noted(names, values, flat, [*map(_version, flat)])
        self._owners = np.array([owner for owner, _ in owned])
        # Number of each store's first value, and of its first tensor.
        self._starts = [[0, *accumulate(map(len, some))] for some in (names, tensors)]

    def first_change(self, dataset: Any, graphs: np.ndarray | None = None) -> str | None:
        """Return a description of the first changed value, or None if nothing has changed.

        Args:
            dataset: The dataset.
            graphs: Numbers of the graphs to look at. Only for a dataset that `consists_of_lists`. Default: all.
        """
        if not vars(self):
            self._look(dataset)
        if graphs is not None:
            return self._part(graphs).difference([(i, one) for i in graphs.tolist() for one in _of_graph(dataset[i])])
        owned, orders = _contents(dataset)
        if len(orders) != len(self._orders) or not all(map(np.array_equal, orders, self._orders)):
            return "the order of its graphs"
        return self._noted.difference(owned)

    def _part(self, graphs: np.ndarray) -> "_Noted":
        """Return the record of some graphs."""
        starts, stops = (np.searchsorted(self._owners, graphs, side).tolist() for side in ("left", "right"))
        stores = [store for start, stop in zip(starts, stops, strict=True) for store in range(start, stop)]
        values, tensors = ([slice(at[store], at[store + 1]) for store in stores] for at in self._starts)
        return _Noted(
            [self._noted.names[store] for store in stores],
            [one for part in values for one in self._noted.values[part]],
            [one for part in tensors for one in self._noted.tensors[part]],
            [one for part in tensors for one in self._noted.versions[part]],
        )

    def __getstate__(self) -> dict[str, Any]:
        return {}  # a copy has other tensors; it reads them at the first call


class _Noted(NamedTuple):
    """A record of some graphs: the names in each store, all values, the tensors among these, and their versions."""

    names: list[tuple[str, ...]]
    values: list[Any]
    tensors: list[Tensor]
    versions: list[int]

    def difference(self, owned: Owned) -> str | None:
        """Return a description of the first changed value, or None if nothing has changed."""
        stores = [store for _, store in owned]
        # Each line is a loop in C, without lists of new objects, so that epochs of many small graphs do not wait.
        is_same = len(stores) == len(self.names) and all(map(eq, self.names, map(tuple, stores)))
        is_same = is_same and all(map(is_, chain.from_iterable(map(dict.values, stores)), self.values))
        if is_same and self.versions == [*map(_version, self.tensors)]:
            return None
        edited = {id(t) for t, seen in zip(self.tensors, self.versions, strict=True) if _version(t) != seen}
        values = iter(self.values)
        for (owner, store), names in zip(owned, self.names, strict=False):
            before = dict(zip(names, values, strict=False))
            for name in {**before, **store}:
                is_there = name in before and name in store
                if not is_there or id(store[name]) in edited or not _is_equal(before[name], store[name]):
                    return f"{name!r} of {_named(owner)}"
        return None if len(owned) == len(self.names) else "a node or edge type"


def consists_of_lists(dataset: Any) -> bool:
    """Check whether a dataset is a list of graphs, or a subset or a concatenation of lists."""
    if type(dataset) is Subset:
        return consists_of_lists(dataset.dataset)
    if type(dataset) is ConcatDataset:
        return all(map(consists_of_lists, dataset.datasets))
    return type(dataset) in (list, tuple)


class GraphVersions:
    """The values of one large graph, or of a stream of events, when a loader read them.

    Batches contain changes in place of values that they take from the graph's own memory. A value that is removed,
    added, or moved to another device changes no batch.

    Args:
        data: `Data`, `HeteroData` or `TemporalData`; of any other object nothing is checked.
        names: Names of the values that batches contain.
        copied: Names of the values that the loader copied, such as `edge_index`; no batch contains their changes.

    Example:
        >>> import torch
        >>> from torch_geometric.data import Data
        >>> data = Data(x=torch.zeros(2, 1), y=torch.zeros(2))
        >>> seen = GraphVersions(data, ["x", "y"], [])
        >>> data.x += 1
        >>> print(seen.first_change())
        None
        >>> data.y = torch.ones(2)
        >>> seen.first_change()
        "'y'"
    """

    def __init__(self, data: Any, names: Collection[str], copied: Collection[str | None]) -> None:
        self._data, self._names, self._copied = data, names, copied
        self._seen: _Seen | None = self._look()

    def first_change(self) -> str | None:
        """Return the name of the first value that batches would not contain, or None if they contain all values."""
        now = self._look()
        self._seen = self._seen or now
        for (key, name), (value, version) in self._seen.items():
            new, new_version = now.get((key, name), (value, version))
            has_moved = getattr(new, "device", None) != getattr(value, "device", None)
            if not (has_moved or _is_equal(value, new)) or (new_version != version and name in self._copied):
                return repr(name) if key is None else f"{name!r} of {key!r}"
        return None

    def _look(self) -> _Seen:
        """Return each value that batches contain with its version, by type and name."""
        stores = getattr(self._data, "stores", ())
        found = [
            ((store._key, name), value) for store in stores for name, value in store.items() if name in self._names
        ]
        return {key: (value, _version(value) if _has_version(value) else 0) for key, value in found}

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_seen": None}  # tensors of a copy have other versions


def _contents(dataset: Any) -> tuple[Owned, list[np.ndarray]]:
    """Return the named values of each graph, or of all joined graphs, and the indices of subsets.

    Each dictionary comes with the number of its graph, or with a name if graphs are joined. Subsets of lists need no
    indices, because their graphs are listed one by one.
    """
    if (graphs := _graphs(dataset)) is not None:
        return [(number, store) for number, graph in enumerate(graphs) for store in _of_graph(graph)], []
    if isinstance(dataset, Subset):
        owned, orders = _contents(dataset.dataset)
        return owned, [np.array(dataset.indices), *orders]
    if isinstance(dataset, ConcatDataset):
        parts = [*map(_contents, dataset.datasets)]
        owned = [(f"{_named(owner)} of part {i}", one) for i, part in enumerate(parts) for owner, one in part[0]]
        return owned, [order for _, orders in parts for order in orders]
    joined, indices = getattr(dataset, "_data", None), getattr(dataset, "_indices", None)
    orders = [] if indices is None else [np.array(indices)]
    if joined is None:
        return [], orders
    slices = dataset.slices or {}
    owned = [("the dataset", one) for one in _of_graph(joined)]
    owned += [("the slices of the dataset", one) for one in (slices, *slices.values()) if isinstance(one, dict)]
    return owned, orders


def _graphs(dataset: Any) -> Sequence[Any] | None:
    """Return the graphs of a dataset that consists of lists; None for any other dataset."""
    if type(dataset) in (list, tuple):  # other sequences may make a new graph at each access
        return dataset
    if not isinstance(dataset, Subset | ConcatDataset):
        return None
    lists = [*map(_graphs, [dataset.dataset] if isinstance(dataset, Subset) else dataset.datasets)]
    known = [graphs for graphs in lists if graphs is not None]
    if len(known) < len(lists):
        return None
    return [known[0][i] for i in dataset.indices] if isinstance(dataset, Subset) else [*chain.from_iterable(known)]


def _has_version(value: Any) -> bool:
    return isinstance(value, Tensor) and not value.is_inference()


def _named(owner: int | str) -> str:
    return f"graph {owner}" if isinstance(owner, int) else owner


def _of_graph(graph: Any) -> list[dict[str, Any]]:
    if isinstance(graph, dict):
        return [graph]
    of_one_type = getattr(graph, "__dict__", {}).get("_store")
    if of_one_type is not None:
        return [of_one_type._mapping]
    return [store._mapping for store in getattr(graph, "stores", ())] or [{}]  # nothing, if it is no graph


def _is_equal(before: Any, now: Any) -> bool:
    if before is now or isinstance(before, Tensor) or isinstance(now, Tensor):
        return before is now
    try:
        return bool(before == now)
    except (RuntimeError, ValueError):  # arrays and tensors inside compare element by element
        return False
