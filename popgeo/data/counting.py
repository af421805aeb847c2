"""How many nodes and edges the graphs of a dataset have, from the attributes that PyG itself counts by."""

from typing import Any

import torch
from torch import Tensor
from torch_geometric.data.storage import BaseStorage

from popgeo.data.levels import Level


def count_nodes(store: BaseStorage, column: dict[str, tuple[Any, Tensor | None]], levels: dict[Any, Level]) -> Tensor:
    """Nodes of each graph, from the attributes that PyG itself counts by, or those stated to be a node's."""
    stated = {n: levels.get((store._key, n)) or levels.get(n) for n in column}
    known = [n for n in column if stated[n] is Level.NODE]
    known += [n for n in column if n in {"x", "feat", "pos", "node_type", "n_id"} and not stated[n]]
    known += [n for n in column if "node" in n and not stated[n]]
    for name in known:
        values, slices = column[name]
        if isinstance(values, Tensor) and slices is not None:
            return slices.diff()
    for name in ("edge_index", "face"):
        values, slices = column.get(name, (None, None))
        if isinstance(values, Tensor) and slices is not None and store._key is None:
            return segment_max(values.amax(dim=0), slices) + 1
    if "z" in column and isinstance(column["z"][1], Tensor):
        return column["z"][1].diff()
    where = "each graph" if store._key is None else f"each graph's {store._key!r}"
    raise ValueError(
        f"The number of nodes is unknown: {where} has the attributes {sorted(column)}, of which none is known to be a "
        f"node's. Set num_nodes on it or pass levels={{name: 'node'}}."
    )


def count_edges(column: dict[str, tuple[Any, Tensor | None]], num_graphs: int) -> Tensor:
    """Edges of each graph; none where no attribute says so. [num_graphs]"""
    named = ["edge_index", "edge_weight", "edge_attr", "edge_type", "e_id"]
    for name in [n for n in named if n in column] + [n for n in column if "edge" in n]:
        values, slices = column[name]
        if isinstance(values, Tensor) and slices is not None:
            return slices.diff()
    return torch.zeros(num_graphs, dtype=torch.int64)


def segment_max(values: Tensor, slices: Tensor) -> Tensor:
    """The largest value of each graph, -1 where it has none. [num_graphs]"""
    graph = torch.repeat_interleave(torch.arange(slices.numel() - 1), slices.diff())
    start = torch.full((slices.numel() - 1,), -1, dtype=torch.int64)
    return start.scatter_reduce(0, graph, values.to(torch.int64), reduce="amax")
