"""A dataset before batches are made of it: its columns and the sizes of its graphs."""

import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from popgeo.data.attribute_names import with_registered
from popgeo.data.axes import Levels
from popgeo.data.flat_store import FlatStore, why_not_flat
from popgeo.progress import progress

_LOOKED_AT = 16  # graphs that decide the levels of attributes
_MEASURED_AT_ONCE = 256
_FIRST_AT_MOST = 4096  # graphs that are read before a doubtful level becomes an error

_Kept = dict[Any, tuple[Any, np.ndarray]]
# For each living dataset: its sizes and the transform at the time of reading. PyG applies the transform to each fetched
# graph, so it may change sizes.
_KEPT: weakref.WeakKeyDictionary[Any, _Kept] = weakref.WeakKeyDictionary()


class GraphSizes:
    """The numbers of nodes and edges of each graph of a dataset, read at their first use.

    The sizes of a dataset in memory are known. Any other dataset is read once, with a progress bar, and the sizes are
    kept for all loaders as long as the dataset object exists.

    Args:
        dataset: A dataset, as `FixedSizeDataLoader` takes it.
        exclude_keys: Attributes to leave out; a graph without `edge_index` has no edges.
        levels: The level of attributes. Default: registered or inferred.
        known: The sizes, if they are known. int64 [num_graphs, num_dimensions]
        progress_bar: Whether to show a bar after one second. Default: at a terminal and in notebooks.

    Example:
        >>> import torch
        >>> from torch_geometric.data import Data
        >>> sizes = GraphSizes([Data(x=torch.ones(n, 1), edge_index=torch.zeros(2, n).long()) for n in (2, 3)])
        >>> len(sizes), sizes.values.tolist()
        (2, [[2, 2], [3, 3]])
    """

    def __init__(
        self,
        dataset: Any,
        exclude_keys: Sequence[str] | None = None,
        *,
        levels: Levels | None = None,
        known: np.ndarray | None = None,
        progress_bar: bool | None = None,
    ) -> None:
        self._dataset, self._known, self._progress_bar = dataset, known, progress_bar
        self._choices: dict[str, Any] = {"exclude_keys": sorted(exclude_keys or ()), "levels": with_registered(levels)}

    def __len__(self) -> int:
        return len(self._dataset) if self._known is None else len(self._known)

    @property
    def are_known(self) -> bool:
        """Whether `values` needs no reading."""
        if self._known is None:
            transform, sizes = _kept(self._dataset).get(repr(self._choices), (None, None))
            as_read = transform is getattr(self._dataset, "transform", None)
            if as_read and sizes is not None and len(sizes) == len(self._dataset):
                self._known = sizes
        return self._known is not None

    @property
    def values(self) -> np.ndarray:
        """The nodes and edges (of each type) of every graph, int64 [num_graphs, num_dimensions]."""
        if not self.are_known:
            self._known = self._read()
            _kept(self._dataset)[repr(self._choices)] = (getattr(self._dataset, "transform", None), self._known)
        assert self._known is not None  # the line above
        return self._known

    def _read(self) -> np.ndarray:
        dataset = self._dataset
        ids = progress(range(len(dataset)), "measuring graphs", "graph", self._progress_bar)
        parts = iter(lambda: [*islice(ids, _MEASURED_AT_ONCE)], [])
        sizes = [flat_graphs([dataset[i] for i in part], part, **self._choices).sizes for part in parts]
        if not sizes:
            raise ValueError(f"The dataset ({type(dataset).__name__}) is empty; a batch needs at least one graph.")
        return np.concatenate(sizes)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_progress_bar": False}


def flat_graphs(
    graphs: Sequence[Any], numbers: Sequence[int], check: Callable[[FlatStore], None] | None = None, **choices: Any
) -> FlatStore:
    """Return some graphs of a dataset as a flat store; errors name a graph by its number in the dataset.

    Args:
        graphs: Some graphs.
        numbers: The numbers of these graphs in the dataset.
        check: A function that checks the result. The number of a graph is added to its errors.
        choices: Arguments of `FlatStore.from_dataset`.

    Raises:
        ValueError: see `FlatStore.from_dataset`; or `check` raises it.
    """

    def flat(some: Sequence[Any]) -> FlatStore:
        store = FlatStore.from_dataset(some, **choices)
        if check is not None:
            check(store)
        return store

    try:
        return flat(graphs)
    except ValueError as error:
        for number, graph in zip(numbers, graphs, strict=True):
            try:
                flat([graph])
            except ValueError as of_one:
                text = re.sub(r"\b([Gg]raph|Item) 0\b", rf"\1 {number}", str(of_one))
                raise ValueError(text if text != str(of_one) or number == 0 else f"Graph {number}: {text}") from error
        raise ValueError(f"{error} Counted within the graphs {[*numbers][:9]}.") from error


