"""GraphSAGE: each node next to an aggregate of its neighbors (arXiv:1706.02216)."""

from typing import Any

from torch import Tensor, nn

from popgeo.nn.models.gnn import GNN, BatchIndex
from popgeo.ops.refusals import check_choice


class GraphSAGE(GNN):
    """h_i' = W_r h_i + W_l AGG over neighbors of h_j in each layer (arXiv:1706.02216, algorithm 1).

    Checkpoints of `torch_geometric.nn.GraphSAGE` load as they are. Arguments as in `GNN`, and:

    Args:
        aggr: `"mean"`, `"sum"` or `"max"`; zero for a node without neighbors.

    Raises:
        ValueError: an unknown aggregation.

    Example:
        >>> import torch
        >>> model = GraphSAGE(in_channels=3, hidden_channels=8, num_layers=2, out_channels=2)
        >>> model(torch.randn(4, 3), torch.tensor([[0, 1], [1, 0]])).shape
        torch.Size([4, 2])
    """

    def __init__(self, *args: Any, aggr: str = "mean", **kwargs: Any) -> None:
        check_choice("aggr", aggr, ("mean", "sum", "max"))
        self.aggr = aggr
        super().__init__(*args, **kwargs)

    def init_conv(self, in_channels: int, out_channels: int) -> nn.Module:
        return SAGEConv(in_channels, out_channels, self.aggr)


class SAGEConv(nn.Module):
    """One layer of `GraphSAGE`."""

    def __init__(self, in_channels: int, out_channels: int, aggr: str) -> None:
        super().__init__()
        self.aggr = aggr
        self.lin_l = nn.Linear(in_channels, out_channels)
        self.lin_r = nn.Linear(in_channels, out_channels, bias=False)

    def forward(self, x: Tensor, batched: BatchIndex) -> Tensor:
        """[num_nodes, in_channels] -> [num_nodes, out_channels]"""
        return self.lin_l(batched.at_destination(batched.at_source(x), self.aggr)) + self.lin_r(x)
