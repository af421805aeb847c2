"""The published case study of SchNet on IPUs, run with PopTorch's own names on this computer.

    python benchmarks/case_study.py                                  # five epochs on all of QM9: hours
    python benchmarks/case_study.py --molecules 7000 --epochs 1      # a part of QM9
    python benchmarks/case_study.py --root FOLDER                    # FOLDER holds qm9.npz; or set POPGEO_SHARED_DATA

PyG's SchNet learns the HOMO-LUMO gap (eV) with the settings of the study: 28 nearest neighbors within 10 angstrom,
eight molecules per batch (one is padding), 32 device iterations, 16 replicas, AdamW at 1e-4. The script prints the mean
loss (squared error, eV^2) of each epoch next to the published loss, the seconds of each epoch, and the use of each
option. Fewer molecules give fewer updates per epoch, so losses are higher. Without QM9, it uses the bundled molecules.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import real_data
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Data
from torch_geometric.nn import to_fixed_size
from torch_geometric.nn.models import SchNet

from popgeo import compat
from popgeo.command_line import run
from popgeo.datasets import Molecules
from popgeo.nn import KNNInteractionGraph
from popgeo.ops.neighbors import Neighbors

compat.enable()
import poptorch  # noqa: E402  `compat.enable` makes these names importable
import poptorch_geometric  # noqa: E402

PUBLISHED = (0.375, 0.293, 0.270, 0.256, 0.234)  # mean loss of each epoch (eV^2), read from the case study's figure
BATCH_SIZE, ATOMS, CUTOFF = 8, 32, 10.0
GAP = 4  # index among QM9's targets


class RealNeighbors(KNNInteractionGraph):
    """The nearest atoms of each real atom. Padding atoms share one position, and the loss ignores their messages."""

    def find(self, pos: Tensor, batch: Tensor, num_graphs: int, nodes_mask: Tensor | None) -> Neighbors:
        """Return `k` edges for each atom, in the order of the atoms [num_nodes * k]."""
        return super().find(pos, batch, BATCH_SIZE, batch < BATCH_SIZE - 1)


class TrainingModel(nn.Module):
    """SchNet with its loss; the last molecule of a batch is padding."""

    def __init__(self, schnet: SchNet) -> None:
        super().__init__()
        self.schnet = to_fixed_size(schnet, batch_size=BATCH_SIZE)

    def forward(self, z: Tensor, pos: Tensor, batch: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gaps of the real molecules (eV) [7] and the loss (eV^2) []."""
        gaps = self.schnet(z, pos, batch).view(-1)[:-1]
        return gaps, F.mse_loss(gaps, target[:-1])


def qm9(root: Path | None, count: int | None) -> list[Data]:
    """Return molecules with atoms, positions (angstrom) and gap (eV), in random order."""
    path = root / "qm9.npz" if root is not None else real_data.shared("qm9.npz")
    if path is None:
        real_data.say_random("qm9.npz", "the bundled molecules")
        gap = Molecules.target_index("gap")
        molecules = [Data(z=m.z, pos=m.pos, y=m.y[0, gap].view(-1)) for m in Molecules()[:count]]
    else:
        with np.load(path) as held:
            sizes, targets = held["num_atoms"].astype(int).tolist(), torch.from_numpy(held["y"][:, GAP])
            atoms, positions = torch.from_numpy(held["z"].astype(int)), torch.from_numpy(held["pos"])
        parts = zip(atoms.split(sizes), positions.split(sizes), targets.float().view(-1, 1), strict=True)
        molecules = [Data(z=z, pos=pos, y=y) for z, pos, y in parts]
    order = torch.randperm(len(molecules), generator=torch.Generator().manual_seed(0)).tolist()
    return [molecules[i] for i in order[:count]]


def study_options(device_iterations: int, replicas: int) -> poptorch.Options:
    """Return the options of the study."""
    options = poptorch.Options()
    options.outputMode(poptorch.OutputMode.All)
    options.deviceIterations(device_iterations)
    options.replicationFactor(replicas)
    options._Popart.set("defaultBufferingDepth", 4)
    return options


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, help="folder with qm9.npz")
    parser.add_argument("--molecules", type=int, help="number of molecules (default: all)")
    parser.add_argument("--epochs", type=int, default=len(PUBLISHED))
    parser.add_argument("--device-iterations", type=int, default=32)
    parser.add_argument("--replicas", type=int, default=16)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="use few molecules and a small model; takes seconds")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    sizes = {"hidden_channels": 16, "num_filters": 16, "num_interactions": 1} if arguments.quick else {}
    if arguments.quick:
        arguments.molecules, arguments.epochs, arguments.device_iterations, arguments.replicas = 56, 2, 2, 2
    molecules = qm9(arguments.root, arguments.molecules)
    options = study_options(arguments.device_iterations, arguments.replicas)
    an_item = (BATCH_SIZE - 1) * arguments.device_iterations * arguments.replicas
    if len(molecules) < an_item:
        parser.error(f"{len(molecules)} molecules do not fill one call of {an_item}; lower --device-iterations.")
    loader = poptorch_geometric.FixedSizeDataLoader(
        molecules,
        batch_size=BATCH_SIZE,
        fixed_size_options=poptorch_geometric.FixedSizeOptions(ATOMS * (BATCH_SIZE - 1), 1, num_graphs=BATCH_SIZE),
        options=options,
    )
    torch.manual_seed(0)
    model = TrainingModel(SchNet(cutoff=CUTOFF, interaction_graph=RealNeighbors(28, CUTOFF, ATOMS), **sizes))
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=1e-4)
    training = poptorch.trainingModel(model, options, optimizer)
    print(f"{len(loader) * an_item} of {len(molecules)} molecules per epoch, {an_item} per call", flush=True)

    for epoch in range(arguments.epochs):
        begin, busy, losses = time.monotonic(), time.process_time(), []
        for data in loader:
            _, loss = training(data.z, data.pos, data.batch, data.y)
            losses.append(float(loss.mean()))
        published = f" (published {PUBLISHED[epoch]:.3f})" if epoch < len(PUBLISHED) else ""
        spent, busy = time.monotonic() - begin, time.process_time() - busy
        rate = len(loader) * an_item / spent
        told = f"epoch {epoch + 1}: loss {float(np.mean(losses)):.3f}{published}, {spent:.0f} s, {rate:.0f} molecules/s"
        print(f"{told} ({busy:.0f} s of one core)", flush=True)
    training.detachFromDevice()
    print(poptorch.compat_report().to_string(index=False))


if __name__ == "__main__":
    run(main)
