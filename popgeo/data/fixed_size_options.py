"""How many nodes, edges and graphs every batch has."""

import dataclasses
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from popgeo.data.attribute_names import LABELS, NEVER_PADDED, PADDED_WITH
from popgeo.data.axes import GRAPHS, Axis, Level, StoreKey
from popgeo.data.flat_store import FlatStore
from popgeo.data.found_sizes import FoundSizes
from popgeo.did_you_mean import names_arguments

if TYPE_CHECKING:
    from torch_geometric.transforms.pad import Padding


@names_arguments
@dataclass(frozen=True)
class FixedSizeOptions(FoundSizes):
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
            other values that are not tensors are otherwise repeated from the first graph of the batch.
        num_rows: Rows that a batch keeps for each graph attribute whose number of rows differs between graphs, as
            `{"ring_index": 500}`. Default: the rows of the largest graph for each graph of a batch; those of the
            largest graphs together if `tune` finds the sizes.

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
        value = getattr(self, f"{level.value}_pad_value")
        if value is not None and hasattr(value, "get_value"):  # one of PyG's paddings
            return value.get_value(store, name)
        return PADDED_WITH.get(name, 0.0) if value is None else value

    def round_to(self, multiple: int) -> "FixedSizeOptions":
        """These options with nodes and edges, of each type, raised to multiples of a number.

        Matrix units of GPUs and TPUs work on tiles, 8 to 128 rows high: the rest of a tile costs as much as a full
        one. `tune(align=...)` chooses among multiples from the start, so it wastes less than rounding afterwards.

        Args:
            multiple: 8 for half precision on GPUs, 64 for whole tiles, 128 on TPUs.

        Raises:
            ValueError: it is not an integer of at least 1.

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

    def with_rows_for(self, store: FlatStore, each_once: bool = False) -> "FixedSizeOptions":
        """Return these options with room for graph attributes of varying length, as the longest of a dataset need.

        Warns if nearly all of that room is padding, unless it is the least that holds each graph once.

        Args:
            store: The dataset.
            each_once: Whether no batch holds a graph twice.

        Raises:
            ValueError: labels of graphs have different numbers of rows, and `num_rows` does not have the attribute.
        """
        rows, real = dict(self.num_rows or {}), self.num_graphs - 1
        for axis, pointer in store.row_pointers.items():
            if axis.level is not Level.GRAPH or axis.name is None or axis.name in rows or not len(store):
                continue
            counts = store.counts(axis)
            largest, first = int(counts.argmax()), int(counts[0])
            if pointer.diff().min() == pointer.diff().max():
                continue
            needed = 1 + int(np.sort(counts)[-real:].sum() if each_once else counts[largest] * real)
            if axis.name in LABELS and (counts != first).any():
                other = int((counts != first).argmax())
                raise ValueError(
                    f"Graph {other} has {counts[other]} rows in {axis.name!r} and graph 0 has {first}. A label has the "
                    f"same number of rows in every graph, or one per node or edge. Correct the graphs, or pass "
                    f"FixedSizeOptions(num_rows={{{axis.name!r}: {needed}}}) if the numbers of rows are meant."
                )
            if not each_once and counts.mean() * real < 0.1 * needed:
                warnings.warn(
                    f"A batch keeps {needed:,} rows for {axis.name!r}, as graph {largest} has {counts[largest]:,}; "
                    f"the mean is {counts.mean():.1f}, so more than 90 % of the rows are padding. Pass fewer, as "
                    f"FixedSizeOptions(num_rows={{{axis.name!r}: {int(counts[largest] + 2 * counts.mean() * real) + 1}"
                    "}), take the sizes from FixedSizeOptions.tune, or leave that graph out.",
                    stacklevel=4,
                )
            rows[axis.name] = needed
        return dataclasses.replace(self, num_rows=rows) if rows else self


def require_sizes(options: Any) -> None:
    """Raise if something else is given for the sizes of a batch.

    Raises:
        ValueError: the argument is not a `FixedSizeOptions`.
    """
    if not isinstance(options, FixedSizeOptions):
        how = ", ".join(f"{name}={value!r}" for name, value in options.items()) if isinstance(options, Mapping) else ""
        raise ValueError(
            f"fixed_size_options is a {type(options).__name__}; pass popgeo.FixedSizeOptions({how or 'num_nodes=...'})."
        )


def _check_each(name: str, sizes: Any, least: int, why: str) -> None:
    for key, count in _items(sizes):
        if count < least:
            where = "" if key is None else f"[{key!r}]"
            raise ValueError(f"{name}{where} is {count}; {why}")


def _items(sizes: Any) -> Iterable[tuple[Any, int]]:
    return sizes.items() if isinstance(sizes, dict) else [(None, sizes)]
