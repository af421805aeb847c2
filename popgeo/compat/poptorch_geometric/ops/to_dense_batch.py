"""PyG's `to_dense_batch`, whose shapes are fixed once both sizes are given."""

from torch_geometric.utils import to_dense_batch

__all__ = ["to_dense_batch"]
