"""Whole training steps as captured programs: popgeo's own models with a loss and an optimizer."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from popgeo import ipu
from popgeo.capture.op_graph import OpGraph
from popgeo.filter_choice import filters_at_each_edge
from popgeo.nn import GCN, GIN, GINE, GraphSAGE, KNNInteractionGraph, SchNet, cross_entropy, mse_loss

MODELS: dict[str, type[nn.Module]] = {"gcn": GCN, "gin": GIN, "gine": GINE, "sage": GraphSAGE}


class Training(nn.Module):
    """A model with its loss."""

    def __init__(self, model: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], num_graphs: int) -> None:
        super().__init__()
        self.model, self.loss, self.num_graphs = model, loss, num_graphs

    def forward(self, y: Tensor, batch: Tensor, inputs: list[Tensor], edge_attr: Tensor | None = None) -> Tensor:
        more = {} if edge_attr is None else {"edge_attr": edge_attr}
        prediction = self.model(*inputs, batch=batch, num_graphs=self.num_graphs, **more)
        return self.loss(prediction.squeeze(-1), y)


def schnet(
    num_nodes: int = 60, num_graphs: int = 4, k: int = 8, channels: int = 16, blocks: int = 2, gaussians: int = 10
) -> tuple[nn.Module, list[Any]]:
    """Return a SchNet that searches its neighbors, and a batch."""
    model = SchNet(channels, channels, blocks, gaussians, 6.0, interaction_graph=KNNInteractionGraph(k, 6.0))
    batch = torch.arange(num_nodes) * num_graphs // num_nodes
    inputs = [torch.randint(1, 9, (num_nodes,)), torch.randn(num_nodes, 3)]
    return Training(model, mse_loss, num_graphs), [torch.randn(num_graphs), batch, inputs]


def graph_network(name: str) -> tuple[nn.Module, list[Any]]:
    """Return one of `MODELS` with norms, dropout and jumps, and a batch."""
    extra: dict[str, Any] = {"edge_dim": 8} if name == "gine" else {}
    model = MODELS[name](16, 32, 3, 4, dropout=0.1, norm="layer_norm", jk="cat", readout="add", **extra)
    inputs = [torch.randn(200, 16), torch.randint(200, (2, 800))]
    edge_attr = [torch.randn(800, 8)] if name == "gine" else []
    return Training(model, cross_entropy, 8), [torch.randint(4, (8,)), torch.arange(200) // 25, inputs, *edge_attr]


def captured(
    model: nn.Module, batch: list[Any], optimizer: type[torch.optim.Optimizer] = torch.optim.AdamW
) -> list[OpGraph]:
    """Return the expanded graph of forward and backward, and the graph of the update."""
    with filters_at_each_edge():
        step = ipu.training_model(model, optimizer=optimizer(model.parameters(), lr=1e-3)).compile(*batch)
    return [step.captured.expanded.graph, step.update.capture()]
