"""The slow reference of fixed-size batches, made from PyG's batches, for every way of filling a batch."""

import copy
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data, HeteroData

from popgeo.data import FixedSizeOptions

INDICES = {"edge_index", "edge_label_index", "face", "pair_index", "root_index", "group_batch"}


class Rich(Data):
    """A graph class with its own rules for joining and shifting some attributes."""

    def __cat_dim__(self, key, value, *args, **kwargs):
        return {"wide": 1, "image": None}.get(key, super().__cat_dim__(key, value, *args, **kwargs))

    def __inc__(self, key, value, *args, **kwargs):
        if key == "pair_index":
            return torch.tensor([[self.num_nodes], [7]])
        if key == "group_batch" and not len(value):
            return 0  # PyG would compute the maximum of an empty tensor
        return super().__inc__(key, value, *args, **kwargs)


RICH_LEVELS = {
    **dict.fromkeys(("x", "z", "train_mask", "wide", "group_batch"), "node"),
    **dict.fromkeys(("edge_index", "edge_attr"), "edge"),
    **dict.fromkeys(("y", "tasks", "charge", "weight", "image", "root_index"), "graph"),
    **dict.fromkeys(("face", "pair_index", "edge_label_index", "rings"), "rows"),
}


def rich_graph(num_nodes: int, num_edges: int, seed: int, index_dtype: torch.dtype = torch.int64) -> Rich:
    """Return a graph with every kind of attribute; a graph without nodes has no edges."""
    random = torch.Generator().manual_seed(seed)
    num_edges = num_edges if num_nodes else 0

    def numbers(below: int, *shape: int) -> Tensor:
        return torch.randint(max(1, below), shape, generator=random)

    def some() -> int:
        return int(numbers(4)) if num_nodes else 0

    return Rich(
        x=torch.rand(num_nodes, 3, generator=random),
        z=numbers(90, num_nodes),
        train_mask=numbers(2, num_nodes).bool(),
        wide=torch.rand(2, num_nodes, 3, generator=random, dtype=torch.float64),
        group_batch=numbers(3, num_nodes),
        edge_index=numbers(num_nodes, 2, num_edges).to(index_dtype),
        edge_attr=numbers(9, num_edges, 2).to(torch.int16),
        y=torch.rand(1, 4, generator=random),
        tasks=torch.rand(3, 2, generator=random).half(),
        charge=seed,
        weight=torch.tensor(0.5 + seed),
        image=torch.rand(2, 2, generator=random),
        root_index=torch.tensor([num_nodes - 1]),
        face=numbers(num_nodes, 3, some()),
        pair_index=numbers(num_nodes, 2, int(numbers(4))),
        edge_label_index=numbers(num_nodes, 2, some()),
        rings=torch.rand(int(numbers(4)), generator=random),
        name=f"graph {seed}",
    )