def first_graphs(
    dataset: Any, count: int, exclude_keys: Sequence[str] | None, levels: Levels | None = None
) -> FlatStore:
    """Return the first graphs of a dataset as a flat store, enough for the layout of a batch.

    If two levels fit an attribute, as in graphs of one node, more graphs are read.

    Raises:
        ValueError: the dataset is empty, or its graphs differ in attributes or types.

    Example:
        >>> import torch
        >>> from torch_geometric.data import Data
        >>> first_graphs([Data(x=torch.ones(n, 1)) for n in (2, 3, 4)], 2, None)
        FlatStore(2 graphs, 5 nodes, 0 edges; x: node)
    """
    while True:
        some = [dataset[i] for i in range(min(count, len(dataset)))]
        store = FlatStore.from_dataset(some, exclude_keys=exclude_keys, levels=levels)
        are_enough = count == 1 or count >= min(len(dataset), _FIRST_AT_MOST)
        if are_enough or all(one.doubt is None for one in store.attributes):
            return store
        count *= 8


def _kept(dataset: Any) -> _Kept:
    try:
        return _KEPT.setdefault(dataset, {})
    except TypeError:  # a list; its sizes are read quickly
        return {}


@dataclass(frozen=True, kw_only=True, eq=False)
class OpenDataset:
    """A dataset with its columns and the sizes of its graphs.

    Attributes:
        dataset: The dataset.
        store: All graphs as a flat store; only the first graphs if the graphs must be fetched one by one.
        sizes: Nodes and edges of every graph, read at their first use.
        why_not_all: The reason if `store` has only the first graphs; None if it has all graphs.
    """

    dataset: Any
    store: FlatStore
    sizes: GraphSizes
    why_not_all: str | None

    @classmethod
    def of(
        cls,
        dataset: Any,
        *,
        exclude_keys: Sequence[str] | None = None,
        levels: Levels | None = None,
        progress_bar: bool | None = None,
    ) -> "OpenDataset":
        """Read a whole dataset if it is in memory or a store on disk; otherwise read its first graphs.

        Args:
            dataset: A dataset, as `FixedSizeDataLoader` takes it.
            exclude_keys: Attributes to leave out.
            levels: The level of attributes. Default: registered or inferred.
            progress_bar: Whether to show a bar after one second. Default: at a terminal and in notebooks.

        Raises:
            ValueError: the dataset is empty, or its graphs differ in attributes or types.

        Example:
            >>> import torch
            >>> from torch_geometric.data import Data
            >>> opened = OpenDataset.of([Data(x=torch.ones(n, 1)) for n in (2, 3)])
            >>> opened.store, opened.holds_all
            (FlatStore(2 graphs, 5 nodes, 0 edges; x: node), True)
        """
        if isinstance(dataset, Mapping) and 0 not in dataset:
            raise ValueError(
                f"The dataset is a {type(dataset).__name__} with the keys {[*dataset][:5]}; pass a list of graphs, as "
                "[*dataset.values()], or [dataset] if it holds the tensors of one graph."
            )
        if why := why_not_flat(dataset):
            store = first_graphs(dataset, _LOOKED_AT, exclude_keys, levels)
            sizes = GraphSizes(dataset, exclude_keys, levels=levels, progress_bar=progress_bar)
        else:
            store = FlatStore.from_dataset(dataset, exclude_keys=exclude_keys, levels=levels, progress_bar=progress_bar)
            sizes = GraphSizes(dataset, known=store.sizes)
        return cls(dataset=dataset, store=store, sizes=sizes, why_not_all=why)

    @property
    def holds_all(self) -> bool:
        """Whether `store` has all graphs."""
        return self.why_not_all is None
