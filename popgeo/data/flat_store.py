"""A dataset as flat arrays and row pointers: what every batch is cut from."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch.utils.data import ConcatDataset, Subset

from popgeo.data.axes import Level, Levels, StoreKey
from popgeo.data.columns import Columns
from popgeo.data.read_pyg import read, why_not_collated
from popgeo.data.validate import check_indices, check_positions
from popgeo.progress import progress

_MEASURED_AT_ONCE = 256


@dataclass(frozen=True, kw_only=True, eq=False)
class FlatStore(Columns):
    """A dataset of `Data` or `HeteroData` as flat arrays and row pointers.

    The arrays of an `InMemoryDataset` are used where they lie, without a copy; a list of graphs is concatenated once.
    Make one with `FlatStore.from_dataset`. A `FlatStore` is accepted wherever a dataset is.

    Example:
        >>> import torch
        >>> from torch_geometric.data import Data
        >>> graphs = [Data(x=torch.ones(n, 1), edge_index=torch.zeros(2, n, dtype=torch.long)) for n in (2, 3)]
        >>> store = FlatStore.from_dataset(graphs)
        >>> store
        FlatStore(2 graphs, 5 nodes, 5 edges; x: node, edge_index: edge)
        >>> store.sizes
        array([[2, 2],
               [3, 3]])
    """

    @classmethod
    def from_dataset(
        cls,
        dataset: Any,
        *,
        exclude_keys: Sequence[str] | None = None,
        levels: Levels | None = None,
        progress_bar: bool | None = None,
        validate: bool | None = None,
    ) -> "FlatStore":
        """Flattens a dataset.

        Args:
            dataset: An `InMemoryDataset` without transform (also indexed, shuffled or split), a list of `Data` or
                `HeteroData`, or a `Subset` or `ConcatDataset` of those.
            exclude_keys: Attributes to leave out.
            levels: What an attribute's rows belong to, as `{"y": "graph"}`; what is not stated is inferred.
            progress_bar: Whether to show a bar where reading the graphs lasts longer than a second; None means at a
                terminal and in notebooks.
            validate: Whether graphs are checked: None checks that every edge ends in its own graph, True also that
                positions are finite, False nothing. A `FlatStore` has been checked when it was made.

        Raises:
            ValueError: the dataset is empty, mixes `Data` and `HeteroData`, its graphs differ in attributes or types,
                an attribute cannot be laid out flat, or a check fails.
        """
        store = cls._flattened(dataset, exclude_keys, levels, progress_bar)
        if validate or (validate is None and not _holds_store(dataset)):
            check_indices(store)
        if validate:
            check_positions(store)
        return store

    @classmethod
    def _flattened(
        cls, dataset: Any, exclude_keys: Sequence[str] | None, levels: Levels | None, progress_bar: bool | None
    ) -> "FlatStore":
        if isinstance(dataset, FlatStore):
            return dataset._without(set(exclude_keys or ()))
        if isinstance(dataset, Subset):
            return cls._flattened(dataset.dataset, exclude_keys, levels, progress_bar).view(dataset.indices)
        return cls(**vars(read(dataset, exclude_keys, levels, progress_bar)))

    def _without(self, names: set[str]) -> "FlatStore":
        """The same graphs without some attributes; without any that counts edges they have none."""
        left = tuple(attribute for attribute in self.attributes if attribute.name not in names)
        if len(left) == len(self.attributes):
            return self
        pointers = dict(self.row_pointers)
        for axis in self.row_pointers:
            if axis.level is Level.EDGE and not any(attribute.axis == axis for attribute in left):
                pointers[axis] = torch.zeros_like(pointers[axis])
        return dataclasses.replace(self, attributes=left, row_pointers=pointers, row_ends=None, _cache={})

    def level(self, name: str, store: StoreKey = None) -> Level:
        """What the rows of an attribute belong to.

        Raises:
            ValueError: there is no such attribute.
        """
        for attribute in self.attributes:
            if (attribute.store, attribute.name) == (store, name):
                return attribute.axis.level
        raise ValueError(f"No attribute {name!r} here; there are {[a.name for a in self.attributes]}.")

    def __repr__(self) -> str:
        total = self.sizes.sum(axis=0)
        nodes, edges = total[: len(self.node_types)].sum(), total[len(self.node_types) :].sum()
        names = ", ".join(f"{a.name}: {a.axis.level.value}" for a in self.attributes)
        return f"{type(self).__name__}({len(self):,} graphs, {nodes:,} nodes, {edges:,} edges; {names})"

    def _repr_html_(self) -> str:
        sizes = pd.DataFrame(self.sizes, columns=[axis.label for axis in self.size_axes])
        table = sizes.agg(["min", "mean", "max", "sum"]).T.map("{:,.6g}".format)
        return f"{len(self):,} graphs{table.to_html()}"


def _holds_store(dataset: Any) -> bool:
    """Whether the graphs come from a flat store, also through subsets."""
    return _holds_store(dataset.dataset) if isinstance(dataset, Subset) else isinstance(dataset, FlatStore)


def why_not_flat(dataset: Any) -> str | None:
    """Why a dataset must be fetched graph by graph instead of being flattened, or None where it need not.

    Example:
        >>> why_not_flat([]) is None
        True
    """
    if isinstance(dataset, (FlatStore, list, tuple)):
        return None
    if isinstance(dataset, Subset):
        return why_not_flat(dataset.dataset)
    if isinstance(dataset, ConcatDataset):
        return next((why for part in dataset.datasets if (why := why_not_flat(part))), None)
    return why_not_collated(dataset)


def measure(
    dataset: Any, exclude_keys: Sequence[str] | None, progress_bar: bool | None
) -> tuple[np.ndarray, FlatStore]:
    """Sizes of all graphs of a dataset that is not flat, and its first graphs, flat."""
    ids = progress(range(len(dataset)), "measuring graphs", "graph", progress_bar)
    parts = iter(lambda: [dataset[i] for i in islice(ids, _MEASURED_AT_ONCE)], [])
    first = FlatStore.from_dataset(next(parts, []), exclude_keys=exclude_keys)
    rest = (FlatStore.from_dataset(part, exclude_keys=exclude_keys).sizes for part in parts)
    return np.concatenate([first.sizes, *rest]), first
