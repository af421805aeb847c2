"""Reads graphs that are dictionaries of tensors, as programs without PyG have them."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from popgeo.data.attribute_names import MADE_BY_BATCH
from popgeo.data.axes import Levels, StoreKey
from popgeo.data.columns import Columns
from popgeo.data.join_values import join_values, refuse_containers, stated_counts
from popgeo.data.pyg_counts import JoinedColumn, columns_of


def read_dictionaries(graphs: Sequence[dict[str, Any]], excluded: set[str], levels: Levels) -> Columns:
    """The attributes of all graphs, each joined as PyG's `Data` would join it.

    Args:
        graphs: For each graph its tensors by name, such as `{"z": ..., "pos": ..., "edge_index": ...}`.
        excluded: Names to leave out.
        levels: What an attribute's rows belong to; the others are inferred.

    Raises:
        ValueError: graphs have different names, or an attribute cannot be joined.
    """
    names = [name for name in graphs[0] if name not in excluded]
    for i, graph in enumerate(graphs):
        if odd := (set(graph) - excluded) ^ set(names):
            raise ValueError(f"Graphs 0 and {i} differ in the attributes {sorted(odd)}; all graphs need the same.")
    stated: dict[StoreKey, Tensor] = (
        {None: stated_counts([graph["num_nodes"] for graph in graphs])} if "num_nodes" in names else {}
    )
    columns = [_column(name, [graph[name] for graph in graphs]) for name in names if name not in MADE_BY_BATCH]
    return columns_of(dict, (None,), (None,), {None: columns}, stated, levels, len(graphs))


def _column(name: str, values: list[Any]) -> JoinedColumn:
    dim = -1 if "index" in name or name == "face" else 0  # as `Data.__cat_dim__` says
    joined, slices = join_values(name, values, lambda value: dim)
    if slices is None:
        refuse_containers(name, joined)
        return JoinedColumn(name=name, values=joined)
    is_number = not isinstance(values[0], Tensor)
    return JoinedColumn(name=name, values=joined, slices=slices, dim=dim % joined.dim(), is_number=is_number)
