"""GIN, as expressive as the Weisfeiler-Lehman test (arXiv:1810.00826), and GINE, with features on edges."""

from typing import Any

import torch
from torch import Tensor, nn

from popgeo.nn.mlp import MLP
from popgeo.nn.models.gnn import GNN, BatchIndex


class GIN(GNN):
    """h_i' = MLP((1 + eps) h_i + sum over neighbors of h_j) in each layer, eq. 4.1 of arXiv:1810.00826.

    Checkpoints of `torch_geometric.nn.GIN` load as they are. Arguments as in `GNN`, and:

    Args:
        eps: Weight of a node's own features beyond 1, at the start.
        train_eps: Learn it.

    Example:
        >>> model = GIN(in_channels=3, hidden_channels=8, num_layers=2, out_channels=2, readout="add")
        >>> x, edge_index, batch = torch.randn(4, 3), torch.tensor([[0, 1], [1, 0]]), torch.tensor([0, 0, 1, 1])
        >>> model(x, edge_index, batch=batch, num_graphs=2).shape
        torch.Size([2, 2])
    """

    def __init__(self, *args: Any, eps: float = 0.0, train_eps: bool = False, **kwargs: Any) -> None:
        self.eps, self.train_eps = eps, train_eps
        super().__init__(*args, **kwargs)

    def init_conv(self, in_channels: int, out_channels: int) -> nn.Module:
        mlp = MLP([in_channels, out_channels, out_channels], self.act, self.act_first, self.norm)
        return GINConv(mlp, self.eps, self.train_eps)


class GINE(GIN):
    """h_i' = MLP((1 + eps) h_i + sum of ReLU(h_j + e_ji)) in each layer (arXiv:1905.12265). Arguments as in `GIN`, and:

    Args:
        edge_dim: Features of an edge, mapped linearly to the features of a node.

    Example:
        >>> model = GINE(in_channels=3, hidden_channels=8, num_layers=2, edge_dim=5)
        >>> model(torch.randn(4, 3), torch.tensor([[0, 1], [1, 0]]), edge_attr=torch.randn(2, 5)).shape
        torch.Size([4, 8])
    """

    def __init__(self, *args: Any, edge_dim: int, **kwargs: Any) -> None:
        self.edge_dim = edge_dim
        super().__init__(*args, **kwargs)

    def init_conv(self, in_channels: int, out_channels: int) -> nn.Module:
        mlp = MLP([in_channels, out_channels, out_channels], self.act, self.act_first, self.norm)
        return GINEConv(mlp, in_channels, self.edge_dim, self.eps, self.train_eps)


class GINConv(nn.Module):
    """One layer of `GIN`. `eps` is a parameter if it is trained, otherwise a buffer, as in PyG's checkpoints."""

    eps: Tensor

    def __init__(self, mlp: MLP, eps: float = 0.0, train_eps: bool = False) -> None:
        super().__init__()
        self.nn = mlp
        if train_eps:
            self.eps = nn.Parameter(torch.full((1,), eps))
        else:
            self.register_buffer("eps", torch.full((1,), eps))

    def forward(self, x: Tensor, batched: BatchIndex) -> Tensor:
        """[num_nodes, in_channels] -> [num_nodes, out_channels]"""
        return self._update(x, batched.at_destination(batched.at_source(x)), batched)

    def _update(self, x: Tensor, messages: Tensor, batched: BatchIndex) -> Tensor:
        return self.nn(messages + (1 + self.eps) * x, batched.batch, batched.num_graphs, batched.nodes_mask)


class GINEConv(GINConv):
    """One layer of `GINE`."""

    def __init__(self, mlp: MLP, in_channels: int, edge_dim: int, eps: float = 0.0, train_eps: bool = False) -> None:
        super().__init__(mlp, eps, train_eps)
        self.lin = nn.Linear(edge_dim, in_channels)

    def forward(self, x: Tensor, batched: BatchIndex) -> Tensor:
        """[num_nodes, in_channels] -> [num_nodes, out_channels]"""
        if batched.edge_attr is None:
            raise ValueError("GINE needs features on edges: pass edge_attr [num_edges, edge_dim], or use GIN.")
        messages = torch.relu(batched.at_source(x) + self.lin(batched.edge_attr))
        return self._update(x, batched.at_destination(messages), batched)
