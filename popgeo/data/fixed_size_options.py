"""The numbers of nodes, edges and graphs of every batch, and the ways to find them."""

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from popgeo.data.attribute_names import NEVER_PADDED, PADDED_WITH, FillValues
from popgeo.data.axes import GRAPHS, Axis, Level, StoreKey
from popgeo.data.flat_store import FlatStore
from popgeo.data.open_dataset import OpenDataset
from popgeo.data.row_limits import row_limits
from popgeo.did_you_mean import names_arguments
from popgeo.packing import tune

if TYPE_CHECKING:
    from torch_geometric.transforms.pad import Padding
    from typing_extensions import Self, Unpack


@names_arguments
@dataclass(frozen=True)
class FixedSizeOptions:
    """The fixed sizes of a batch, padding included, and the values of padding.

    At least one node and one graph of every batch are padding. So the real graphs of a batch may use
    `num_nodes - 1` nodes, `num_edges` edges and `num_graphs - 1` graphs.

    Args:
        num_nodes: Nodes of a batch. For heterogeneous graphs: the same number for each type, or a dictionary.
        num_edges: Edges of a batch, or a dictionary. 0 means no edges (point clouds). Default: the largest number of a
            simple graph with `num_nodes` nodes, `num_nodes * (num_nodes - 1)`.
        num_graphs: Graphs of a batch, at least 2. Default: 2.
        node_pad_value: Value of node attributes in padding: a number, or PyG's `AttrNamePadding` or `NodeTypePadding`.
            Default: 0.
        edge_pad_value: Value of edge attributes in padding: a number, `AttrNamePadding` or `EdgeTypePadding`.
            Default: 0, and 1e3 for `edge_shift`.
        graph_pad_value: Value of graph attributes in padding: a number or `AttrNamePadding`. Default: 0.
        pad_graph_defaults: Values of single graph attributes in padding, as `{"name": "padding"}`. Default for values
            that are not tensors, such as strings: the value of the first graph of the batch.
        num_rows: Rows of a batch for each graph attribute with a varying number of rows, as `{"ring_index": 500}`.
            Default: room for the graph with the most rows in each place; with `tune`, the rows of the largest graphs
            together.

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
    node_pad_value: "float | Padding | None" = None
    edge_pad_value: "float | Padding | None" = None
    graph_pad_value: "float | Padding | None" = None
    pad_graph_defaults: Mapping[str, Any] | None = None
    num_rows: Mapping[str, int] | None = None

    def __post_init__(self) -> None:
        if self.num_graphs < 2:
            raise ValueError(f"num_graphs is {self.num_graphs}; at least one graph is real and one padding.")
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
        import pandas as pd

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
        """Check whether both sizes are given per type."""
        return isinstance(self.num_nodes, dict) and isinstance(self.num_edges, dict)

    def to_hetero(self, node_types: Sequence[StoreKey], edge_types: Sequence[StoreKey]) -> "FixedSizeOptions":
        """Return these options with a size for each type; a single number applies to each type.

        Raises:
            ValueError: a dictionary lacks a type.
        """
        nodes: Any = {key: self.slots(Axis(Level.NODE, key)) for key in node_types}
        edges: Any = {key: self.slots(Axis(Level.EDGE, key)) for key in edge_types}
        return dataclasses.replace(self, num_nodes=nodes, num_edges=edges)

    def slots(self, axis: Axis) -> int:
        """Return the number of nodes or edges (of one type) of a batch.

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
        """Return the number of rows of a batch along any axis of a dataset.

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
                f"Attribute {axis.name!r} has {low} to {high} rows per graph, so a batch has no fixed number of rows. "
                f"Pass FixedSizeOptions(num_rows={{{axis.name!r}: {high * (self.num_graphs - 1) + 1}}}), or state its "
                f"level as levels={{{axis.name!r}: 'node'}} if it does not belong to the graph."
            )
        return low * self.num_graphs

    def limits(self, axes: Sequence[Axis]) -> np.ndarray:
        """Return the slots for real graphs along each axis: all slots, except one node of each type."""
        return np.array([self.slots(axis) - (axis.level is Level.NODE) for axis in axes], dtype=np.int64)

    def pad_value(self, level: Level, store: StoreKey, name: str) -> float:
        """Return the value of an attribute in padding."""
        if level is Level.GRAPH and self.pad_graph_defaults and name in self.pad_graph_defaults:
            return self.pad_graph_defaults[name]
        if name in NEVER_PADDED:
            return 0.0
        value = getattr(self, f"{level.value}_pad_value")
        if value is not None and hasattr(value, "get_value"):  # one of PyG's paddings
            return value.get_value(store, name)
        return PADDED_WITH.get(name, 0.0) if value is None else value

    @classmethod
    def from_dataset(
        cls,
        dataset: Any,
        batch_size: int,
        sample_limit: int | None = None,
        progress_bar: bool | None = None,
        **values: "Unpack[FillValues]",
    ) -> "Self":
        """Return the smallest sizes that hold any `batch_size - 1` graphs of a dataset and the padding.

        Args:
            dataset: A dataset, as `FixedSizeDataLoader` takes it.
            batch_size: Graphs of a batch, the padding graph included, as in PopTorch Geometric.
            sample_limit: The number of graphs to measure; later graphs may not fit. Default: all.
            progress_bar: Whether to show a bar after one second. Default: at a terminal and in notebooks. Measuring a
                dataset in memory takes milliseconds.
            values: Values of padding and `num_rows`, as for `FixedSizeOptions`.

        Example:
            >>> import torch
            >>> from torch_geometric.data import Data
            >>> graphs = [Data(x=torch.ones(n, 1), edge_index=torch.zeros(2, 2 * n, dtype=torch.long)) for n in (2, 5)]
            >>> options = FixedSizeOptions.from_dataset(graphs, batch_size=4)
            >>> options.num_nodes, options.num_edges, options.num_graphs
            (16, 31, 4)
        """
        if batch_size < 2:
            raise ValueError(f"batch_size is {batch_size}; it includes the padding graph, so pass 2 or more.")
        if not isinstance(dataset, FlatStore) and sample_limit is not None:
            dataset = [dataset[i] for i in range(min(sample_limit, len(dataset)))]
        opened = OpenDataset.of(dataset, progress_bar=progress_bar)
        return cls.worst_case(opened.store, opened.sizes.values[:sample_limit], batch_size, **values)

    @classmethod
    def worst_case(cls, store: FlatStore, sizes: np.ndarray, batch_size: int, **values: "Unpack[FillValues]") -> "Self":
        """Return sizes that hold any `batch_size - 1` graphs and the padding.

        Args:
            store: Graphs with the node and edge types of the dataset.
            sizes: Nodes and edges of each graph. int64 [num_graphs, num_dimensions]
            batch_size: Graphs of a batch, the padding graph included.
            values: Values of padding and `num_rows`, as for `FixedSizeOptions`.
        """
        largest = sizes.max(axis=0)
        # A dataset without edges needs no edge slot.
        worst = np.where(largest > 0, largest * (batch_size - 1) + 1, 0)
        return cls.from_sizes(store, worst, batch_size, **values)

    @classmethod
    def from_sizes(
        cls, store: FlatStore, sizes: Iterable[int], num_graphs: int, **values: "Unpack[FillValues]"
    ) -> "Self":
        """Return options from one number per axis of `store.size_axes`; 0 nodes of a type become 1."""
        counts = [int(size) for size in sizes]
        split = len(store.node_types)
        nodes: Any = dict(zip(store.node_types, (max(1, n) for n in counts[:split]), strict=True))
        edges: Any = dict(zip(store.edge_types, counts[split:], strict=True))
        num_nodes, num_edges = (nodes, edges) if store.is_hetero else (nodes[None], edges[None])
        return cls(num_nodes, num_edges, num_graphs, **values)

    @classmethod
    def tune(
        cls,
        dataset: Any,
        target_graphs: float | None = None,
        *,
        memory: str | float | None = None,
        model: Any = None,
        optimizer: Any = None,
        align: int = 8,
        cost: tuple[float, ...] | None = None,
        verbose: bool = True,
        **values: "Unpack[FillValues]",
    ) -> "Self":
        """Return the sizes that `FixedSizeStrategy.Window` fills best, for about `target_graphs` real graphs per batch.

        Args:
            dataset: A dataset, as `FixedSizeDataLoader` takes it.
            target_graphs: Real graphs of a batch, on average. Default, with `memory`: the most that fit.
            memory: Bytes for the compiled step, or a text such as `"12 GB"`; see `popgeo.memory`.
            model: The model of that step.
            optimizer: The optimizer of that step. Default: none, for predictions.
            align: Divisor of the nodes and of the edges of a batch. Default: 8.
            cost: Cost of a node and of an edge, (a, b) in `a * nodes + b * edges`. Default: see `popgeo.packing.tune`.
            verbose: Whether to print the choice with its reason, and to show a bar after one second.
            values: Values of padding and `num_rows`, as for `FixedSizeOptions`.

        Raises:
            ValueError: see `popgeo.packing.tune`; one graph needs more memory, or `memory` or `model` is missing.

        Example:
            >>> from torch_geometric.data import Data
            >>> graphs = [Data(num_nodes=n) for n in (9, 12, 15)] * 100
            >>> options = FixedSizeOptions.tune(graphs, target_graphs=8, verbose=False)
            >>> options.num_nodes % 8, options.num_edges
            (0, 0)
        """
        bar = None if verbose else False
        opened = OpenDataset.of(dataset, progress_bar=bar)
        store, sizes = opened.store, opened.sizes.values
        if target_graphs is None:
            import popgeo  # the whole package, since a step is above the data of its batches

            tuned = partial(cls.tune, dataset, align=align, cost=cost, verbose=False, **values)
            target_graphs = popgeo.step_memory.graphs_within(memory, dataset, tuned, len(sizes), model, optimizer)
        split = len(store.node_types)
        shape = tune(sizes, target_graphs, align=align, cost=cost, num_node_dims=split, progress_bar=bar)
        if verbose:
            print(re.sub(r"\bsize_(\d+)", lambda found: store.size_axes[int(found[1])].label, shape.reason))
        found = cls.from_sizes(store, shape.slots, shape.num_graphs, **values)
        return found.with_rows_for(store, each_once=True) if opened.holds_all else found

    @classmethod
    def from_loader(cls, loader: Iterable[Any], sample_limit: int = 1000, **values: "Unpack[FillValues]") -> "Self":
        """Return the largest sizes in up to `sample_limit` batches of a loader, plus one of each for padding.

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
            raise ValueError("The loader yields no batch, so no size can be measured. Pass a loader that is not empty.")
        num_nodes, num_edges = (nodes[None], edges[None]) if None in nodes else (nodes, edges)
        return cls(num_nodes, num_edges, num_graphs, **values)

    def round_to(self, multiple: int) -> "FixedSizeOptions":
        """Return these options with nodes and edges, of each type, raised to multiples of a number.

        Matrix units of GPUs and TPUs work on tiles of 8 to 128 rows, and a partly filled tile costs as much as a full
        tile. `tune(align=...)` considers multiples only, so it wastes less than rounding afterwards.

        Args:
            multiple: 8 for half precision on GPUs, 64 for whole tiles, 128 on TPUs.

        Raises:
            ValueError: `multiple` is not an integer of at least 1.

        Example:
            >>> FixedSizeOptions(num_nodes=100, num_edges=0, num_graphs=5).round_to(64)
            FixedSizeOptions(num_nodes=128, num_edges=0, num_graphs=5)
        """
        if type(multiple) is not int or multiple < 1:
            raise ValueError(f"round_to got {multiple!r}; pass an integer of at least 1.")

        def raised(sizes: Any) -> Any:
            if isinstance(sizes, dict):
                return {key: raised(count) for key, count in sizes.items()}
            return -(-sizes // multiple) * multiple

        return dataclasses.replace(self, num_nodes=raised(self.num_nodes), num_edges=raised(self.num_edges))

    def with_rows_for(self, store: FlatStore, each_once: bool = False) -> "Self":
        """Return these options with enough `num_rows` for every graph attribute of varying length.

        Warn if over 90 % of these rows are padding, unless a batch holds each graph at most once.

        Args:
            store: The dataset.
            each_once: Whether a batch holds each graph at most once. Default: False.

        Raises:
            ValueError: a label has different numbers of rows in different graphs, and `num_rows` has no entry for it.
        """
        rows = row_limits(store, self.num_graphs - 1, self.num_rows or {}, each_once)
        return dataclasses.replace(self, num_rows=rows) if rows else self


def _check_each(name: str, sizes: Any, least: int, why: str) -> None:
    for key, count in _items(sizes):
        if count < least:
            where = "" if key is None else f"[{key!r}]"
            raise ValueError(f"{name}{where} is {count}; {why}")


def _items(sizes: Any) -> Iterable[tuple[Any, int]]:
    return sizes.items() if isinstance(sizes, dict) else [(None, sizes)]
