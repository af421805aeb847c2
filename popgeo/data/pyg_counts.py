"""The level of each attribute (node, edge or graph), the counts of nodes and edges, and index offsets, as in PyG."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from popgeo.data import attribute_names as names
from popgeo.data.axes import GRAPHS, Attribute, Axis, Guess, Level, Levels, StoreKey, ends_of, row_pointer
from popgeo.data.columns import Columns


@dataclass(frozen=True, kw_only=True, eq=False)
class JoinedColumn:
    """One attribute of all graphs, concatenated as PyG does, before its level is known.

    Args:
        name: The name of the attribute.
        values: All rows along dimension `dim`; if the values are not tensors, a list with one entry per graph.
        slices: The first row of each graph, and the total; None for a list. [num_graphs + 1]
        dim: The dimension of rows.
        increments: The result of `__inc__` for each graph, if the class overrides it. [num_graphs, ...]
        is_number: Whether each graph has a plain number. A plain number is never a batch vector.
    """

    name: str
    values: Tensor | Sequence[Any]
    slices: Tensor | None = None
    dim: int = 0
    increments: Tensor | None = None
    is_number: bool = False


def columns_of(
    data_cls: type,
    node_types: tuple[StoreKey, ...],
    edge_types: tuple[StoreKey, ...],
    columns: Mapping[StoreKey, Sequence[JoinedColumn]],
    stated: Mapping[StoreKey, Tensor],
    levels: Levels | None,
    num_graphs: int,
    indices: np.ndarray | None = None,
) -> Columns:
    """Return a dataset of these columns, with the axis of each column and row pointers for every axis.

    Args:
        data_cls: The class of a graph.
        node_types: Stores that have nodes.
        edge_types: Stores that have edges.
        columns: The attributes of each store.
        stated: Nodes of each graph, for the stores with `num_nodes`. [num_graphs] for each store
        levels: The level of an attribute, by its name or by store and name. Default: registered or inferred.
        num_graphs: The number of graphs.
        indices: The graphs that the dataset shows. Default: all.

    Raises:
        ValueError: the nodes of a graph cannot be counted, a level is wrong, or an `__inc__` has no flat layout.
    """
    known = {
        name: level if level == GRAPHS or isinstance(level, Guess) else Level(level)
        for name, level in (names.with_registered(levels) or {}).items()
    }
    row_pointers = {GRAPHS: torch.arange(num_graphs + 1)}
    for key in node_types:
        counts = stated[key] if key in stated else _count_nodes(key, columns[key], known)
        row_pointers[Axis(Level.NODE, key)] = row_pointer(counts)
    for key in edge_types:
        for end in (end for end in ends_of(Axis(Level.EDGE, key)) if end not in row_pointers):
            raise ValueError(
                f"Edges {key} lead from or to nodes of type {end.store!r}, and the graphs have no such nodes. Set "
                f"data[{end.store!r}].num_nodes, or its features, in each graph."
            )
        row_pointers[Axis(Level.EDGE, key)] = row_pointer(_count_edges(columns[key], num_graphs))
    attributes = []
    for key, of_store in columns.items():
        for column in of_store:
            given = known.get((key, column.name)) or known.get(column.name)
            attributes.append(_attribute(key, column, given, row_pointers))
    return Columns(
        data_cls=data_cls,
        node_types=node_types,
        edge_types=edge_types,
        attributes=tuple(attributes),
        row_pointers=row_pointers,
        states_num_nodes=frozenset(stated),
        indices=indices,
    )


def _count_nodes(key: StoreKey, columns: Sequence[JoinedColumn], levels: Mapping[Any, Level | Axis | Guess]) -> Tensor:
    """Count the nodes of each graph by attributes with a known node level, or else by edges, [num_graphs]."""
    column = {column.name: column for column in columns}
    stated = {n: levels.get((key, n)) or levels.get(n) for n in column}
    free = [n for n in column if not stated[n] or isinstance(stated[n], Guess)]
    known = [n for n in column if stated[n] is Level.NODE] + [n for n in free if n in names.COUNT_NODES]
    known += [n for n in free if "node" in n] + [n for n in free if n == "z"]
    for name in known:
        if (slices := column[name].slices) is not None:
            return slices.diff()
    for name in [n for n in ("edge_index", "face") if n in column and key is None]:
        values, slices = column[name].values, column[name].slices
        if isinstance(values, Tensor) and slices is not None:
            counts = _segment_max(values.amax(dim=0), slices) + 1
            _refuse_more_rows(counts, [c for c in columns if c.name not in (*names.COUNT_EDGES, "face")])
            return counts
    pair = " For pairs of graphs make HeteroData with a node type for each graph of the pair."
    pair = pair if sum(name.startswith("edge_index_") for name in column) > 1 else ""
    where = "each graph" if key is None else f"each graph's {key!r}"
    raise ValueError(
        f"The number of nodes is unknown: {where} has the attributes {sorted(column)}, and none of them is known to "
        f"belong to nodes. Set num_nodes or pass levels={{name: 'node'}}.{pair}"
    )


def _refuse_more_rows(guess: Tensor, columns: Sequence[JoinedColumn]) -> None:
    """Warn that a count by edges misses the last nodes without edges; raise if an attribute shows more nodes."""
    for column in columns:
        rows = None if column.slices is None else column.slices.diff()
        if rows is not None and bool((rows >= guess).all()) and bool((rows > guess).any()):
            graph = _first(rows > guess)
            raise ValueError(
                f"The number of nodes is unknown: edges lead to {int(guess[graph])} nodes of graph {graph}, which has "
                f"{int(rows[graph])} rows in {column.name!r}. Set num_nodes, or pass "
                f"levels={{{column.name!r}: 'node'}}."
            )
    warnings.warn(
        "Nodes are counted by edges alone, so the last nodes are lost if they have no edges. Set num_nodes.",
        stacklevel=8,
    )


def _count_edges(columns: Sequence[JoinedColumn], num_graphs: int) -> Tensor:
    """Count the edges of each graph by attributes of edges; without such attributes there are none, [num_graphs]."""
    column = {column.name: column for column in columns}
    for name in [n for n in names.COUNT_EDGES if n in column] + [n for n in column if "edge" in n]:
        if (slices := column[name].slices) is not None:
            return slices.diff()
    return torch.zeros(num_graphs, dtype=torch.int64)


def _attribute(
    key: StoreKey, column: JoinedColumn, given: Level | Axis | Guess | None, row_pointers: dict[Axis, Tensor]
) -> Attribute:
    values, slices = column.values, column.slices
    if not isinstance(values, Tensor) or slices is None:
        return Attribute(store=key, name=column.name, axis=GRAPHS, values=values)
    axis, doubt = axis_of(key, column.name, given, slices, row_pointers)
    doubt = None if column.is_number else doubt
    increments = _increments(key, column, values, slices, row_pointers)
    if increments is not None:
        increments = _per_outer_row(column.name, increments, values, column.dim)
        values = values if values.dtype in (torch.int32, torch.int64) else values.long()  # sums of a batch need room
    return Attribute(
        store=key, name=column.name, axis=axis, values=values, dim=column.dim, increments=increments, doubt=doubt
    )


def axis_of(
    key: StoreKey, name: str, given: Level | Axis | Guess | None, slices: Tensor, row_pointers: dict[Axis, Tensor]
) -> tuple[Axis, Level | None]:
    """Return the axis of an attribute and a second possible level; a new axis gets a row pointer."""
    rows, axes = slices.diff(), [Axis(level, key) for level in (Level.NODE, Level.EDGE)]
    counts = {axis.level: row_pointers[axis].diff() for axis in axes if axis in row_pointers}
    like = [level for level, of_level in counts.items() if torch.equal(rows, of_level)]
    inferred = infer_level(name, rows, like)
    level = given.level if isinstance(given, Guess) else given if isinstance(given, Level) else inferred
    if given == GRAPHS and inferred is not Level.GRAPH:
        odd = _first(rows != 1)
        raise ValueError(
            f"In graph {odd} {name!r} has {int(rows[odd])} rows, one per {inferred.value}; earlier graphs have one "
            f"row each, as a label has. Pass levels={{{name!r}: {inferred.value!r}}} or 'graph'."
        )
    doubt = _doubt(name, level, like) if given is None else None
    if isinstance(given, Guess) and given.doubt in like:
        doubt = given.doubt
    if level is not Level.GRAPH:
        if level not in like:
            _refuse_rows(name, level, rows, counts.get(level))
        return Axis(level, key), doubt
    if bool((rows == 1).all()):
        return GRAPHS, doubt
    # Otherwise positions with a wrong number of atoms would become an attribute of the graph.
    for feature_level, features in ((Level.NODE, names.NODE_FEATURES), (Level.EDGE, names.EDGE_FEATURES)):
        if given is None and name in features and feature_level in counts:
            _refuse_rows(name, feature_level, rows, counts[feature_level])
    axis = Axis(Level.GRAPH, key, name)
    row_pointers[axis] = slices.to(torch.int64)
    return axis, None


def _doubt(name: str, level: Level, like: Sequence[Level]) -> Level | None:
    """Return a second level that fits the numbers of rows; None if the name determines the level."""
    if level is Level.NODE and Level.EDGE in like and "node" not in name and name not in names.OF_NODES:
        return Level.EDGE
    return next(iter(like), None) if level is Level.GRAPH and name not in names.LABELS and "index" not in name else None


def infer_level(name: str, rows: Tensor, like: Sequence[Level]) -> Level:
    """Infer the level of an attribute from its name and from its numbers of rows in all graphs.

    Args:
        name: The name of the attribute.
        rows: The number of rows in each graph. int64 [num_graphs]
        like: The levels, of node and edge in this order, with the same number of rows in each graph.

    Example:
        >>> rows = torch.tensor([3, 2])
        >>> infer_level("x", rows, [Level.NODE]), infer_level("y", torch.tensor([1, 1]), [])
        (<Level.NODE: 'node'>, <Level.GRAPH: 'graph'>)
    """
    if name in names.OF_STRUCTURES:
        return Level.GRAPH
    if Level.EDGE in like and ("edge" in name or name == "e_id"):
        return Level.EDGE
    if Level.NODE in like and ("node" in name or name in names.OF_NODES):
        return Level.NODE
    # All graphs count: a label of five tasks must not become a node attribute because one graph has five nodes.
    return Level.GRAPH if bool((rows == 1).all()) else next(iter(like), Level.GRAPH)


def _first(graphs: Tensor) -> int:
    """Return the first marked graph."""
    return int(graphs.to(torch.int8).argmax())


def _refuse_rows(name: str, level: Level, rows: Tensor, expected: Tensor | None) -> None:
    if expected is None:
        raise ValueError(f"levels says {name!r}: {level.value!r}, but its store has no {level.value}s. Pass 'graph'.")
    odd = _first(rows != expected)
    raise ValueError(
        f"Graph {odd} has {int(rows[odd])} rows in {name!r} and {int(expected[odd])} {level.value}s. Correct the "
        f"attribute, or state its level: levels={{{name!r}: 'graph'}} if it belongs to the graph."
    )


def _increments(
    key: StoreKey, column: JoinedColumn, values: Tensor, slices: Tensor, row_pointers: dict[Axis, Tensor]
) -> Tensor | None:
    """Return the offset that each graph adds to later graphs of a batch, by the class's own `__inc__` or PyG's.

    Raises:
        ValueError: the class's own `__inc__` adds to fractions, or adds fractions.
    """
    own, name = column.increments, column.name
    # As in PyG: the largest number plus one.
    if own is None and "batch" in name and not column.is_number and _is_whole(values):
        rows = values.movedim(column.dim, 0).flatten(1) if values.dim() > 1 else values[:, None]
        return _segment_max(rows.amax(1) if rows.numel() else rows.new_zeros(len(rows)), slices) + 1
    if own is None:
        return _of_nodes(key, name, row_pointers) if _is_whole(values) else None
    if _is_whole(own) and _is_whole(values):
        return own if bool(own.any()) else None
    if not bool(own.any()) or (_is_whole(own) and ("batch" in name or "index" in name or name == "face")):
        return None  # PyG increments by the name alone
    raise ValueError(
        f"__inc__ of {name!r} adds {own.dtype} to {values.dtype}; a batch adds whole numbers to whole numbers. Make "
        "both int64, or let it return 0 and add to the values of the batch."
    )


def _is_whole(tensor: Tensor) -> bool:
    """Check whether a tensor has integers; other values are no index."""
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype is torch.bool)


def _of_nodes(key: StoreKey, name: str, row_pointers: dict[Axis, Tensor]) -> Tensor | None:
    """Return the nodes of each graph, which PyG's own `__inc__` adds to an index."""
    if isinstance(key, tuple) and "index" in name:
        return torch.stack([row_pointers[end].diff() for end in ends_of(Axis(Level.EDGE, key))], dim=1)[:, :, None]
    nodes = row_pointers.get(Axis(Level.NODE, None)) if key is None else None  # none in a heterogeneous graph
    return nodes.diff() if nodes is not None and ("index" in name or name == "face") else None


def _per_outer_row(name: str, increments: Tensor, values: Tensor, dim: int) -> Tensor:
    """Return increments as one number per row before dimension `dim`, [num_graphs, 1 or outer]."""
    shape = increments.shape[1:]
    if increments[0].numel() == 1:
        return increments.reshape(-1, 1).to(torch.int64)
    lead = (1,) * (values.dim() - len(shape)) + tuple(shape)
    if any(size != 1 for size in lead[dim:]):
        raise ValueError(
            f"__inc__ of {name!r} returns shape {tuple(shape)}, which varies along or behind the concatenated "
            f"dimension {dim}. Return a number or a tensor that varies only before it."
        )
    spread = increments.reshape(-1, *lead[:dim]).expand(-1, *values.shape[:dim])
    return spread.reshape(len(increments), -1).to(torch.int64)


def _segment_max(values: Tensor, slices: Tensor) -> Tensor:
    """Return the largest value of each graph, -1 for a graph without values, [num_graphs]."""
    graph = torch.repeat_interleave(torch.arange(slices.numel() - 1), slices.diff())
    start = torch.full((slices.numel() - 1,), -1, dtype=torch.int64)
    return start.scatter_reduce(0, graph, values.to(torch.int64), reduce="amax")
