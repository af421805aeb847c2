"""GCN: graph convolutions with symmetrically normalised edges (arXiv:1609.02907)."""

from dataclasses import replace

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from popgeo.nn.models.gnn import GNN, Activation, BatchIndex, StackChoices
from popgeo.ops.gather_scatter import rows_of_ends


class GCN(GNN):
    """A graph convolutional network: D^-1/2 (A + I) D^-1/2 X Theta + b in each layer, eq. 2 of arXiv:1609.02907.

    Self-loops are added by arithmetic instead of edges, so the number of edges does not depend on the graph. A node
    without a self-loop gets a self-loop of weight 1; several self-loops of a node become one of their mean weight.
    Checkpoints of `torch_geometric.nn.GCN` load without changes.

    Args:
        in_channels: Features of a node.
        hidden_channels: Features between layers.
        num_layers: Convolutions.
        out_channels: Features of the result. Default: `hidden_channels`.
        dropout: Share of features zeroed after each hidden layer in training.
        act: Activation, by its name in `torch.nn.functional` or as a function. Default: `"relu"`.
        act_first: Whether the activation comes before the norm. Default: False.
        add_self_loops: Whether each node also receives its own features.
        **kwargs: `norm`, `jk` and `readout`; see `GNN`.

    Example:
        >>> model = GCN(in_channels=3, hidden_channels=8, num_layers=2, out_channels=2)
        >>> model(torch.randn(4, 3), torch.tensor([[0, 1], [1, 0]])).shape
        torch.Size([4, 2])
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        num_layers: int,
        out_channels: int | None = None,
        dropout: float = 0.0,
        act: Activation = "relu",
        act_first: bool = False,
        *,
        add_self_loops: bool = True,
        **kwargs: Unpack[StackChoices],
    ) -> None:
        super().__init__(in_channels, hidden_channels, num_layers, out_channels, dropout, act, act_first, **kwargs)
        self.add_self_loops = add_self_loops

    def init_conv(self, in_channels: int, out_channels: int) -> nn.Module:
        """Return a `GCNConv`."""
        return GCNConv(in_channels, out_channels)

    def prepare(self, x: Tensor, batched: BatchIndex) -> BatchIndex:
        """Return the batch with the normalised weights of the edges and, after them, of the nodes' self-loops."""
        return normalized(batched, self.add_self_loops, x.dtype)


class GCNConv(nn.Module):
    """One layer of `GCN`, for edges with the weights that `normalized` returns."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.lin = nn.Linear(in_channels, out_channels, bias=False)
        self.bias = nn.Parameter(torch.zeros(out_channels))
        nn.init.xavier_uniform_(self.lin.weight)

    def forward(self, x: Tensor, batched: BatchIndex) -> Tensor:
        """Return the convolved features: [num_nodes, in_channels] -> [num_nodes, out_channels]."""
        assert batched.edge_weight is not None, "GCN.prepare makes the weights"
        x = self.lin(x)
        edges, loops = batched.edge_weight.unsqueeze(1).split([batched.src.size(0), batched.num_nodes])
        return batched.at_destination(batched.at_source(x) * edges) + loops * x + self.bias


def normalized(batched: BatchIndex, add_self_loops: bool, dtype: torch.dtype) -> BatchIndex:
    """Return the batch with the weights w_ji / sqrt(d_j d_i) of the edges and, after them, of the self-loops.

    The weights have shape [num_edges + num_nodes]. A node of degree 0 has weights of 0 instead of infinite weights.
    """
    src, dst, num_nodes = batched.src, batched.dst, batched.num_nodes
    weight = batched.edge_weight
    if weight is None:
        weight = torch.ones(src.size(0), dtype=dtype, device=src.device)
    loops = weight.new_zeros(num_nodes)
    if add_self_loops:
        is_loop = src == dst
        count = batched.at_destination(is_loop.to(weight.dtype))
        loops = batched.at_destination(torch.where(is_loop, weight, 0.0))
        loops = torch.where(count > 0, loops / count.clamp(min=1), 1.0)
        weight = torch.where(is_loop, 0.0, weight)
    degree = batched.at_destination(weight) + loops
    d = torch.where(degree > 0, degree, 1.0).rsqrt()
    d = torch.where(degree > 0, d, 0.0)
    weight = rows_of_ends(d, src) * weight * rows_of_ends(d, dst)
    return replace(batched, edge_weight=torch.cat([weight, d * loops * d]))
