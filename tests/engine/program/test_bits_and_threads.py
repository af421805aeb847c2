"""Trained weights have the same bits for any number of threads, and common models run without Python in between."""

from collections.abc import Callable

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn

import popgeo
from popgeo.native import library
from popgeo.nn import GCN, GIN, GPS, GraphSAGE, PaiNN, SchNet, energy_and_forces
from popgeo.ops import scatter_sum

pytestmark = pytest.mark.skipif(not library.is_available(), reason="native calls need the compiled library")
NODES, EDGES, GRAPHS, CHANNELS = 1024, 4096, 32, 64


class OfGraphs(nn.Module):
    """The loss of a model with a pool of its own, or of PyG's layers and a sum."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.lin = model, nn.Linear(CHANNELS, 1)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor, y: Tensor) -> Tensor:
        if isinstance(self.model, pyg.GAT):
            made = self.lin(scatter_sum(self.model(x, edge_index), batch, dim=0, dim_size=GRAPHS))
        else:
            made = self.model(x, edge_index, batch=batch, num_graphs=GRAPHS)[:GRAPHS]
        return (made - y).square().mean()


class OfForces(nn.Module):
    """The loss of energies and forces."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, z: Tensor, pos: Tensor, batch: Tensor, edge_index: Tensor) -> Tensor:
        energy, forces = energy_and_forces(self.model, z, pos, batch, edge_index, num_graphs=GRAPHS)
        return energy.square().mean() + forces.square().mean()


def graphs() -> tuple[Tensor, ...]:
    torch.manual_seed(0)
    edge_index, batch = torch.randint(NODES, (2, EDGES)), torch.arange(NODES) // (NODES // GRAPHS)
    return torch.randn(NODES, CHANNELS), edge_index, batch, torch.randn(GRAPHS, 1)


def atoms() -> tuple[Tensor, ...]:
    torch.manual_seed(0)
    batch, per_graph = torch.arange(256) // 8, torch.arange(8)
    pairs = torch.cartesian_prod(per_graph, per_graph)
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    edge_index = (pairs + 8 * torch.arange(GRAPHS).view(-1, 1, 1)).flatten(0, 1).t().contiguous()
    return torch.randint(1, 10, (256,)), 2 * torch.randn(256, 3), batch, edge_index


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, ...]]]] = {
    "GCN": (lambda: OfGraphs(GCN(CHANNELS, CHANNELS, 2, 1)), graphs),
    "GIN": (lambda: OfGraphs(GIN(CHANNELS, CHANNELS, 2, 1)), graphs),
    "GraphSAGE": (lambda: OfGraphs(GraphSAGE(CHANNELS, CHANNELS, 2, 1)), graphs),
    "GAT": (lambda: OfGraphs(pyg.GAT(CHANNELS, CHANNELS, 2)), graphs),
    "GPS": (lambda: OfGraphs(GPS(CHANNELS, CHANNELS, 1, 1, conv="gin", norm="layer_norm")), graphs),
    "SchNet": (lambda: OfForces(SchNet(32, 32, 1, 16, 5.0)), atoms),
    "PaiNN": (lambda: OfForces(PaiNN(32, 1, 16, cutoff=5.0)), atoms),
}


@pytest.mark.parametrize("name", MODELS)
def test_weights_have_the_same_bits_for_any_number_of_threads(name: str):
    make, batch_of = MODELS[name]
    before, weights = torch.get_num_threads(), []
    torch.set_num_threads(2)
    try:
        for count in (1, 2):
            torch.manual_seed(1)
            model = make()
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
            step = popgeo.compile_step(model, optimizer, options=popgeo.StepOptions(num_threads=count))
            for _ in range(3):
                step(*batch_of())
            weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*weights)
    assert "in torch" not in step.how_it_runs()
    assert "in 1 stretch\n" in step.how_it_runs()
