"""Graphs in PyG's `(feature_store, graph_store)`, opened as graph objects whose features stay in the store."""

import copy
from collections import defaultdict
from collections.abc import Collection
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, EdgeAttr, FeatureStore, GraphStore, HeteroData
from torch_geometric.data.graph_store import EdgeLayout

from popgeo.data.attribute_names import OF_EDGES, OF_NODES
from popgeo.data.axes import Axis, Level, Levels, StoreKey, ends_of
from popgeo.loader.large.feature_rows import FeatureRows, Name, patiently

_PREFERRED = [EdgeLayout.COO, EdgeLayout.CSC, EdgeLayout.CSR]
Sizes = dict[Axis, dict[str, int]]
"""For each node or edge type: stated numbers of nodes or edges, by their source."""


def rows_of(data: Any) -> FeatureRows | None:
    """Return a reader of the graph's feature store; None if the graph is not a pair of stores."""
    is_pair = isinstance(data, tuple) and len(data) == 2 and isinstance(data[0], FeatureStore)
    return FeatureRows.listed(data[0]) if is_pair and isinstance(data[1], GraphStore) else None


def open_stores(
    rows: FeatureRows, graph_store: GraphStore, excluded: Collection[str], levels: Levels, whole: Collection[str | None]
) -> tuple[Data | HeteroData, dict[Any, Level], dict[Name, Tensor]]:
    """Open a graph in stores as a PyG graph. Edges are read, and features stay in the store.

    Edges keep the order of the store; if it has several layouts, of the first of COO, CSC and CSR. If no store states
    the number of nodes, it is one more than the largest node of any edge.

    Args:
        rows: Rows of the feature store.
        graph_store: The edges.
        excluded: Attributes to leave out.
        levels: Level of each attribute (node, edge or graph), if it is known.
        whole: Attributes to read as a whole, such as times.

    Returns:
        The graph, in which features that stay in the store have a width of 0; the level of each attribute; and, for
        features that stay in the store, the first row, expanded to all rows.

    Raises:
        ConnectionError: a store does not answer.
        ValueError: the stores contradict each other or themselves.
    """
    edges, sizes = _edges_of(graph_store)
    data: Any = Data() if None in edges else HeteroData()
    axes: dict[Name, Axis] = {}
    shown: dict[Name, Tensor] = {}
    names = [name for name in rows.attributes if name[1] not in excluded]
    for name in sorted(
        names, key=lambda name: name[1] not in OF_NODES
    ):  # node attributes first, since they state the number of nodes
        said = rows.said_size(name)
        axes[name] = _axis_of(name, said, levels.get(name) or levels.get(name[1]), edges, sizes)
        if said is not None:
            sizes[axes[name]][f"the feature store, of {name[1]!r},"] = said
    counts = {axis: _agreed(axis, said) for axis, said in sizes.items()}
    for key, edge_index in edges.items():
        place = data if key is None else data[key]
        place.edge_index = edge_index  # the order of the graph store decides the random draws
    for name in names:
        axis, count = axes[name], counts.get(axes[name], 0)
        place = data if axis.store is None else data[axis.store]
        if name[1] in whole:
            place[name[1]] = rows.ask({name: None}, {})[name]
            _agreed(axis, {"the graph": count, f"all of {name[1]!r}": len(place[name[1]])})
        else:
            first = rows.first_row(name, count)
            shown[name] = first.expand(count, *first.shape[1:])
            place[name[1]] = first.new_empty(count, 0)
    for axis in [axis for axis in counts if axis.level is Level.NODE and axis not in axes.values()]:
        (data if axis.store is None else data[axis.store]).num_nodes = counts[axis]
    return data, {name: axis.level for name, axis in axes.items()}, shown


