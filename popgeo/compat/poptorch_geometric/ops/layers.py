"""Layers of PyG that read data, in forms that do not; aggregations, which never read data."""

from typing import Any

from torch import Tensor
from torch_geometric import nn
from torch_geometric.utils import to_dense_batch as to_dense_batch

from popgeo.capture import static_layers


def assert_sorted_index(aggregation: Any, index: Any) -> None:
    """Looks at nothing: indices are sorted once, before a batch is captured."""


class Aggregation:
    """The functions under the name of the class that they belong to."""

    assert_sorted_index = staticmethod(assert_sorted_index)
    to_dense_batch = staticmethod(to_dense_batch)


class ClusterGCNConv(nn.ClusterGCNConv):
    """PyG's layer; loops that are there already stay with a weight of 0 next to those that are added.

    Example:
        >>> import torch
        >>> layer, edges = ClusterGCNConv(2, 3), torch.tensor([[0, 1, 1], [1, 0, 1]])
        >>> layer(torch.ones(2, 2), edges).shape
        torch.Size([2, 3])
    """

    def forward(self, x: Tensor, edge_index: Any) -> Tensor:
        """Features of nodes. [num_nodes, out_channels]"""
        # PyG reads what is propagated from the source of the class, in these words:
        # propagate_type: (x: Tensor, edge_weight: OptTensor)
        return static_layers.cluster_gcn_conv(nn.ClusterGCNConv.forward, self, x, edge_index)


class HeteroLinear(nn.HeteroLinear):
    """PyG's layer; each row is taken through the weights of all types, and that of its own is kept.

    Example:
        >>> import torch
        >>> HeteroLinear(2, 3, num_types=2)(torch.ones(4, 2), torch.tensor([0, 1, 1, 0])).shape
        torch.Size([4, 3])
    """

    def forward(self, x: Tensor, type_vec: Tensor) -> Tensor:
        """Features. [num_rows, out_channels]"""
        return static_layers.hetero_linear(nn.HeteroLinear.forward, self, x, type_vec)


class InstanceNorm(nn.InstanceNorm):
    """PyG's layer; without a number of graphs there are as many slots for them as nodes.

    Example:
        >>> import torch
        >>> InstanceNorm(1)(torch.tensor([[1.0], [3.0]]), torch.zeros(2, dtype=torch.long)).round()
        tensor([[-1.],
                [ 1.]])
    """

    def forward(self, x: Tensor, batch: Tensor | None = None, batch_size: int | None = None) -> Tensor:
        """Features of nodes. [num_nodes, channels]"""
        return static_layers.instance_norm(nn.InstanceNorm.forward, self, x, batch, batch_size)


class MFConv(nn.MFConv):
    """PyG's layer; each node is taken through the weights of all degrees, and the result for its own degree is kept.

    Example:
        >>> import torch
        >>> MFConv(2, 3)(torch.ones(2, 2), torch.tensor([[0, 1], [1, 0]])).shape
        torch.Size([2, 3])
    """

    def forward(self, x: Any, edge_index: Any, size: Any = None) -> Tensor:
        """Features of nodes. [num_nodes, out_channels]"""
        # PyG reads what is propagated from the source of the class, in these words:
        # propagate_type: (x: OptPairTensor)
        return static_layers.mf_conv(nn.MFConv.forward, self, x, edge_index, size)
