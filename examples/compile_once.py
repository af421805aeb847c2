"""An ordinary PyG training script with three changed lines, so that torch.compile compiles the model once.

    python examples/compile_once.py --epochs 3
    python examples/compile_once.py --model schnet

Each changed line is below a comment with the old line. The script prints the loss of each epoch and the number of
graphs that torch.compile has made of the model so far: one. With the old lines, it makes another graph when a size
changes. All models consist of PyG's own layers, without changes.
"""

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch_geometric.nn import GATConv, GINConv, GraphConv, PNAConv, TransformerConv, global_add_pool
from torch_geometric.nn.models import SchNet

from popgeo.command_line import run
from popgeo.datasets import Molecules

# was: from torch_geometric.loader import DataLoader
from popgeo.loader import FixedSizeDataLoader

GAP = Molecules.target_index("gap")
BONDS = torch.tensor([1, 60, 30, 20, 10])  # number of atoms in a hundred with 0, 1, 2, ... bonds, approximately
LAYERS: dict[str, Callable[[int, int], nn.Module]] = {
    "gin": lambda width, channels: GINConv(nn.Sequential(nn.Linear(width, channels), nn.ReLU())),
    # Self-loops added by GATConv would depend on the data: on the number of existing self-loops.
    "gat": lambda width, channels: GATConv(width, channels, heads=2, concat=False, add_self_loops=False),
    "pna": lambda width, channels: PNAConv(width, channels, ["mean", "max"], ["identity", "amplification"], BONDS),
    "graphconv": lambda width, channels: GraphConv(width, channels),
    "transformer": lambda width, channels: TransformerConv(width, channels, heads=2, concat=False),
}


class Convolutions(nn.Module):
    """Two of PyG's own layers, for the HOMO-LUMO gap of each molecule (eV)."""

    def __init__(self, name: str, in_channels: int, channels: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList(LAYERS[name](width, channels) for width in (in_channels, channels))
        self.lin = nn.Linear(channels, 1)

    def forward(self, x: Tensor, z: Tensor, pos: Tensor, edge_index: Tensor, batch: Tensor, num_graphs: int) -> Tensor:
        """Return the gaps in eV [num_graphs]."""
        for conv in self.convs:
            x = conv(x, edge_index).relu()
        return self.lin(global_add_pool(x, batch, num_graphs)).flatten()


class Given(nn.Module):
    """The replacement of the edge search and the sum in PyG's SchNet; it uses the batch's edges and graphs."""

    edge_index: Tensor
    num_graphs: int

    def forward(self, x: Tensor, batch: Tensor, dim: int | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """Return the edges and their lengths or, if `dim` is given, the sum over each molecule."""
        if dim is not None:
            return global_add_pool(x, batch, self.num_graphs)
        src, dst = self.edge_index
        return self.edge_index, (x[src] - x[dst]).square().sum(-1).clamp(min=1e-6).sqrt()


class Distances(nn.Module):
    """PyG's SchNet with the edges of the batch (here the bonds) as interactions."""

    def __init__(self, channels: int, num_interactions: int = 2, num_gaussians: int = 16, cutoff: float = 5.0) -> None:
        super().__init__()
        self.given = Given()
        self.schnet = SchNet(channels, channels, num_interactions, num_gaussians, cutoff, self.given)
        self.schnet.readout = self.given

    def forward(self, x: Tensor, z: Tensor, pos: Tensor, edge_index: Tensor, batch: Tensor, num_graphs: int) -> Tensor:
        """Return the gaps in eV [num_graphs]."""
        self.given.edge_index, self.given.num_graphs = edge_index, num_graphs
        return self.schnet(z, pos, batch).flatten()


def make_model(name: str, in_channels: int, channels: int) -> nn.Module:
    """Return the model for a name of the command line."""
    return Distances(channels) if name == "schnet" else Convolutions(name, in_channels, channels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="gin", choices=[*LAYERS, "schnet"])
    parser.add_argument("--molecules", type=int, default=4000, help="number of bundled molecules")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--channels", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--backend", default="inductor", help="backend of torch.compile; aot_eager needs no compiler")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    dataset = Molecules()[: arguments.molecules]
    # was: loader = DataLoader(dataset, arguments.batch_size, shuffle=True)
    loader = FixedSizeDataLoader(dataset, arguments.batch_size + 1, shuffle=True)
    model = make_model(arguments.model, dataset.num_features, arguments.channels)
    compiled = torch.compile(model, backend=arguments.backend, mode="default")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(1, arguments.epochs + 1):
        start, losses = time.monotonic(), []
        for batch in loader:
            given = batch.x, batch.z, batch.pos, batch.edge_index, batch.batch
            error = (compiled(*given, batch.num_graphs) - batch.y[:, GAP]).abs()
            # was: loss = error.mean()
            loss = error[batch.graphs_mask].mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        mean, seconds = torch.stack(losses).mean(), time.monotonic() - start
        graphs = counters["stats"]["unique_graphs"]
        print(f"epoch {epoch}: loss {mean:.3f} eV, {seconds:.1f} s, graphs compiled so far: {graphs}", flush=True)


if __name__ == "__main__":
    run(main)
