"""An ordinary PyG training script with three lines changed, after which torch.compile compiles its model once.

    python examples/compile_once.py --epochs 3

Each changed line stands below a comment with what it was. The script prints the loss of each epoch and how many graphs
torch.compile has made of the model so far: one. With the old lines it makes another where a size changes.
"""

import argparse
import time

import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch_geometric.nn import GINConv, global_add_pool

from popgeo.command_line import run
from popgeo.datasets import Molecules

# was: from torch_geometric.loader import DataLoader
from popgeo.loader import FixedSizeDataLoader

GAP = Molecules.target_index("gap")


class Model(nn.Module):
    """GIN, of PyG's own layers: the HOMO-LUMO gap of each molecule (eV)."""

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        widths = [in_channels, channels, channels]
        self.convs = nn.ModuleList(GINConv(nn.Sequential(nn.Linear(width, channels), nn.ReLU())) for width in widths)
        self.lin = nn.Linear(channels, 1)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor, num_graphs: int) -> Tensor:
        """[num_nodes, in_channels], [2, num_edges], [num_nodes] -> [num_graphs]"""
        for conv in self.convs:
            x = conv(x, edge_index)
        return self.lin(global_add_pool(x, batch, num_graphs)).flatten()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--molecules", type=int, default=4000, help="how many of the bundled molecules")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--channels", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--backend", default="inductor", help="backend of torch.compile; aot_eager needs no compiler")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    dataset = Molecules()[: arguments.molecules]
    # was: loader = DataLoader(dataset, arguments.batch_size, shuffle=True)
    loader = FixedSizeDataLoader(dataset, arguments.batch_size + 1, shuffle=True)
    model = Model(dataset.num_features, arguments.channels)
    compiled = torch.compile(model, backend=arguments.backend)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(1, arguments.epochs + 1):
        start, losses = time.monotonic(), []
        for batch in loader:
            prediction = compiled(batch.x, batch.edge_index, batch.batch, batch.num_graphs)
            error = (prediction - batch.y[:, GAP]).abs()
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
