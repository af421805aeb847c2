"""Layers of PyG in forms that do not read data, and aggregations."""

from typing import Any

from torch import Tensor
from torch_geometric import nn
from torch_geometric.utils import to_dense_batch as to_dense_batch

from popgeo.capture import static_layers


def assert_sorted_index(aggregation: Any, index: Any) -> None:
    """Do nothing: indices are sorted once, before a batch is captured."""


class Aggregation:
    """Holder of PyG's functions under the name of their class."""

    assert_sorted_index = staticmethod(assert_sorted_index)
    to_dense_batch = staticmethod(to_dense_batch)


class ClusterGCNConv(nn.ClusterGCNConv):
    """PyG's layer with static shapes: existing self-loops stay, with weight 0, next to added ones.

    Example:
        >>> import torch
        >>> layer, edges = ClusterGCNConv(2, 3), torch.tensor([[0, 1, 1], [1, 0, 1]])
        >>> layer(torch.ones(2, 2), edges).shape
        torch.Size([2, 3])
    """

    def forward(self, x: Tensor, edge_index: Any) -> Tensor:
        """Return features of nodes [num_nodes, out_channels]."""
        # PyG parses this comment:
        # propagate_type: (x: Tensor, edge_weight: OptTensor)
        return static_layers.cluster_gcn_conv(nn.ClusterGCNConv.forward, self, x, edge_index)


class HeteroLinear(nn.HeteroLinear):
    """PyG's layer with static shapes: each row passes through the weights of all types, and its own type is kept.

    Example:
        >>> import torch
        >>> HeteroLinear(2, 3, num_types=2)(torch.ones(4, 2), torch.tensor([0, 1, 1, 0])).shape
        torch.Size([4, 3])
    """

    def forward(self, x: Tensor, type_vec: Tensor) -> Tensor:
        """Return features of rows [num_rows, out_channels]."""
        return static_layers.hetero_linear(nn.HeteroLinear.forward, self, x, type_vec)


class InstanceNorm(nn.InstanceNorm):
    """PyG's layer with static shapes: without a number of graphs it has as many graph slots as nodes.

    Example:
        >>> import torch
        >>> InstanceNorm(1)(torch.tensor([[1.0], [3.0]]), torch.zeros(2, dtype=torch.long)).round()
        tensor([[-1.],
                [ 1.]])
    """

    def forward(self, x: Tensor, batch: Tensor | None = None, batch_size: int | None = None) -> Tensor:
        """Return features of nodes [num_nodes, channels]."""
        return static_layers.instance_norm(nn.InstanceNorm.forward, self, x, batch, batch_size)


class MFConv(nn.MFConv):
    """PyG's layer with static shapes: each node passes through the weights of all degrees, and its own is kept.

    Example:
        >>> import torch
        >>> MFConv(2, 3)(torch.ones(2, 2), torch.tensor([[0, 1], [1, 0]])).shape
        torch.Size([2, 3])
    """

    def forward(self, x: Any, edge_index: Any, size: Any = None) -> Tensor:
        """Return features of nodes [num_nodes, out_channels]."""
        # PyG parses this comment:
        # propagate_type: (x: OptPairTensor)
        return static_layers.mf_conv(nn.MFConv.forward, self, x, edge_index, size)
