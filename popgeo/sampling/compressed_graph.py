"""A large graph by rows, with the neighbors of one node in each row."""

from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from popgeo.native import library
from popgeo.native.plain_tensor import plain_tensor
from popgeo.sampling.compress import compress, sort_rows

_LARGEST_INT32 = 2**31 - 1
_WEIGHTS = (torch.float32, torch.float64)


class Direction(str, Enum):
    """The direction of the edges between a node and its neighbors.

    Example:
        >>> Direction("incoming") is Direction.INCOMING
        True
    """

    INCOMING = "incoming"
    """The neighbors of a node are the sources of its incoming edges: the senders of its messages."""
    OUTGOING = "outgoing"
    """The neighbors of a node are the destinations of its outgoing edges."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class CompressedGraph:
    """A graph, or one edge type of a heterogeneous one, by rows: `col[rowptr[i]:rowptr[i + 1]]` are i's neighbors.

    `CompressedGraph.from_edge_index` builds one; a mapping from edge type to `CompressedGraph` represents a
    heterogeneous graph.

    Args:
        rowptr: The start of each row, and the end. int32 or int64 [num_rows + 1]
        col: Neighbors, row after row. The same dtype [num_edges]
        num_cols: The number of nodes that can be neighbors; num_rows in a homogeneous graph.
        perm: The number of each edge in `edge_index`. Default: its place here. The same dtype [num_edges]
        weight: The probability of each edge, relative to other edges of its row. float [num_edges]
        time: The first time at which each edge may be used: the time of the edge or of the neighbor. It ascends in each
            row. int64 [num_edges]
        direction: The direction of the edges of a row, as seen from the node of the row.

    Raises:
        ValueError: a shape, dtype or value contradicts this description.

    Example:
        >>> edge_index = torch.tensor([[1, 2, 0, 2], [0, 0, 2, 1]])
        >>> graph = CompressedGraph.from_edge_index(edge_index, num_nodes=3)
        >>> graph.rowptr.tolist(), graph.col.tolist(), graph.perm.tolist()
        ([0, 2, 3, 4], [1, 2, 2, 0], [0, 1, 3, 2])
    """

    rowptr: Tensor
    col: Tensor
    num_cols: int
    perm: Tensor | None = None
    weight: Tensor | None = None
    time: Tensor | None = None
    direction: Direction = Direction.INCOMING

    def __post_init__(self) -> None:
        object.__setattr__(self, "direction", Direction(self.direction))
        _check_rows(self.rowptr, self.col, self.num_cols)
        if self.perm is not None:
            _check_column("perm", self.perm, self.num_edges, (self.col.dtype,))
            check_range("perm", self.perm, self.num_edges)
        if self.weight is not None:
            _check_column("weight", self.weight, self.num_edges, _WEIGHTS)
            _check_weights(self.weight)
        if self.time is not None:
            _check_column("time", self.time, self.num_edges, (torch.int64,))
            falls = (self.time[1:] < self.time[:-1]).nonzero().flatten() + 1
            if not bool(torch.isin(falls, self.rowptr).all()):
                raise ValueError("CompressedGraph.time falls inside a row; from_edge_index sorts each row by time.")

    @staticmethod
    def from_edge_index(
        edge_index: Tensor,
        num_nodes: int | tuple[int, int],
        *,
        direction: Direction | str = Direction.INCOMING,
        edge_weight: Tensor | None = None,
        node_time: Tensor | None = None,
        edge_time: Tensor | None = None,
        dtype: torch.dtype | None = None,
    ) -> "CompressedGraph":
        """Sort the edges by row in linear time; edges of a row stay in order, or are sorted by time.

        Args:
            edge_index: Source and destination of each edge. int32 or int64 [2, num_edges]
            num_nodes: The number of nodes; for two node types, the numbers of sources and of destinations.
            direction: `"incoming"` makes a row per destination, `"outgoing"` a row per source.
            edge_weight: The probability of each edge, relative to other edges of its row. [num_edges]
            node_time: Time of each node that can be a neighbor. int64 [num_cols]
            edge_time: Time of each edge, instead of times of nodes. int64 [num_edges]
            dtype: torch.int32 or torch.int64. Default: int32 if it suffices for nodes and edges.

        Raises:
            ValueError: an index is negative or too large, a shape or dtype is wrong, or both times are given.

        Example:
            >>> users_items = torch.tensor([[0, 0, 1], [3, 1, 1]])
            >>> CompressedGraph.from_edge_index(users_items, (2, 4), direction="outgoing")
            CompressedGraph(2 rows, 3 edges to 4 nodes, outgoing, int32)
        """
        num_sources, num_destinations = num_nodes if isinstance(num_nodes, tuple) else (num_nodes, num_nodes)
        edge_index = plain_tensor("edge_index", edge_index)
        check_edge_index("edge_index", edge_index, num_sources, num_destinations)
        if node_time is not None and edge_time is not None:
            raise ValueError("Both node_time and edge_time are given; the time of an edge is one of them.")
        source, destination = library.as_read(edge_index[0]), library.as_read(edge_index[1])
        num_edges = len(source)
        direction = Direction(direction)
        if direction is Direction.INCOMING:
            rows, cols, num_rows, num_cols = destination, source, num_destinations, num_sources
        else:
            rows, cols, num_rows, num_cols = source, destination, num_sources, num_destinations
        for name, column, length in (
            ("edge_weight", edge_weight, num_edges),
            ("node_time", node_time, num_cols),
            ("edge_time", edge_time, num_edges),
        ):
            if column is not None and column.shape != (length,):
                raise ValueError(f"{name} has shape {tuple(column.shape)}; it needs ({length},).")
            if column is not None and name != "edge_weight" and column.dtype not in (torch.int32, torch.int64):
                raise ValueError(f"{name} is {column.dtype}; times are whole numbers, such as seconds, in torch.int64.")
        rowptr, col, perm = compress(rows, cols, num_rows, _index_dtype(dtype, max(num_rows, num_cols, num_edges)))
        time = node_time if edge_time is None else edge_time
        if time is not None:
            places = col if edge_time is None else perm
            time = library.as_read(time.long() if places is None else time.long()[places])
            time, col, perm = sort_rows(rowptr, time, col, perm)
        weight = edge_weight
        if weight is not None:
            weight = weight if weight.dtype in _WEIGHTS else weight.float()
            weight = library.as_read(weight) if perm is None else weight[perm]
        return CompressedGraph(
            rowptr=rowptr, col=col, num_cols=num_cols, perm=perm, weight=weight, time=time, direction=direction
        )

    @property
    def num_rows(self) -> int:
        """The number of nodes with a row of neighbors."""
        return len(self.rowptr) - 1

    @property
    def num_edges(self) -> int:
        """The number of edges."""
        return len(self.col)

    def __repr__(self) -> str:
        size = f"{self.num_rows:,} rows, {self.num_edges:,} edges to {self.num_cols:,} nodes"
        extra = "".join(f", {name}" for name in ("weight", "time") if getattr(self, name) is not None)
        return f"CompressedGraph({size}, {self.direction.value}, {str(self.col.dtype).removeprefix('torch.')}{extra})"


def _index_dtype(dtype: torch.dtype | None, largest: int) -> torch.dtype:
    if dtype is None:
        return torch.int32 if largest <= _LARGEST_INT32 else torch.int64
    if dtype not in (torch.int32, torch.int64):
        raise ValueError(f"dtype is {dtype}; rows and neighbors are torch.int32 or torch.int64.")
    if dtype is torch.int32 and largest > _LARGEST_INT32:
        raise ValueError(f"dtype is torch.int32, but {largest:,} nodes or edges need torch.int64.")
    return dtype


def check_edge_index(name: str, edge_index: Tensor, num_sources: int, num_destinations: int) -> None:
    """Check the form of edges, and that each edge ends in an existing node.

    Raises:
        ValueError: the dtype, shape or device is wrong, or a node is out of range.
    """
    if edge_index.dim() != 2 or edge_index.shape[0] != 2 or edge_index.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"{name} is {edge_index.dtype} {[*edge_index.shape]}; pass int32 or int64 [2, num_edges].")
    if edge_index.device.type != "cpu":
        raise ValueError(f"{name} is on {edge_index.device}; graphs are sampled on the processor. Pass {name}.cpu().")
    if min(num_sources, num_destinations) < 0:
        raise ValueError(f"num_nodes is {(num_sources, num_destinations)}; a number of nodes is 0 or more.")
    check_range(f"{name}[0]", edge_index[0], num_sources)
    check_range(f"{name}[1]", edge_index[1], num_destinations)


def check_range(name: str, index: Tensor, limit: int) -> None:
    """Check that indices are not negative and are below a limit.

    Raises:
        ValueError: an index is out of range.
    """
    if index.numel() == 0:
        return
    low, high = (int(value) for value in torch.aminmax(index))
    if low < 0 or high >= limit:
        raise ValueError(f"{name} contains {low if low < 0 else high}; indices must be in 0 ... {limit - 1}.")


def _check_rows(rowptr: Tensor, col: Tensor, num_cols: int) -> None:
    if rowptr.dtype not in (torch.int32, torch.int64) or rowptr.dtype != col.dtype:
        raise ValueError(f"rowptr is {rowptr.dtype}, col {col.dtype}; both must be int32 or both int64.")
    if len(rowptr) == 0:
        raise ValueError("rowptr is empty; it has the start of each row, and the end: at least [0].")
    _check_column("rowptr", rowptr, len(rowptr), (rowptr.dtype,))
    _check_column("col", col, col.numel(), (col.dtype,))
    if int(rowptr[0]) != 0 or int(rowptr[-1]) != len(col) or bool((rowptr[1:] < rowptr[:-1]).any()):
        raise ValueError(f"rowptr must ascend from 0 to {len(col)}, the number of edges.")
    if len(rowptr) > 1 and int((rowptr[1:] - rowptr[:-1]).max()) >= 2**32:
        raise ValueError("A row holds 2^32 neighbors or more; random numbers of 32 bits choose among fewer.")
    check_range("col", col, num_cols)


def _check_column(name: str, tensor: Tensor, length: int, dtypes: tuple[torch.dtype, ...]) -> None:
    if tensor.shape != (length,) or tensor.dtype not in dtypes:
        raise ValueError(f"{name} is {tensor.dtype} {[*tensor.shape]}, not {' or '.join(map(str, dtypes))} [{length}].")
    if tensor.device.type != "cpu" or library.as_read(tensor) is not tensor:
        raise ValueError(f"{name} must be contiguous, aligned and on the processor; use {name}.cpu().clone().")


def _check_weights(weight: Tensor) -> None:
    if len(weight) == 0:
        return
    low, high = (float(value) for value in torch.aminmax(weight))
    # A weight below 1e-300 would make the logarithms of a weighted draw infinite.
    tiny = bool(((weight > 0) & (weight < 1e-300)).any())
    if not (low >= 0 and high * len(weight) < 1e300) or tiny:
        raise ValueError(f"Weights are {low} to {high}; they must be finite and 0 (never drawn) or at least 1e-300.")
