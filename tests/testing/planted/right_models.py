"""Models that are right at fixed shape: the base of the wrong models, and models of other libraries."""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric.data import Data

import popgeo.nn as own
from popgeo import ops

CUTOFF = 3.0


def molecule(num_nodes: int, seed: int) -> Data:
    """Return atoms at random positions, with an edge between close atoms."""
    random = torch.Generator().manual_seed(seed)
    pos = 2.0 * torch.randn(num_nodes, 3, generator=random)
    edge_index = (torch.cdist(pos, pos) + torch.eye(num_nodes) * CUTOFF < CUTOFF).nonzero().T
    return Data(
        x=torch.randn(num_nodes, 3, generator=random),
        z=torch.randint(1, 9, (num_nodes,), generator=random),
        pos=pos,
        edge_index=edge_index,
        edge_attr=torch.randn(edge_index.size(1), 2, generator=random),
        y=torch.randn(1, 1, generator=random),
    )


GRAPHS = [molecule(n, seed) for seed, n in enumerate((5, 4, 7))]


def safe(x: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask.unsqueeze(1), x, 0.0)


def pooled(x: Tensor, batch: Any) -> Tensor:
    return ops.global_add_pool(x, batch.batch, batch.num_graphs)


def lengths(batch: Any) -> tuple[Tensor, Tensor]:
    """Return the lengths of edges, 1 for padding, and their vectors."""
    apart = batch.pos[batch.edge_index[0]] - batch.pos[batch.edge_index[1]]
    apart = torch.where(batch.edges_mask.unsqueeze(1), apart, 1.0)
    return apart.square().sum(1, keepdim=True).sqrt(), apart


class Net(nn.Module):
    """A correct model of messages, a sum and a head, with places for a test's changes."""

    def __init__(
        self,
        nodes: nn.Module | None = None,
        weigh: Callable = lambda x, batch: x,
        read: Callable = lambda batch, x: pooled(x, batch),
        end: Callable = lambda out, batch: out,
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.into, self.messages, self.head = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 1)
        self.nodes, self.weigh, self.read, self.end = nodes or nn.Identity(), weigh, read, end

    def forward(self, batch: Any) -> Any:
        x = self.into(safe(batch.x, batch.nodes_mask))
        sent = ops.gather(self.messages(x).tanh(), batch.edge_index[0])
        x = x + ops.scatter(sent, batch.edge_index[1], 0, dim_size=len(x))
        x = self.weigh(self.nodes(x), batch)
        return self.end(self.head(self.read(batch, x)), batch)


class Energy(nn.Module):
    """A sum over pairs of atoms, with an envelope towards the cutoff."""

    def __init__(
        self, envelope: Callable = lambda r: 0.5 * (torch.cos(r * math.pi / CUTOFF) + 1) * (r < CUTOFF)
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.pair, self.envelope = nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 1)), envelope

    def forward(self, batch: Any) -> Any:
        r, _ = lengths(batch)
        pairs = self.pair(r) * self.envelope(r) * batch.edges_mask.unsqueeze(1)
        return pooled(ops.scatter(pairs, batch.edge_index[1], 0, dim_size=len(batch.pos)), batch)


def forces_of(model: nn.Module, batch: Any, sign: float = -1.0, scale: float = 1.0) -> dict[str, Tensor]:
    pos = batch.pos
    batch.pos = batch.pos.detach().requires_grad_() if not batch.pos.requires_grad else batch.pos
    energy = model(batch)
    (slope,) = torch.autograd.grad(energy.sum(), batch.pos, create_graph=True)
    batch.pos = pos
    return {"energy": scale * energy, "forces": sign * slope}


def schnet(**rest: Any) -> nn.Module:
    sizes = {"hidden_channels": 8, "num_filters": 6, "num_interactions": 1, "num_gaussians": 6, "cutoff": CUTOFF}
    return own.SchNet(**{**sizes, **rest})


def _by_atoms(model: nn.Module, batch: Any) -> Tensor:
    return model(batch.z, batch.pos, batch.batch, num_graphs=batch.num_graphs, nodes_mask=batch.nodes_mask)


PHYSICS = ["translation", "rotation", "reflection", "extensive energy"]
RIGHT: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "messages and a sum": (Net, {}),
    "energy": (Energy, {"also": PHYSICS, "cutoff": CUTOFF}),
    "energy and forces": (Energy, {"also": PHYSICS, "cutoff": CUTOFF, "call": forces_of}),
    "masked batch norm": (lambda: _Masked(own.BatchNorm(4)), {}),
    "a function": (lambda: lambda batch: pooled(batch.x, batch), {"also": ["extensive energy"]}),
    "PyG's GCN": (lambda: pyg.GCN(3, 4, 2), {}),
    "PyG's GIN": (lambda: pyg.GIN(3, 4, 2, norm=None), {}),
    "PyG's GraphSAGE": (lambda: pyg.GraphSAGE(3, 4, 2), {}),
    "PyG's GAT": (lambda: pyg.GAT(3, 4, 2, heads=2, dropout=0.5), {}),
    "PyG's EdgeCNN": (lambda: pyg.EdgeCNN(3, 4, 1), {}),
    "PyG's TransformerConv": (lambda: pyg.TransformerConv(3, 4, edge_dim=2), {}),
    "PyG's GINEConv": (lambda: pyg.GINEConv(nn.Linear(3, 4), edge_dim=2), {}),
    "PyG's MLP": (lambda: pyg.MLP([3, 4, 2], norm=None), {"call": lambda model, batch: model(batch.x)}),
    "GCN": (lambda: own.GCN(3, 4, 2, out_channels=2, readout="add"), {}),
    "GIN": (lambda: own.GIN(3, 4, 2, out_channels=2, readout="mean", norm="layer_norm"), {}),
    "GIN, batch norm": (lambda: own.GIN(3, 4, 2, out_channels=2, readout="add", norm="batch_norm"), {}),
    "GINE": (lambda: own.GINE(3, 4, 2, out_channels=2, readout="add", edge_dim=2), {}),
    "GraphSAGE": (lambda: own.GraphSAGE(3, 4, 2, out_channels=2, readout="max"), {}),
    "SchNet": (
        lambda: schnet(interaction_graph=own.PairInteractionGraph(CUTOFF, max_num_nodes=8)),
        {"call": _by_atoms, "also": PHYSICS},
    ),
    "PaiNN": (
        lambda: own.PaiNN(6, 1, 6, CUTOFF, own.PairInteractionGraph(CUTOFF, max_num_nodes=8)),
        {"call": _by_atoms, "also": PHYSICS},
    ),
}


class _Masked(Net):
    def forward(self, batch: Any) -> Any:
        x = self.nodes(self.into(safe(batch.x, batch.nodes_mask)), nodes_mask=batch.nodes_mask)
        return self.head(self.read(batch, x))
