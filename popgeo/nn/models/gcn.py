"""GCN: graph convolutions with symmetrically normalised edges (arXiv:1609.02907)."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from popgeo.nn.models.gnn import GNN, BatchIndex
from popgeo.ops import scatter


class GCN(GNN):
    """D^-1/2 (A + I) D^-1/2 X Theta + b in each layer, eq. 2 of arXiv:1609.02907.

    Self-loops are added by arithmetic instead of edges, so the number of edges does not depend on the graph: a
    node without a self-loop gets one of weight 1, and one it has keeps its weight; several are one of their mean
    weight. Checkpoints of `torch_geometric.nn.GCN` load as they are. Arguments as in `GNN`, and:

    Args:
        add_self_loops: Let each node see itself.

    Example:
        >>> model = GCN(in_channels=3, hidden_channels=8, num_layers=2, out_channels=2)
        >>> model(torch.randn(4, 3), torch.tensor([[0, 1], [1, 0]])).shape
        torch.Size([4, 2])
    """

    def __init__(self, *args: Any, add_self_loops: bool = True, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.add_self_loops = add_self_loops

    def init_conv(self, in_channels: int, out_channels: int) -> nn.Module:
        return GCNConv(in_channels, out_channels)

    def prepare(self, x: Tensor, batched: BatchIndex) -> BatchIndex:
        """The normalised weight of each edge, and behind them that of each node's self-loop."""
        return normalized(batched, self.add_self_loops, x.dtype)


class GCNConv(nn.Module):
    """One layer of `GCN`, for edges whose weights `normalized` has made."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.lin = nn.Linear(in_channels, out_channels, bias=False)
        self.bias = nn.Parameter(torch.zeros(out_channels))
        nn.init.xavier_uniform_(self.lin.weight)

    def forward(self, x: Tensor, batched: BatchIndex) -> Tensor:
        """[num_nodes, in_channels] -> [num_nodes, out_channels]"""
        assert batched.edge_weight is not None, "GCN.prepare makes the weights"
        x = self.lin(x)
        edges, loops = batched.edge_weight.unsqueeze(1).split([batched.src.size(0), batched.num_nodes])
        return batched.at_destination(batched.at_source(x) * edges) + loops * x + self.bias


def normalized(batched: BatchIndex, add_self_loops: bool, dtype: torch.dtype) -> BatchIndex:
    """With w_ji / sqrt(d_j d_i) of each edge as weight, and behind those the self-loops': [num_edges + num_nodes].

    A node of degree 0 has weights 0, not infinite ones.
    """
    src, dst, num_nodes = batched.src, batched.dst, batched.num_nodes
    weight = batched.edge_weight
    if weight is None:
        weight = torch.ones(src.size(0), dtype=dtype, device=src.device)
    loops = weight.new_zeros(num_nodes)
    if add_self_loops:
        is_loop = src == dst
        count = scatter(is_loop.to(weight.dtype), dst, dim=0, dim_size=num_nodes)
        loops = scatter(torch.where(is_loop, weight, 0.0), dst, dim=0, dim_size=num_nodes)
        loops = torch.where(count > 0, loops / count.clamp(min=1), 1.0)
        weight = torch.where(is_loop, 0.0, weight)
    degree = scatter(weight, dst, dim=0, dim_size=num_nodes) + loops
    d = torch.where(degree > 0, degree, 1.0).rsqrt()
    d = torch.where(degree > 0, d, 0.0)
    weight = d.index_select(0, src) * weight * d.index_select(0, dst)
    return replace(batched, edge_weight=torch.cat([weight, d * loops * d]))
