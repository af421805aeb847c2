"""GraphSAGE: each node combines its own features with an aggregate of its neighbors (arXiv:1706.02216)."""

from torch import Tensor, nn
from typing_extensions import Unpack

from popgeo.nn.models.gnn import GNN, Activation, BatchIndex, StackChoices
from popgeo.ops.refusals import check_choice


class GraphSAGE(GNN):
    """GraphSAGE: h_i' = W_r h_i + W_l AGG over neighbors of h_j in each layer (arXiv:1706.02216, algorithm 1).

    Checkpoints of `torch_geometric.nn.GraphSAGE` load without changes.

    Args:
        in_channels: Features of a node.
        hidden_channels: Features between layers.
        num_layers: Convolutions.
        out_channels: Features of the result. Default: `hidden_channels`.
        dropout: Share of features zeroed after each hidden layer in training.
        act: Activation, by its name in `torch.nn.functional` or as a function. Default: `"relu"`.
        act_first: Whether the activation comes before the norm. Default: False.
        aggr: `"mean"`, `"sum"` or `"max"`; zero for a node without neighbors.
        **kwargs: `norm`, `jk` and `readout`; see `GNN`.

    Raises:
        ValueError: the aggregation is unknown.

    Example:
        >>> import torch
        >>> model = GraphSAGE(in_channels=3, hidden_channels=8, num_layers=2, out_channels=2)
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
        aggr: str = "mean",
        **kwargs: Unpack[StackChoices],
    ) -> None:
        check_choice("aggr", aggr, ("mean", "sum", "max"))
        self.aggr = aggr
        super().__init__(in_channels, hidden_channels, num_layers, out_channels, dropout, act, act_first, **kwargs)

    def init_conv(self, in_channels: int, out_channels: int) -> nn.Module:
        """Return a `SAGEConv`."""
        return SAGEConv(in_channels, out_channels, self.aggr)


class SAGEConv(nn.Module):
    """One layer of `GraphSAGE`."""

    def __init__(self, in_channels: int, out_channels: int, aggr: str) -> None:
        super().__init__()
        self.aggr = aggr
        self.lin_l = nn.Linear(in_channels, out_channels)
        self.lin_r = nn.Linear(in_channels, out_channels, bias=False)

    def forward(self, x: Tensor, batched: BatchIndex) -> Tensor:
        """Return the nodes' new features: [num_nodes, in_channels] -> [num_nodes, out_channels]."""
        return self.lin_l(batched.at_destination(batched.at_source(x), self.aggr)) + self.lin_r(x)