def _edges_of(graph_store: GraphStore) -> tuple[dict[StoreKey, Tensor], Sizes]:
    """Return the edges of each type [2, num_edges], and the sizes that the store reports."""
    listed: dict[StoreKey, list[EdgeAttr]] = defaultdict(list)
    for attr in graph_store.get_all_edge_attrs():
        listed[attr.edge_type].append(copy.copy(attr))
    if not listed or (None in listed and len(listed) > 1):
        raise ValueError(f"{graph_store} lists edges of types {list(listed)}; give all a type, or use one without.")
    edges: dict[StoreKey, Tensor] = {}
    sizes: Sizes = defaultdict(dict)
    for key, attrs in listed.items():
        attr = min(attrs, key=lambda attr: _PREFERRED.index(attr.layout))
        found = patiently(graph_store, f"edges of {key}", partial(graph_store.get_edge_index, attr))
        edges[key] = _in_pairs(key, attr.layout, found)
        sizes[Axis(Level.EDGE, key)]["the graph store"] = edges[key].shape[1]
        for end, ids, size in zip(ends_of(Axis(Level.EDGE, key)), edges[key], attr.size or (None, None), strict=True):
            if size is not None:
                sizes[end][f"the graph store, of {key},"] = int(size)
            sizes[end]["edges"] = max(sizes[end].get("edges", 0), int(ids.max()) + 1 if len(ids) else 0)
    return edges, sizes


def _in_pairs(key: StoreKey, layout: EdgeLayout, found: Any) -> Tensor:
    """Return source and destination of each edge, in the order of the store, [2, num_edges]."""
    row, col = (torch.as_tensor(part) for part in found)
    if any(part.is_floating_point() for part in (row, col) if len(part)):
        raise ValueError(f"The edges of {key} are {row.dtype} and {col.dtype}; nodes have whole numbers.")
    if layout is not EdgeLayout.COO:
        pointer, other = (row, col) if layout is EdgeLayout.CSR else (col, row)
        if not len(pointer) or pointer[0] != 0 or pointer[-1] != len(other) or bool((pointer.diff() < 0).any()):
            raise ValueError(f"The {layout.name} pointer of {key} must ascend from 0 to {len(other)}, its edges.")
        ids = torch.repeat_interleave(torch.arange(len(pointer) - 1), pointer.diff())
        row, col = (ids, other) if layout is EdgeLayout.CSR else (other, ids)
    if row.shape != col.shape:
        raise ValueError(f"The edges of {key} have {len(row)} sources and {len(col)} destinations.")
    return torch.stack([row.long(), col.long()])


def _axis_of(name: Name, said: int | None, level: Any, edges: dict[StoreKey, Tensor], sizes: Sizes) -> Axis:
    """Return the axis of an attribute's rows. In a graph without types the name or the size decides."""
    key = name[0]
    if None not in edges:
        if key is None or (isinstance(key, tuple) and key not in edges):
            raise ValueError(f"The feature store has {name[1]!r} of {key!r}; edges are of types {list(edges)}.")
        return Axis(Level.EDGE if isinstance(key, tuple) else Level.NODE, key)
    if key is not None:
        raise ValueError(f"The feature store has {name[1]!r} of {key!r}, but the graph store's edges have no type.")
    if level is not None:
        return Axis(Level(level), None)
    if name[1] in OF_EDGES or "edge" in name[1]:
        return Axis(Level.EDGE, None)
    known = {count for who, count in sizes[Axis(Level.NODE, None)].items() if who != "edges"}
    if name[1] in OF_NODES or said in known or said != edges[None].shape[1]:
        return Axis(Level.NODE, None)
    if known:
        return Axis(Level.EDGE, None)
    raise ValueError(
        f"{name[1]!r} has {said} rows, the same number as there are edges; the number of nodes is unknown. Pass "
        f"levels={{{name[1]!r}: 'node'}} or 'edge'."
    )


def _agreed(axis: Axis, said: dict[str, int]) -> int:
    """Return the number of nodes or edges after a check that all sources agree. Default: the number from the edges."""
    least, known = said.pop("edges", 0), set(said.values())
    if len(known) > 1 or any(count < least for count in known):
        told = "; ".join(f"{who} says {count:,}" for who, count in said.items())
        end = f"; edges lead to number {least - 1:,}" if least else ""
        raise ValueError(f"How many {axis.label} are there? {told}{end}. Correct it in the store.")
    return next(iter(known), least)
