"""Train on heterogeneous graphs in batches of fixed size: heavy atoms and hydrogens are nodes of two types.

    python examples/hetero_molecules.py --epochs 5

Every type of node and edge has its own number of slots. The layers are PyG's `HeteroConv`. Padding affects no real row,
because padding edges join padding nodes and padding nodes belong to a padding graph, so only the loss needs a mask. The
script prints the mean absolute error of the HOMO-LUMO gap on held-out molecules, and the error of predicting the mean.
"""

import argparse

import torch
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import HeteroConv, SAGEConv, global_add_pool

from popgeo import FixedSizeDataLoader, FixedSizeOptions, Molecules
from popgeo.command_line import run
from popgeo.nn import l1_loss
from popgeo.progress import progress

GAP = Molecules.target_index("gap")
NODES = ("heavy", "hydrogen")
EDGES = (("heavy", "bonds", "heavy"), ("hydrogen", "bonds", "heavy"), ("heavy", "bonds", "hydrogen"))


def typed(molecule: Data) -> HeteroData:
    """Return the molecule with hydrogens as a separate node type."""
    is_hydrogen = molecule.z == 1  # hydrogens come last
    num_heavy = int((~is_hydrogen).sum())
    graph = HeteroData(y=molecule.y[:, GAP])
    graph["heavy"].x, graph["hydrogen"].x = molecule.x[:num_heavy], molecule.x[num_heavy:]
    ends = torch.where(is_hydrogen, 1, 0)[molecule.edge_index]  # [2, num_edges]
    shift = torch.tensor([0, num_heavy])
    for source, kind, destination in EDGES:
        chosen = (ends[0] == NODES.index(source)) & (ends[1] == NODES.index(destination))
        start = shift[[NODES.index(source), NODES.index(destination)]].unsqueeze(1)
        graph[source, kind, destination].edge_index = molecule.edge_index[:, chosen] - start
    return graph


class Model(nn.Module):
    """Rounds of messages between the types of atoms, then a sum over the atoms of each molecule."""

    def __init__(self, in_channels: int, channels: int, num_layers: int, mean: float) -> None:
        super().__init__()
        widths = [in_channels] + [channels] * (num_layers - 1)
        self.convs = nn.ModuleList(HeteroConv({kind: SAGEConv(width, channels) for kind in EDGES}) for width in widths)
        self.lins = nn.ModuleDict({kind: nn.Linear(channels, 1) for kind in NODES})
        self.mean = mean

    def forward(self, batch: HeteroData) -> Tensor:
        """Return the gap of each molecule in eV [num_graphs]."""
        x = batch.x_dict
        for conv in self.convs:
            x = {kind: rows.relu() for kind, rows in conv(x, batch.edge_index_dict).items()}
        sums = [global_add_pool(self.lins[kind](x[kind]), batch[kind].batch, batch.num_graphs) for kind in NODES]
        return self.mean + torch.stack(sums).sum(0).flatten()


@torch.no_grad()
def mean_absolute_error(model: Model, loader: FixedSizeDataLoader) -> float:
    """Return the mean absolute error (eV) over the real molecules of a loader."""
    errors = [(model(batch) - batch.y).abs()[batch.graphs_mask] for batch in loader]
    return float(torch.cat(errors).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--molecules", type=int, default=5000, help="number of bundled molecules")
    parser.add_argument("--batch-size", type=int, default=32, help="mean number of molecules per batch")
    parser.add_argument("--channels", type=int, default=64)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=5)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    molecules = Molecules()[: arguments.molecules]
    graphs = [typed(molecule) for molecule in progress(molecules, "typing atoms", "molecules")]
    held_out = len(graphs) // 10
    sizes = FixedSizeOptions.tune(graphs, arguments.batch_size)
    training = FixedSizeDataLoader(
        graphs[held_out:], shuffle=True, fixed_size_options=sizes, fixed_size_strategy="Window"
    )
    validation = FixedSizeDataLoader(graphs[:held_out], fixed_size_options=sizes, fixed_size_strategy="StreamPack")
    print(training)
    gap = molecules.y[held_out:, GAP]
    model = Model(molecules.num_features, arguments.channels, arguments.layers, float(gap.mean()))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(1, arguments.epochs + 1):
        for batch in progress(training, f"epoch {epoch}", "batches"):
            loss = l1_loss(model(batch), batch.y, batch.graphs_mask)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: held-out error {mean_absolute_error(model, validation):.3f} eV", flush=True)
    guess = (molecules.y[:held_out, GAP] - gap.mean()).abs().mean()
    print(f"always predicting the mean: {guess:.3f} eV")


if __name__ == "__main__":
    run(main)
