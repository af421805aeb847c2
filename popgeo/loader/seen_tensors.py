"""Whether graphs in memory are still those that a loader has read: it holds copies, which no later edit reaches."""

from collections.abc import Sequence
from itertools import chain
from operator import attrgetter, is_
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import ConcatDataset, Subset

_version = attrgetter("_version")


class SeenTensors:
    """The values of all graphs of a dataset when they were read, by identity and version.

    Args:
        dataset: The dataset.

    Example:
        >>> import torch
        >>> from torch_geometric.data import Data
        >>> graphs = [Data(y=torch.zeros(1)), Data(y=torch.zeros(1))]
        >>> seen = SeenTensors(graphs)
        >>> graphs[1].y += 1
        >>> seen.first_change(graphs)
        "'y' of graph 1"
    """

    def __init__(self, dataset: Any) -> None:
        self._look(dataset)

    def _look(self, dataset: Any) -> None:
        stores = [store for _, store in _stores(dataset)]
        shared: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._names: list[tuple[str, ...]] | None = [shared.setdefault(names, names) for names in map(tuple, stores)]
        self._values = [*chain.from_iterable(map(dict.values, stores))]
        self._tensors = [one for one in self._values if isinstance(one, Tensor) and not one.is_inference()]
        self._versions = [*map(_version, self._tensors)]
        self._orders = _orders(dataset)

    def first_change(self, dataset: Any) -> str | None:
        """Return the place of the first difference in words, None if there is none."""
        if self._names is None:
            self._look(dataset)
        assert self._names is not None
        owned = _stores(dataset)
        stores = [store for _, store in owned]
        now = [*chain.from_iterable(map(dict.values, stores))]
        # Each line is a loop in C: epochs of many small graphs must not wait for it.
        is_same = len(now) == len(self._values) and all(map(is_, now, self._values))
        is_same = is_same and self._names == [*map(tuple, stores)] and self._versions == [*map(_version, self._tensors)]
        orders = _orders(dataset)
        if len(orders) != len(self._orders) or not all(map(np.array_equal, orders, self._orders)):
            return "the order of its graphs"
        return None if is_same else self._difference(owned, self._names)

    def _difference(self, owned: list[tuple[int | str, dict[str, Any]]], known: list[tuple[str, ...]]) -> str | None:
        edited = {id(t) for t, seen in zip(self._tensors, self._versions, strict=True) if _version(t) != seen}
        values = iter(self._values)
        for (owner, store), names in zip(owned, known, strict=False):
            before = dict(zip(names, values, strict=False))
            for name in {**before, **store}:
                is_there = name in before and name in store
                if not is_there or id(store[name]) in edited or not _is_equal(before[name], store[name]):
                    return f"{name!r} of {f'graph {owner}' if isinstance(owner, int) else owner}"
        return None if len(owned) == len(known) else "a node or edge type"

    def __getstate__(self) -> dict[str, Any]:
        return {"_names": None}  # a copy has tensors of its own, which it looks at when it is first asked


def _graphs(dataset: Any) -> Sequence[Any] | None:
    """Return the graphs of a dataset that is made of lists."""
    if type(dataset) in (list, tuple):  # others may make a graph each time
        return dataset
    parts = dataset.datasets if isinstance(dataset, ConcatDataset) else [getattr(dataset, "dataset", None)]
    if not isinstance(dataset, Subset | ConcatDataset) or any(_graphs(part) is None for part in parts):
        return None
    graphs = [graph for part in parts for graph in _graphs(part) or ()]
    return [graphs[i] for i in dataset.indices] if isinstance(dataset, Subset) else graphs


def _stores(dataset: Any) -> list[tuple[int | str, dict[str, Any]]]:
    """Return the values by name of each graph, or of all graphs joined; each with a number or a name for its owner."""
    graphs, joined = _graphs(dataset), getattr(dataset, "_data", None)
    if graphs is not None:
        return [(number, store) for number, graph in enumerate(graphs) for store in _of_graph(graph)]
    if isinstance(dataset, Subset):
        return _stores(dataset.dataset)
    if isinstance(dataset, ConcatDataset):
        parts = ((f" of part {i}", _stores(part)) for i, part in enumerate(dataset.datasets))
        return [(f"{f'graph {n}' if isinstance(n, int) else n}{of}", store) for of, part in parts for n, store in part]
    if joined is None:
        return []
    slices = dataset.slices or {}
    nested = [slices, *(one for one in slices.values() if isinstance(one, dict))]
    flat = [{name: one for name, one in part.items() if not isinstance(one, dict)} for part in nested]
    return [*(("the dataset", one) for one in _of_graph(joined)), *(("the slices of the dataset", one) for one in flat)]


def _orders(dataset: Any) -> list[np.ndarray]:
    """Return the numbers of graphs by which subsets of joined graphs choose."""
    if _graphs(dataset) is not None:
        return []
    if isinstance(dataset, ConcatDataset):
        return [order for part in dataset.datasets for order in _orders(part)]
    if isinstance(dataset, Subset):
        return [np.array(dataset.indices), *_orders(dataset.dataset)]
    indices = getattr(dataset, "_indices", None)
    return [] if indices is None else [np.array(indices)]


def _of_graph(graph: Any) -> list[dict[str, Any]]:
    if isinstance(graph, dict):
        return [graph]
    of_one_type = graph.__dict__.get("_store")
    return [store._mapping for store in graph.stores] if of_one_type is None else [of_one_type._mapping]


def _is_equal(before: Any, now: Any) -> bool:
    if before is now or isinstance(before, Tensor) or isinstance(now, Tensor):
        return before is now
    try:
        return bool(before == now)
    except (RuntimeError, ValueError):  # arrays and tensors within compare to more than one answer
        return False
