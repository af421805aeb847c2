"""One graph of a flat dataset as PyG's own object."""

from typing import Any

from torch_geometric.data import Data, HeteroData

from popgeo.data.axes import Axis, Level
from popgeo.data.columns import Columns


def graph_at(columns: Columns, graph: int) -> Data | HeteroData:
    """A stored graph as `Data` or `HeteroData`, with tensors of its own."""
    data = columns.data_cls()
    stores: dict[Any, Any] = {key: data[key] for key in (*columns.node_types, *columns.edge_types) if key is not None}
    for attribute in columns.attributes:
        store = stores.get(attribute.store, data)
        if attribute.is_tensor:
            start, stop = columns.row_pointers[attribute.axis][graph : graph + 2].tolist()
            value = attribute.tensor.narrow(attribute.dim, start, stop - start).clone()
            if data.__cat_dim__(attribute.name, value, store) is None:  # graphs are stacked, not joined
                value = value.squeeze(0)
        else:
            value = attribute.values[graph]
        store[attribute.name] = value
    for key in columns.states_num_nodes:
        start, stop = columns.row_pointers[Axis(Level.NODE, key)][graph : graph + 2].tolist()
        stores.get(key, data).num_nodes = stop - start
    return data
