"""Whether graphs in memory are still those that a loader has read: it holds copies, which no later edit reaches."""

import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import ConcatDataset, Subset

_LOOKED_AT = 128  # graphs, evenly spaced: whoever edits a dataset edits all of it, or nearly


class SeenTensors:
    """What some graphs of a dataset held when they were read, by identity and version.

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
        self._seen: dict[Any, Any] | None = {place: _mark(value) for place, value in _values(dataset)}

    def first_change(self, dataset: Any) -> str | None:
        """What differs now, in words; None if nothing does."""
        now = dict(_values(dataset))
        if self._seen is None:
            self._seen = {place: _mark(value) for place, value in now.items()}
        for place in (*self._seen, *now):
            if place not in now or place not in self._seen or not _is_same(self._seen[place], now[place]):
                number, name = place
                return f"{name!r} of {number if isinstance(number, str) else f'graph {number}'}"
        return None

    def __getstate__(self) -> dict[str, Any]:
        return {"_seen": None}  # a copy has tensors of its own, which it looks at when it is first asked


def _values(dataset: Any) -> Iterator[tuple[tuple[Any, str], Any]]:
    """The values of some graphs, each with its place."""
    from torch_geometric.data import InMemoryDataset

    if isinstance(dataset, Subset):
        yield from _values(dataset.dataset)
    elif isinstance(dataset, ConcatDataset):
        for i, part in enumerate(dataset.datasets):
            yield from (((f"part {i}, {number}", name), value) for (number, name), value in _values(part))
    elif isinstance(dataset, InMemoryDataset):
        if dataset._data is not None:
            yield from ((("the dataset", name), value) for name, value in _attributes(dataset._data))
    elif type(dataset) in (list, tuple):  # others may make a graph each time
        for i in np.unique(np.linspace(0, len(dataset) - 1, min(len(dataset), _LOOKED_AT)).astype(int)).tolist():
            yield from (((i, name), value) for name, value in _attributes(dataset[i]))


def _attributes(graph: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(graph, dict):
        yield from graph.items()
        return
    for store in graph.stores:
        of_type = "" if store._key is None else f" of {store._key}"
        yield from ((f"{name}{of_type}", value) for name, value in store.items())


def _mark(value: Any) -> Any:
    """What tells a value from another, or from itself before an edit; nothing that keeps a tensor alive."""
    return (weakref.ref(value), _version(value)) if isinstance(value, Tensor) else value


def _is_same(mark: Any, value: Any) -> bool:
    if isinstance(value, Tensor):
        return isinstance(mark, tuple) and mark[0]() is value and mark[1] == _version(value)
    return mark is value or not isinstance(value, (int, float, str)) or mark == value


def _version(tensor: Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version
