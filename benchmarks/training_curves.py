"""Test errors of SchNet with filters on a grid and with filters at each edge, for three seeds each.

    python benchmarks/training_curves.py

The data are energies and forces of ethanol (md/ethanol_train.npz) and the gap of QM9 (qm9.npz), in the folder named by
POPGEO_SHARED_DATA. A seed gives both kinds the same initial weights and the same order of batches. The script prints
the lowest and the highest test error of the three seeds during training. Goal: at the end, the difference of the means
is at most the range of the three seeds with filters at each edge.
"""

import argparse
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from timing import one_thread
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

from popgeo import FixedSizeDataLoader, compile_step
from popgeo.command_line import run
from popgeo.data import FixedSizeOptions
from popgeo.nn import PrecomputeInteractionGraph, SchNet, energy_and_forces, mse_loss
from popgeo.progress import bar

CUTOFF, CHANNELS, BLOCKS, GAUSSIANS, GRAPHS = 10.0, 64, 3, 50, 100
GAP = 4  # column of QM9's targets
KINDS = ("edges", "grid")
SEEDS = (0, 1, 2)


class Potential(nn.Module):
    """A model of energies and forces, with the loss of both."""

    unit, scale = "meV/angstrom, forces", 1000.0

    def __init__(self, model: SchNet) -> None:
        super().__init__()
        self.model = model

    def predict(self, z: Tensor, pos: Tensor, batch: Tensor, edge_index: Tensor, num_graphs: int) -> list[Tensor]:
        """Return energies [num_graphs] and forces [num_nodes, 3]."""
        pairs = {"num_graphs": num_graphs, "half_list": True}
        energy, forces = energy_and_forces(self.model, z, pos, batch, edge_index, **pairs)
        return [energy.flatten(), forces]

    def forward(
        self, z: Tensor, pos: Tensor, batch: Tensor, edge_index: Tensor, y: Tensor, forces: Tensor, graphs_mask: Tensor
    ) -> Tensor:
        """Return the loss []."""
        energy, found = self.predict(z, pos, batch, edge_index, len(y))
        return mse_loss(found, forces, z > 0) + 0.1 * mse_loss(energy, y, graphs_mask)

    def errors(self, batch: Batch) -> Tensor:
        """Return the absolute error of each force component on each real atom."""
        found = self.predict(batch.z, batch.pos, batch.batch, batch.edge_index, len(batch.y))[1]
        return (found - batch.forces)[batch.nodes_mask].abs().flatten().detach()


class Gap(nn.Module):
    """A model of one number per molecule, with its loss."""

    unit, scale = "standard deviations, gap", 1.0

    def __init__(self, model: SchNet) -> None:
        super().__init__()
        self.model = model

    def predict(self, z: Tensor, pos: Tensor, batch: Tensor, edge_index: Tensor, num_graphs: int) -> Tensor:
        """Return one number per molecule [num_graphs]."""
        return self.model(z, pos, batch, edge_index, num_graphs=num_graphs, half_list=True).flatten()

    def forward(
        self, z: Tensor, pos: Tensor, batch: Tensor, edge_index: Tensor, y: Tensor, graphs_mask: Tensor
    ) -> Tensor:
        """Return the loss []."""
        return mse_loss(self.predict(z, pos, batch, edge_index, len(y)), y, graphs_mask)

    @torch.no_grad()
    def errors(self, batch: Batch) -> Tensor:
        """Return the absolute error of each real molecule."""
        found = self.predict(batch.z, batch.pos, batch.batch, batch.edge_index, len(batch.y))
        return (found - batch.y)[batch.graphs_mask].abs()


