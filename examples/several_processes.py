"""Train SchNet with replicas shared by several processes; the losses are the same as with one process.

    python examples/several_processes.py
    torchrun --nproc-per-node 2 examples/several_processes.py

Both commands print the same loss for each epoch (MAE, eV), except for rounding. Only three lines depend on several
processes: two start and end `torch.distributed`, and one sums the printed losses.
"""

import argparse

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch_geometric.data import Data

from popgeo import ipu
from popgeo.command_line import run
from popgeo.data import FixedSizeOptions, FlatStore
from popgeo.datasets import Molecules
from popgeo.loader import FixedSizeDataLoader
from popgeo.nn import PrecomputeInteractionGraph, SchNet, l1_loss

GAP = Molecules.target_index("gap")


class GapModel(nn.Module):
    """SchNet with its loss, the mean absolute error (eV)."""

    def __init__(self, num_graphs: int, channels: int) -> None:
        super().__init__()
        self.num_graphs = num_graphs
        self.schnet = SchNet(channels, channels, num_interactions=2, num_gaussians=16, cutoff=5.0, readout="mean")

    def forward(
        self, z: Tensor, pos: Tensor, batch: Tensor, edge_index: Tensor, y: Tensor, graphs_mask: Tensor
    ) -> Tensor:
        out = self.schnet(z, pos, batch, edge_index, num_graphs=self.num_graphs, half_list=True)
        return l1_loss(out.flatten(), y[:, GAP], graphs_mask)


def train(molecules: int, replicas: int, epochs: int, channels: int) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    list_pairs = PrecomputeInteractionGraph(cutoff=5.0, half_list=True)
    store = FlatStore.from_dataset([list_pairs(Data(z=one.z, pos=one.pos, y=one.y)) for one in Molecules()[:molecules]])
    sizes = FixedSizeOptions.tune(store, target_graphs=16, verbose=False)
    options = ipu.Options(replication_factor=replicas, output_mode="all")
    loader = FixedSizeDataLoader(
        store, shuffle=True, fixed_size_options=sizes, fixed_size_strategy="Window", options=options
    )
    model = GapModel(sizes.num_graphs, channels)
    training = ipu.training_model(model, options, torch.optim.Adam(model.parameters(), lr=1e-3))
    for epoch in range(1, epochs + 1):
        losses = [training(batch) for batch in loader]
        total = torch.cat([loss.reshape(-1) for loss in losses]).sum()
        if dist.is_initialized():
            dist.all_reduce(total)
        if not dist.is_initialized() or dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {total / (len(losses) * replicas):.4f} eV", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--molecules", type=int, default=2000, help="number of bundled molecules")
    parser.add_argument("--replicas", type=int, default=4, help="replicas; a multiple of the number of processes")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--channels", type=int, default=32)
    arguments = parser.parse_args()
    if dist.is_torchelastic_launched():
        dist.init_process_group("gloo")
    train(arguments.molecules, arguments.replicas, arguments.epochs, arguments.channels)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    run(main)