def plain_batch(
    graphs: Sequence[Data | HeteroData],
    options: FixedSizeOptions,
    levels: Mapping[str, str],
    *,
    follow_batch: Collection[str] = (),
    index_dtype: torch.dtype = torch.int64,
    spread: bool = False,
    sort_edges: bool = False,
) -> dict[tuple[Any, str], Any]:
    """Return every tensor and list of a batch, by its store and its name.

    Args:
        graphs: Real graphs.
        options: Sizes, and values of padding.
        levels: "node", "edge" or "graph" for each attribute, or "rows" if `options.num_rows` has its size.
        follow_batch: Argument of the collater.
        index_dtype: Argument of the collater.
        spread: Whether padding edges are distributed over all padding nodes.
        sort_edges: Whether edges are sorted by destination.
    """
    graphs = [_sorted(graph, levels) for graph in graphs] if sort_edges else list(graphs)
    joined = Batch.from_data_list(graphs, follow_batch=list(follow_batch))
    found: dict[tuple[Any, str], Any] = {}
    for position, store in enumerate(joined.stores):
        key, single = store._key, graphs[-1].stores[position]
        increments = joined._inc_dict if store._key is None else joined._inc_dict.get(key, {})
        for name, value in store.items():
            if isinstance(value, list):
                found[key, name] = value + value[:1] * (options.num_graphs - len(graphs))
            if name not in levels:
                continue
            level = levels[name]
            num_rows = {
                "node": _of(options.num_nodes, key),
                "edge": _of(options.num_edges, key),
                "graph": max(1, len(value) // len(graphs)) * options.num_graphs,
            }.get(level) or (options.num_rows or {}).get(name, 0)
            dim = graphs[-1].__cat_dim__(name, single[name], single) if isinstance(single[name], Tensor) else 0
            dim = 0 if dim is None else dim % value.dim()
            padding = value.new_empty(*value.shape[:dim], num_rows - value.shape[dim], *value.shape[dim + 1 :])
            if name in INDICES:
                step = torch.as_tensor(graphs[-1].__inc__(name, single[name], single))
                after = torch.as_tensor(increments[name][-1]) + step
                padding.copy_(after.view(*after.shape, *[1] * (padding.dim() - after.dim())))
            else:
                number = {
                    "node": options.node_pad_value,
                    "edge": options.edge_pad_value,
                    "graph": options.graph_pad_value,
                    "rows": options.graph_pad_value,
                }[level]
                padding.fill_(0 if name == "train_mask" else number or 0)
            if name == "edge_index" and spread:
                for end, first in enumerate(after.flatten().tolist() * 2 if after.numel() == 1 else after.flatten()):
                    free = _of(options.num_nodes, key[2 * end] if isinstance(key, tuple) else None) - int(first)
                    dealt = [int(first) + edge * free // padding.shape[1] for edge in range(padding.shape[1])]
                    padding[end] = torch.tensor(dealt)
            whole = torch.cat([value, padding], dim=dim)
            is_long = name in INDICES and whole.dtype == torch.int64
            found[key, name] = whole.to(index_dtype) if is_long else whole
            if name in follow_batch:
                fixed = num_rows // options.num_graphs if level == "graph" else None
                owners = _owners(store, f"{name}_", options.num_graphs, num_rows, fixed)
                found |= {(key, of): rows.to(index_dtype) for of, rows in owners.items()}
    for store in joined.node_stores:
        key, num_nodes = store._key, _of(options.num_nodes, store._key)
        owners = _owners(store, "", options.num_graphs, num_nodes, None)
        found |= {(key, of): rows.to(index_dtype) for of, rows in owners.items()}
        found[key, "nodes_mask"] = torch.arange(num_nodes) < store.num_nodes
    for store in joined.edge_stores:
        key, num_edges = store._key, _of(options.num_edges, store._key)
        found[key, "edges_mask"] = torch.arange(num_edges) < store.num_edges
        if sort_edges:
            end = key[2] if isinstance(key, tuple) else None
            counts = torch.bincount(found[key, "edge_index"][1], minlength=_of(options.num_nodes, end))
            found[key, "rowptr"] = torch.tensor([0, *counts.cumsum(0).tolist()]).to(index_dtype)
    found[None, "graphs_mask"] = torch.arange(options.num_graphs) < len(graphs)
    return found


def _of(sizes: Any, key: Any) -> int:
    return sizes.get(key, 0) if isinstance(sizes, dict) else sizes


def _owners(store: Any, prefix: str, num_graphs: int, num_rows: int, fixed: int | None) -> dict[str, Tensor]:
    """Return the assignment vector and the pointer of an attribute; padding graphs also have `fixed` rows."""
    owner, pointer = store[f"{prefix}batch"].tolist(), store[f"{prefix}ptr"].tolist()
    if fixed is not None:
        owner = [graph for graph in range(num_graphs) for _ in range(fixed)]
        pointer = [graph * fixed for graph in range(num_graphs + 1)]
    owner = owner + [len(pointer) - 1] * (num_rows - len(owner))
    pointer = pointer + [num_rows] * (num_graphs + 1 - len(pointer))
    return {f"{prefix}batch": torch.tensor(owner), f"{prefix}ptr": torch.tensor(pointer)}


def _sorted(graph: Any, levels: Mapping[str, str]) -> Any:
    graph = copy.copy(graph)
    for store in graph.edge_stores:
        order = sorted(range(store.edge_index.shape[1]), key=store.edge_index[1].tolist().__getitem__)
        for name, value in list(store.items()):
            if levels.get(name) == "edge":
                store[name] = value[:, order] if name == "edge_index" else value[order]
    return graph
