"""Feature and graph stores as users write them: with one layout, counted requests, and failures on demand."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, EdgeAttr, FeatureStore, GraphStore, HeteroData, TensorAttr


class CountingFeatures(FeatureStore):
    """Features in memory; `requests` has every request, and the next `failures` calls fail."""

    def __init__(self, knows_sizes: bool = True) -> None:
        super().__init__()
        self.tensors: dict[tuple[Any, str], Tensor] = {}
        self.requests: list[tuple[Any, str, Tensor | None]] = []
        self.knows_sizes, self.failures, self.calls = knows_sizes, 0, 0

    def _put_tensor(self, tensor: Any, attr: TensorAttr) -> bool:
        self.tensors[attr.group_name, attr.attr_name] = tensor
        return True

    def _get_tensor(self, attr: TensorAttr) -> Any:
        self.requests.append((attr.group_name, attr.attr_name, attr.index))
        tensor = self.tensors[attr.group_name, attr.attr_name]
        return tensor if attr.index is None else tensor[attr.index]

    def _multi_get_tensor(self, attrs: Sequence[TensorAttr]) -> list[Any]:
        self.calls += 1
        if self.failures:
            self.failures -= 1
            raise ConnectionResetError("the server is not available")
        return super()._multi_get_tensor(attrs)

    def _remove_tensor(self, attr: TensorAttr) -> bool:
        raise NotImplementedError

    def _get_tensor_size(self, attr: TensorAttr) -> Any:
        return tuple(self.tensors[attr.group_name, attr.attr_name].shape) if self.knows_sizes else None

    def get_all_tensor_attrs(self) -> list[TensorAttr]:
        return [TensorAttr(*key) for key in self.tensors]


class EdgesAsPut(GraphStore):
    """Edges in their original layouts."""

    def __init__(self) -> None:
        super().__init__()
        self.edges: list[tuple[EdgeAttr, Any]] = []

    def _put_edge_index(self, edge_index: Any, edge_attr: EdgeAttr) -> bool:
        self.edges.append((edge_attr, edge_index))
        return True

    def _get_edge_index(self, edge_attr: EdgeAttr) -> Any:
        key = edge_attr.edge_type, edge_attr.layout
        return next((edges for attr, edges in self.edges if (attr.edge_type, attr.layout) == key), None)

    def _remove_edge_index(self, edge_attr: EdgeAttr) -> bool:
        raise NotImplementedError

    def get_all_edge_attrs(self) -> list[EdgeAttr]:
        return [attr for attr, _ in self.edges]


def in_stores(
    data: Data | HeteroData, layout: str = "coo", knows_sizes: bool = True
) -> tuple[Data | HeteroData, CountingFeatures, EdgesAsPut]:
    """Return the graph with its edges in the order of a layout, and its features and edges in stores."""
    data, features, graph = data.clone(), CountingFeatures(knows_sizes), EdgesAsPut()
    for store in data.stores:
        key = store._key
        if "edge_index" in store:
            ends = (data, data) if key is None else (data[key[0]], data[key[2]])
            sizes = (ends[0].num_nodes, ends[1].num_nodes)
            if layout != "coo":
                order = store.edge_index[0 if layout == "csr" else 1].argsort(stable=True)
                store.edge_index = store.edge_index[:, order]
                if "edge_attr" in store:
                    store.edge_attr = store.edge_attr[order]
            row, col = store.edge_index
            counts = {"csr": (row, sizes[0]), "csc": (col, sizes[1])}.get(layout)
            if counts is not None:
                pointer = torch.cat(
                    [torch.zeros(1, dtype=torch.int64), counts[0].bincount(minlength=counts[1]).cumsum(0)]
                )
                row, col = (pointer, col) if layout == "csr" else (row, pointer)
            graph.put_edge_index((row, col), edge_type=key, layout=layout, size=sizes if knows_sizes else None)
        for name, values in store.items():
            if name != "edge_index":
                features.put_tensor(values, group_name=key, attr_name=name, index=None)
    return data, features, graph
