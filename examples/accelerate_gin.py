"""Train GIN on molecular graphs with accelerate, in one process or several.

    python examples/accelerate_gin.py
    torchrun --nproc-per-node 2 examples/accelerate_gin.py

`accelerator.prepare` needs no changes to the loader: each process loads its own share of the batches, in a new order
every epoch, and `save_state` stores the position in the epoch, so that `--resume` continues with the next batch. The
script prints the error on held-out molecules (MAE of the HOMO-LUMO gap, eV) and the error of predicting the mean: 2.3
eV falls to about 0.6 eV in the 10 epochs, half a minute on one core. It needs `pip install accelerate`.
"""

import argparse
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch_geometric.data import Batch

from popgeo.command_line import run
from popgeo.data import FixedSizeOptions
from popgeo.datasets import Molecules
from popgeo.loader import FixedSizeDataLoader
from popgeo.nn import GIN, l1_loss

GAP = Molecules.target_index("gap")


class GapModel(nn.Module):
    """GIN over the bonds, and the mean of each molecule's atoms."""

    def __init__(self, in_channels: int, channels: int, num_graphs: int, mean: float, std: float) -> None:
        super().__init__()
        self.num_graphs, self.mean, self.std = num_graphs, mean, std
        self.gin = GIN(in_channels, channels, 4, 1, norm="layer_norm", jk="cat", readout="mean")

    def forward(self, batch: Batch) -> Tensor:
        """Return the gaps in eV [num_graphs]."""
        out = self.gin(
            batch.x,
            batch.edge_index,
            batch=batch.batch,
            num_graphs=self.num_graphs,
            nodes_mask=batch.nodes_mask,
            edges_mask=batch.edges_mask,
        )
        return out.flatten() * self.std + self.mean


def held_out_error(model: nn.Module, loader: FixedSizeDataLoader, accelerator: Accelerator) -> float:
    """Return the mean absolute error (eV) over the real molecules of all processes."""
    model.eval()
    total = torch.zeros(2, device=accelerator.device)
    with torch.no_grad():
        for batch in loader:
            error = (model(batch) - batch.y[:, GAP]).abs() * batch.graphs_mask
            total += torch.stack([error.sum(), batch.graphs_mask.sum()])
    total = accelerator.reduce(total)
    return float(total[0] / total[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--molecules", type=int, default=8000, help="number of bundled molecules")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--channels", type=int, default=64)
    parser.add_argument("--out", type=Path, default=Path("accelerate-run"), help="folder of the saved state")
    parser.add_argument("--resume", action="store_true", help="continue from the state in --out")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)

    molecules = Molecules()[: arguments.molecules]
    split = len(molecules) * 4 // 5
    training, held_out = molecules[:split], molecules[split:]
    gaps = training.y[:, GAP]
    sizes = FixedSizeOptions.tune(molecules, target_graphs=64, verbose=False)
    loader = FixedSizeDataLoader(training, shuffle=True, fixed_size_options=sizes, fixed_size_strategy="Window")
    valid = FixedSizeDataLoader(held_out, fixed_size_options=sizes, fixed_size_strategy="StreamPack")
    model: nn.Module = GapModel(
        molecules.num_features, arguments.channels, sizes.num_graphs, float(gaps.mean()), float(gaps.std())
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    model, optimizer, loader, valid = accelerator.prepare(model, optimizer, loader, valid)
    if arguments.resume:
        accelerator.load_state(str(arguments.out))
    accelerator.print(f"predicting the mean: {(held_out.y[:, GAP] - gaps.mean()).abs().mean():.3f} eV", flush=True)

    for epoch in range(loader.epoch, arguments.epochs):
        model.train()
        for step, batch in enumerate(loader):
            optimizer.zero_grad()
            accelerator.backward(l1_loss(model(batch), batch.y[:, GAP], batch.graphs_mask))
            optimizer.step()
            if step % 50 == 49:
                accelerator.save_state(str(arguments.out))
        accelerator.print(
            f"epoch {epoch + 1}: held-out error {held_out_error(model, valid, accelerator):.3f} eV", flush=True
        )
    accelerator.end_training()


if __name__ == "__main__":
    run(main)
