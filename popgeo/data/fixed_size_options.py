"""How many nodes, edges and graphs every batch has."""

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import pandas as pd
from torch_geometric.transforms.pad import Padding

from popgeo.data.attribute_names import NEVER_PADDED
from popgeo.data.axes import GRAPHS, Axis, Level, StoreKey
from popgeo.data.flat_store import FlatStore, why_not_flat
from popgeo.data.graph_sizes import GraphSizes, first_graphs
from popgeo.packing import tune


@dataclass(frozen=True)
class FixedSizeOptions:
    """The fixed sizes of a batch, padding included, and what padding is filled with.

    At least one node and one graph of every batch are padding, so the real graphs of a batch may use
    `num_nodes - 1` nodes, `num_edges` edges and `num_graphs - 1` graphs.

    Args:
        num_nodes: Nodes of a batch; for heterogeneous graphs one number for each type, or a dictionary.
        num_edges: Edges of a batch, likewise. 0 means no edges (point clouds); None means the largest number that a
            simple graph of `num_nodes` nodes has, `num_nodes * (num_nodes - 1)`.
        num_graphs: Graphs of a batch, at least 2.
        node_pad_value: Fills the node attributes of padding: a number, or PyG's `AttrNamePadding`,
            `NodeTypePadding`. None means 0.
        edge_pad_value: Fills the edge attributes of padding: a number, `AttrNamePadding` or `EdgeTypePadding`.
        graph_pad_value: Fills the graph attributes of padding: a number or `AttrNamePadding`.
        pad_graph_defaults: What padding graphs carry for single graph attributes, as `{"name": "padding"}`; strings and
            other values that are no tensors are otherwise repeated from the first graph of the batch.
        num_rows: Rows that a batch keeps for a graph attribute whose number of rows differs between graphs.

    Raises:
        ValueError: a size is too small to hold a graph and its padding.

    Example:
        >>> options = FixedSizeOptions(num_nodes=12, num_edges=30, num_graphs=4)
        >>> options
        FixedSizeOptions(num_nodes=12, num_edges=30, num_graphs=4)
    """

    num_nodes: int | dict[str, int]
    num_edges: int | dict[tuple[str, str, str], int] | None = None
    num_graphs: int = 2
    node_pad_value: float | Padding | None = None
    edge_pad_value: float | Padding | None = None
    graph_pad_value: float | Padding | None = None
    pad_graph_defaults: Mapping[str, Any] | None = None
    num_rows: Mapping[str, int] | None = None

    def __post_init__(self) -> None:
        if self.num_graphs < 2:
            raise ValueError(
                f"num_graphs is {self.num_graphs}; a batch holds a real and a padding graph at least. Pass 2 or more."
            )
        if self.num_edges is None:
            total = self.total_num_nodes
            object.__setattr__(self, "num_edges", total * (total - 1))
        _check_each("num_nodes", self.num_nodes, 1, "at least one node is kept for padding. Raise it.")
        _check_each("num_edges", self.num_edges, 0, "it must be 0 (no edges) or more.")

    def _chosen(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value is not None}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self._chosen().items())})"

    def _repr_html_(self) -> str:
        shown = {name: str(value) for name, value in self._chosen().items()}
        with pd.option_context("display.max_colwidth", None):
            return pd.Series(shown, name=type(self).__name__).to_frame().to_html()

    @property
    def total_num_nodes(self) -> int:
        """Nodes of a batch over all types."""
        return sum(count for _, count in _items(self.num_nodes))

    @property
    def total_num_edges(self) -> int:
        """Edges of a batch over all types."""
        return sum(count for _, count in _items(self.num_edges))

    def is_hetero(self) -> bool:
        """Whether both sizes are given per type."""
        return isinstance(self.num_nodes, dict) and isinstance(self.num_edges, dict)

    def to_hetero(self, node_types: Sequence[StoreKey], edge_types: Sequence[StoreKey]) -> "FixedSizeOptions":
        """These options with every size given per type; a single number is given to each type.

        Raises:
            ValueError: a dictionary lacks a type.
        """
        nodes: Any = {key: self.slots(Axis(Level.NODE, key)) for key in node_types}
        edges: Any = {key: self.slots(Axis(Level.EDGE, key)) for key in edge_types}
        return dataclasses.replace(self, num_nodes=nodes, num_edges=edges)

    def slots(self, axis: Axis) -> int:
        """How many nodes or edges (of one type) a batch has.

        Raises:
            ValueError: sizes are given per type and lack this type.
        """
        name, sizes = ("num_nodes", self.num_nodes) if axis.level is Level.NODE else ("num_edges", self.num_edges)
        if not isinstance(sizes, dict):
            assert sizes is not None  # __post_init__ has filled it in
            return sizes
        if axis.store not in sizes:
            raise ValueError(f"{name} has no entry for {axis.store!r}; it has {list(sizes)}. Add one.")
        return sizes[axis.store]  # type: ignore[index]

    def rows(self, axis: Axis, store: FlatStore) -> int:
        """How many rows a batch has along any axis of a dataset.

        Raises:
            ValueError: the options lack a node or edge type, or the rows of a graph attribute of varying length.
        """
        if axis.level is not Level.GRAPH:
            return self.slots(axis)
        if axis == GRAPHS:
            return self.num_graphs
        assert axis.name is not None  # every other graph axis belongs to one attribute
        if self.num_rows and axis.name in self.num_rows:
            return self.num_rows[axis.name]
        rows = store.row_pointers[axis].diff()
        low, high = int(rows.min()), int(rows.max())
        if low != high:
            raise ValueError(
                f"Attribute {axis.name!r} has {low} to {high} rows a graph, so a batch has no fixed number of them. "
                f"Pass FixedSizeOptions(num_rows={{{axis.name!r}: {high * (self.num_graphs - 1) + 1}}}), or state its "
                f"level as levels={{{axis.name!r}: 'node'}} if it is not a graph's."
            )
        return low * self.num_graphs

    def limits(self, axes: Sequence[Axis]) -> np.ndarray:
        """What the real graphs of a batch may use along each axis: all slots, but one node of each type less."""
        return np.array([self.slots(axis) - (axis.level is Level.NODE) for axis in axes], dtype=np.int64)

    def pad_value(self, level: Level, store: StoreKey, name: str) -> float:
        """What fills an attribute of padding."""
        if level is Level.GRAPH and self.pad_graph_defaults and name in self.pad_graph_defaults:
            return self.pad_graph_defaults[name]
        if name in NEVER_PADDED:
            return 0.0
        value = {
            Level.NODE: self.node_pad_value,
            Level.EDGE: self.edge_pad_value,
            Level.GRAPH: self.graph_pad_value,
        }[level]
        if isinstance(value, Padding):
            return value.get_value(store, name)
        return 0.0 if value is None else value

    @classmethod
    def from_dataset(
        cls,
        dataset: Any,
        batch_size: int,
        sample_limit: int | None = None,
        progress_bar: bool | None = None,
        **values: Any,
    ) -> "FixedSizeOptions":
        """The smallest sizes that hold any `batch_size - 1` graphs of a dataset and the padding.

        Args:
            dataset: What `FixedSizeDataLoader` takes.
            batch_size: Graphs of a batch, the padding graph included, as in PopTorch Geometric.
            sample_limit: Measure only so many graphs; later ones may then not fit.
            progress_bar: Whether to show a bar where it lasts longer than a second; None means at a terminal and in
                notebooks. Measuring a dataset that lies in memory takes milliseconds.
            values: Pad values, as `FixedSizeOptions` takes them.

        Example:
            >>> import torch
            >>> from torch_geometric.data import Data
            >>> graphs = [Data(x=torch.ones(n, 1), edge_index=torch.zeros(2, 2 * n, dtype=torch.long)) for n in (2, 5)]
            >>> options = FixedSizeOptions.from_dataset(graphs, batch_size=4)
            >>> options.num_nodes, options.num_edges, options.num_graphs
            (16, 31, 4)
        """
        if batch_size < 2:
            raise ValueError(f"batch_size is {batch_size}; it counts the padding graph, so it must be 2 or more.")
        if not isinstance(dataset, FlatStore) and sample_limit is not None:
            dataset = [dataset[i] for i in range(min(sample_limit, len(dataset)))]
        store, sizes = _measured(dataset, progress_bar)
        return cls.worst_case(store, sizes[:sample_limit], batch_size, **values)

    @classmethod
    def worst_case(cls, store: FlatStore, sizes: np.ndarray, batch_size: int, **values: Any) -> "FixedSizeOptions":
        """Sizes that hold any `batch_size - 1` graphs of the given sizes and the padding.

        Args:
            store: Says which types there are.
            sizes: Nodes and edges of each graph. int64 [num_graphs, num_dimensions]
            batch_size: Graphs of a batch, the padding graph included.
            values: Pad values, as `FixedSizeOptions` takes them.
        """
        largest = sizes.max(axis=0)
        # Without any edge in the dataset nothing needs an edge slot.
        worst = np.where(largest > 0, largest * (batch_size - 1) + 1, 0)
        return cls.from_sizes(store, worst, batch_size, **values)

    @classmethod
    def from_sizes(cls, store: FlatStore, sizes: Iterable[int], num_graphs: int, **values: Any) -> "FixedSizeOptions":
        """Options from one number for each of `store.size_axes`; nodes are raised to 1 where nothing has any."""
        counts = [int(size) for size in sizes]
        split = len(store.node_types)
        nodes, edges = [max(1, n) for n in counts[:split]], counts[split:]
        if store.is_hetero:
            num_nodes, num_edges = dict(zip(store.node_types, nodes)), dict(zip(store.edge_types, edges))  # noqa: B905
            return cls(num_nodes, num_edges, num_graphs, **values)  # type: ignore[arg-type]
        return cls(nodes[0], edges[0], num_graphs, **values)

    @classmethod
    def tune(
        cls,
        dataset: Any,
        target_graphs: float,
        *,
        align: int = 8,
        cost: tuple[float, ...] | None = None,
        verbose: bool = True,
        **values: Any,
    ) -> "FixedSizeOptions":
        """The sizes that `FixedSizeStrategy.Window` fills best, at about so many real graphs a batch.

        Args:
            dataset: What `FixedSizeDataLoader` takes.
            target_graphs: Real graphs of a batch, on average.
            align: Nodes and edges of a batch are multiples of this.
            cost: What a node and an edge cost, as (a, b) in `a * nodes + b * edges`; see `popgeo.packing.tune`.
            verbose: Whether to print what was chosen and why, and to show a bar where it lasts.
            values: Pad values, as `FixedSizeOptions` takes them.

        Raises:
            ValueError: see `popgeo.packing.tune`.

        Example:
            >>> from torch_geometric.data import Data
            >>> graphs = [Data(num_nodes=n) for n in (9, 12, 15)] * 100
            >>> options = FixedSizeOptions.tune(graphs, target_graphs=8, verbose=False)
            >>> options.num_nodes % 8, options.num_edges
            (0, 0)
        """
        bar = None if verbose else False
        store, sizes = _measured(dataset, bar)
        split = len(store.node_types)
        shape = tune(sizes, target_graphs, align=align, cost=cost, num_node_dims=split, progress_bar=bar)
        if verbose:
            labels = [axis.label for axis in store.size_axes]
            print(re.sub(r"\bsize_(\d+)", lambda found: labels[int(found[1])], shape.reason))
        return cls.from_sizes(store, shape.slots, shape.num_graphs, **values)

    def round_to(self, multiple: int) -> "FixedSizeOptions":
        """These options with nodes and edges, of each type, raised to multiples of a number.

        Matrix units of GPUs and TPUs work on tiles, 8 to 128 rows high: what is left of a tile costs as much as a full
        one. `tune(align=...)` chooses among multiples from the start, so it wastes less than rounding afterwards.

        Args:
            multiple: 8 for half precision on GPUs, 64 for whole tiles, 128 on TPUs.

        Raises:
            ValueError: it is no integer of at least 1.

        Example:
            >>> FixedSizeOptions(num_nodes=100, num_edges=0, num_graphs=5).round_to(64)
            FixedSizeOptions(num_nodes=128, num_edges=0, num_graphs=5)
        """
        if type(multiple) is not int or multiple < 1:
            raise ValueError(f"round_to is given {multiple!r}; it takes an integer of at least 1.")

        def raised(sizes: Any) -> Any:
            if isinstance(sizes, dict):
                return {key: raised(count) for key, count in sizes.items()}
            return -(-sizes // multiple) * multiple

        return dataclasses.replace(self, num_nodes=raised(self.num_nodes), num_edges=raised(self.num_edges))

    def with_rows_for(self, store: FlatStore) -> "FixedSizeOptions":
        """These options with room for graph attributes of varying length: what the longest ones of a dataset need."""
        rows = dict(self.num_rows or {})
        for axis, pointer in store.row_pointers.items():
            counts = pointer.diff()
            if axis.level is Level.GRAPH and axis.name is not None and counts.min() != counts.max():
                rows.setdefault(axis.name, int(counts.max()) * (self.num_graphs - 1) + 1)
        return dataclasses.replace(self, num_rows=rows) if rows else self

    @classmethod
    def from_loader(cls, loader: Iterable[Any], sample_limit: int = 1000, **values: Any) -> "FixedSizeOptions":
        """The largest sizes seen in up to `sample_limit` batches of a loader, and one more of each for padding.

        Raises:
            ValueError: the loader is empty.
        """
        nodes: dict[Any, int] = {}
        edges: dict[Any, int] = {}
        num_graphs = 0
        for batch in islice(loader, sample_limit):
            for store in batch.node_stores:
                nodes[store._key] = max(nodes.get(store._key, 1), int(store.num_nodes or 0) + 1)
            for store in batch.edge_stores:
                edges[store._key] = max(edges.get(store._key, 1), int(store.num_edges or 0) + 1)
            num_graphs = max(num_graphs, int(getattr(batch, "num_graphs", 1)) + 1)
        if not num_graphs:
            raise ValueError("The loader yields no batch, so there is nothing to measure. Pass one that does.")
        if None in nodes:
            return cls(nodes[None], edges[None], num_graphs, **values)
        return cls(nodes, edges, num_graphs, **values)


def _measured(dataset: Any, progress_bar: bool | None) -> tuple[FlatStore, np.ndarray]:
    """Some graphs of a dataset, flat, and the sizes of all."""
    if why_not_flat(dataset) is None:
        store = FlatStore.from_dataset(dataset, progress_bar=progress_bar)
        return store, store.sizes
    return first_graphs(dataset, 1, None), GraphSizes(dataset, progress_bar=progress_bar).values


def _check_each(name: str, sizes: Any, least: int, why: str) -> None:
    for key, count in _items(sizes):
        if count < least:
            where = "" if key is None else f"[{key!r}]"
            raise ValueError(f"{name}{where} is {count}; {why}")


def _items(sizes: Any) -> Iterable[tuple[Any, int]]:
    return sizes.items() if isinstance(sizes, dict) else [(None, sizes)]
