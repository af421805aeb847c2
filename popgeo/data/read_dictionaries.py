"""Reads graphs that are dictionaries of tensors, as programs without PyG have them."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from popgeo.data.axes import Levels
from popgeo.data.columns import Columns
from popgeo.data.join_values import join_store
from popgeo.data.pyg_counts import columns_of


def read_dictionaries(graphs: Sequence[dict[str, Any]], excluded: set[str], levels: Levels) -> Columns:
    """The attributes of all graphs, each joined as PyG's `Data` would join it.

    Args:
        graphs: For each graph its tensors by name, such as `{"z": ..., "pos": ..., "edge_index": ...}`.
        excluded: Names to leave out.
        levels: What an attribute's rows belong to; the others are inferred.

    Raises:
        ValueError: graphs have different names, or an attribute cannot be joined.
    """
    columns, stated = join_store(graphs, excluded, _cat_dim)
    counts = {} if stated is None or "num_nodes" in excluded else {None: stated}
    return columns_of(dict, (None,), (None,), {None: columns}, counts, levels, len(graphs))


def _cat_dim(name: str, value: Tensor) -> int:
    """As `Data.__cat_dim__` says."""
    return -1 if "index" in name or name == "face" else 0
