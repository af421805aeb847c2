"""`ClusterGCNConv` without a look at the edges."""

from typing import Any

from torch import Tensor
from torch_geometric import nn

from popgeo.capture.static_layers import cluster_gcn_conv


class ClusterGCNConv(nn.ClusterGCNConv):
    """PyG's layer; loops that are there already stay with a weight of 0 beside those that are added.

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
        return cluster_gcn_conv(nn.ClusterGCNConv.forward, self, x, edge_index)