def main() -> None:
    """Train all models, and print a table for each dataset."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20, help="training epochs (default: %(default)s)")
    parser.add_argument("--molecules", type=int, default=5000, help="QM9 molecules to train on (default: %(default)s)")
    options = parser.parse_args()
    one_thread()
    torch.set_flush_denormal(True)
    folder = Path(os.environ.get("POPGEO_SHARED_DATA", "."))
    md = folder / "md"
    sets: dict[str, tuple[type[Potential] | type[Gap], list[Data], list[Data]]] = {
        "ethanol": (Potential, ethanol(md / "ethanol_train.npz"), ethanol(md / "ethanol_test.npz")),
        "QM9": (Gap, *qm9(folder / "qm9.npz", options.molecules)),
    }
    for name, (kind, training, testing) in sets.items():
        found = {k: np.array([curve(kind, k, s, training, testing, options.epochs) for s in SEEDS]) for k in KINDS}
        compare(f"{name}, {len(training):,} to train on, error in {kind.unit}", found)


def compare(title: str, found: dict[str, np.ndarray]) -> None:
    """Print a line for each fifth of the epochs, and the verdict at the end."""
    epochs = found["edges"].shape[1]
    print(title)
    for epoch in range(epochs // 5, epochs + 1, epochs // 5):
        cells = (
            f"{kind} {own[:, epoch - 1].min():.3f} to {own[:, epoch - 1].max():.3f}" for kind, own in found.items()
        )
        print(f"  epoch {epoch}: {', '.join(cells)}")
    last = {kind: own[:, -1] for kind, own in found.items()}
    apart, spread = abs(last["grid"].mean() - last["edges"].mean()), np.ptp(last["edges"])
    print(f"  means {apart:.3f} apart, seeds {spread:.3f} (goal: no more): {'met' if apart <= spread else 'missed'}")


def curve(
    kind: type[Potential] | type[Gap], filters: str, seed: int, training: list[Data], testing: list[Data], epochs: int
) -> list[float]:
    """Return the mean absolute test error after each epoch."""
    torch.manual_seed(seed)
    model = SchNet(CHANNELS, CHANNELS, BLOCKS, GAUSSIANS, CUTOFF, filters=filters)
    step_model = kind(model)
    loader, held_out = (loader_of(part, shuffle) for part, shuffle in ((training, True), (testing, False)))
    optimizer = torch.optim.Adam(step_model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    step, errors = compile_step(step_model, optimizer), []
    with bar(f"{filters}, seed {seed}", "epochs", total=epochs) as shown:
        for _ in range(epochs):
            for batch in loader:
                step(batch)
            schedule.step()
            errors.append(kind.scale * mean_of(map(step_model.errors, held_out)))
            shown.update(1)
    if (", 0 of " in repr(step)) != (filters == "edges"):
        raise ValueError(f"{step} does not evaluate its filters with filters={filters!r}.")
    return errors


def mean_of(parts: Iterable[Tensor]) -> float:
    """Return the mean of all elements of the tensors."""
    return float(torch.cat(list(parts)).mean())


def loader_of(graphs: list[Data], shuffle: bool) -> FixedSizeDataLoader:
    """Return a loader of batches with about `GRAPHS` graphs and one padding graph."""
    sizes = FixedSizeOptions.tune(graphs, target_graphs=GRAPHS, verbose=False)
    levels = {"forces": "node", "y": "graph"}
    return FixedSizeDataLoader(
        graphs, fixed_size_options=sizes, fixed_size_strategy="Window", shuffle=shuffle, levels=levels
    )


def ethanol(path: Path) -> list[Data]:
    """Read frames with the pairs within the cutoff; subtract the mean of the energies."""
    near = PrecomputeInteractionGraph(CUTOFF, half_list=True)
    with np.load(path) as held:
        z, energy = torch.from_numpy(held["z"].astype(np.int64)), held["energy"] - held["energy"].mean()
        frames = zip(held["pos"].astype(np.float32), energy, held["forces"].astype(np.float32), strict=True)
    return [
        near(Data(z=z, pos=torch.from_numpy(pos), y=torch.tensor([float(e)]), forces=torch.from_numpy(forces)))
        for pos, e, forces in frames
    ]


def qm9(path: Path, count: int) -> tuple[list[Data], list[Data]]:
    """Read random molecules, `count` for training and 1,000 for testing, with standardised gaps."""
    near = PrecomputeInteractionGraph(CUTOFF, half_list=True)
    with np.load(path) as held:
        ptr = np.concatenate([[0], held["num_atoms"].astype(np.int64).cumsum()])
        z, pos, gap = torch.from_numpy(held["z"].astype(np.int64)), torch.from_numpy(held["pos"]), held["y"][:, GAP]
    gap = (gap - gap.mean()) / gap.std()
    chosen = np.random.default_rng(0).permutation(len(ptr) - 1)[: count + 1000]
    rows = [slice(ptr[i], ptr[i + 1]) for i in chosen]
    graphs = [near(Data(z=z[row], pos=pos[row], y=torch.tensor([gap[i]]))) for i, row in zip(chosen, rows, strict=True)]
    return graphs[:count], graphs[count:]


if __name__ == "__main__":
    run(main)
