"""GIN (arXiv:1810.00826), and its variant GINE with edge features (arXiv:1905.12265)."""

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from popgeo.nn.mlp import MLP
from popgeo.nn.models.gnn import GNN, Activation, BatchIndex, StackChoices


class GIN(GNN):
    """A graph isomorphism network: h_i' = MLP((1 + eps) h_i + sum over neighbors of h_j), eq. 4.1 of arXiv:1810.00826.

    Checkpoints of `torch_geometric.nn.GIN` load without changes.

    Args:
        in_channels: Features of a node.
        hidden_channels: Features between layers.
        num_layers: Convolutions.
        out_channels: Features of the result. Default: `hidden_channels`.
        dropout: Share of features zeroed after each hidden layer in training.
        act: Activation, by its name in `torch.nn.functional` or as a function. Default: `"relu"`.
        act_first: Whether the activation comes before the norm. Default: False.
        eps: Initial weight of a node's own features, beyond 1.
        train_eps: Whether `eps` is learned.
        **kwargs: `norm`, `jk` and `readout`; see `GNN`.

    Example:
        >>> model = GIN(in_channels=3, hidden_channels=8, num_layers=2, out_channels=2, readout="add")
        >>> x, edge_index, batch = torch.randn(4, 3), torch.tensor([[0, 1], [1, 0]]), torch.tensor([0, 0, 1, 1])
        >>> model(x, edge_index, batch=batch, num_graphs=2).shape
        torch.Size([2, 2])
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
        eps: float = 0.0,
        train_eps: bool = False,
        **kwargs: Unpack[StackChoices],
    ) -> None:
        self.eps, self.train_eps = eps, train_eps
        super().__init__(in_channels, hidden_channels, num_layers, out_channels, dropout, act, act_first, **kwargs)

    def init_conv(self, in_channels: int, out_channels: int) -> nn.Module:
        """Return a `GINConv`."""
        mlp = MLP([in_channels, out_channels, out_channels], self.act, self.act_first, self.norm)
        return GINConv(mlp, self.eps, self.train_eps)


class GINE(GIN):
    """A GIN with features on edges: h_i' = MLP((1 + eps) h_i + sum of ReLU(h_j + e_ji)), arXiv:1905.12265.

    Args:
        in_channels: Features of a node.
        hidden_channels: Features between layers.
        num_layers: Convolutions.
        out_channels: Features of the result. Default: `hidden_channels`.
        dropout: Share of features zeroed after each hidden layer in training.
        act: Activation, by its name in `torch.nn.functional` or as a function. Default: `"relu"`.
        act_first: Whether the activation comes before the norm. Default: False.
        edge_dim: Features of an edge, which a linear layer maps to the features of a node.
        eps: Initial weight of a node's own features, beyond 1.
        train_eps: Whether `eps` is learned.
        **kwargs: `norm`, `jk` and `readout`; see `GNN`.

    Example:
        >>> model = GINE(in_channels=3, hidden_channels=8, num_layers=2, edge_dim=5)
        >>> model(torch.randn(4, 3), torch.tensor([[0, 1], [1, 0]]), edge_attr=torch.randn(2, 5)).shape
        torch.Size([4, 8])
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
        edge_dim: int,
        eps: float = 0.0,
        train_eps: bool = False,
        **kwargs: Unpack[StackChoices],
    ) -> None:
        self.edge_dim = edge_dim
        sizes = in_channels, hidden_channels, num_layers, out_channels
        super().__init__(*sizes, dropout, act, act_first, eps=eps, train_eps=train_eps, **kwargs)

    def init_conv(self, in_channels: int, out_channels: int) -> nn.Module:
        """Return a `GINEConv`."""
        mlp = MLP([in_channels, out_channels, out_channels], self.act, self.act_first, self.norm)
        return GINEConv(mlp, in_channels, self.edge_dim, self.eps, self.train_eps)


class GINConv(nn.Module):
    """One layer of `GIN`; `eps` is a parameter if it is trained, otherwise a buffer, as in PyG's checkpoints."""

    eps: Tensor

    def __init__(self, mlp: MLP, eps: float = 0.0, train_eps: bool = False) -> None:
        super().__init__()
        self.nn = mlp
        if train_eps:
            self.eps = nn.Parameter(torch.full((1,), eps))
        else:
            self.register_buffer("eps", torch.full((1,), eps))

    def forward(self, x: Tensor, batched: BatchIndex) -> Tensor:
        """Return the nodes' new features: [num_nodes, in_channels] -> [num_nodes, out_channels]."""
        return self._update(x, batched.at_destination(batched.at_source(x)), batched)

    def _update(self, x: Tensor, messages: Tensor, batched: BatchIndex) -> Tensor:
        return self.nn(messages + (1 + self.eps) * x, batched.batch, batched.num_graphs, batched.nodes_mask)


class GINEConv(GINConv):
    """One layer of `GINE`."""

    def __init__(self, mlp: MLP, in_channels: int, edge_dim: int, eps: float = 0.0, train_eps: bool = False) -> None:
        super().__init__(mlp, eps, train_eps)
        self.lin = nn.Linear(edge_dim, in_channels)

    def forward(self, x: Tensor, batched: BatchIndex) -> Tensor:
        """Return the nodes' new features: [num_nodes, in_channels] -> [num_nodes, out_channels].

        Raises:
            ValueError: the edges have no features.
        """
        if batched.edge_attr is None:
            raise ValueError("GINE needs features on edges: pass edge_attr [num_edges, edge_dim], or use GIN.")
        messages = torch.relu(batched.at_source(x) + self.lin(batched.edge_attr))
        return self._update(x, batched.at_destination(messages), batched)
