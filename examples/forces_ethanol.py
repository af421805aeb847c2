"""Train SchNet or PaiNN on energies and forces of ethanol, computed by DFT, and run molecular dynamics with it.

    python examples/forces_ethanol.py --data FOLDER
    python examples/forces_ethanol.py --data FOLDER --model painn
    python examples/forces_ethanol.py --data FOLDER --beside pyg
    python examples/forces_ethanol.py --data FOLDER --dynamics 2000

`--data` is a folder with `rmd17_ethanol.npz` of rMD17 (https://doi.org/10.6084/m9.figshare.12672038, in kcal/mol), from
which the script draws a thousand frames each for training and testing; or with `ethanol_train.npz` and
`ethanol_test.npz`: `z` [atoms], `pos` [frames, atoms, 3] in angstrom, `energy` [frames] in eV and `forces` [frames,
atoms, 3] in eV/angstrom. `popgeo train` does a similar job in one command, from a file that ASE reads. The script
prints the errors on the test frames (MAE) and the errors of predicting the mean energy and zero forces: 0.14 eV and
0.88 eV/angstrom fall to about 0.013 and 0.04 in the 60 epochs, a minute on one core. `--beside pyg` also trains PyG's
own SchNet from the same weights with plain PyG code, and prints error and processor minutes of both. Then the script
shows that padding does not change forces. `--dynamics` needs ase, and prints the energy drift of a run at 300 K.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader

from popgeo import ipu
from popgeo.command_line import run
from popgeo.data import FixedSizeOptions
from popgeo.deploy import Calculator
from popgeo.loader import FixedSizeDataLoader
from popgeo.nn import PaiNN, PrecomputeInteractionGraph, SchNet, energy_and_forces, mse_loss

CUTOFF = 5.0
KCAL_PER_MOL = 0.0433641153  # eV


class ForceModel(nn.Module):
    """A model of energies and forces with their loss (arXiv:1706.08566, eq. 6)."""

    def __init__(self, potential: nn.Module, num_graphs: int, energy_weight: float) -> None:
        super().__init__()
        self.potential, self.num_graphs, self.energy_weight = potential, num_graphs, energy_weight

    def forward(
        self, z: Tensor, pos: Tensor, batch: Tensor, pairs: Tensor, energy: Tensor, forces: Tensor, graphs_mask: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return energies [num_graphs], forces [num_nodes, 3] and the loss []."""
        out, found = energy_and_forces(self.potential, z, pos, batch, pairs, num_graphs=self.num_graphs, half_list=True)
        of_energy = mse_loss(out.flatten(), energy, graphs_mask)
        of_forces = mse_loss(found, forces, z > 0)
        return out.flatten(), found, of_forces + self.energy_weight * of_energy


class KnownEdges(nn.Module):
    """An interaction graph for PyG's SchNet that returns the batch's edges with their lengths."""

    edge_index: Tensor

    def forward(self, pos: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
        source, target = self.edge_index
        return self.edge_index, (pos[source] - pos[target]).norm(dim=1)


class PlainPyG:
    """PyG's own SchNet, trained with plain PyG code: batches without padding, forces by autograd, an eager Adam step.

    It starts from the weights of `potential` and also uses precomputed edges, so that only the step differs.
    """

    def __init__(
        self, potential: Any, learning_rate: Callable[[int], float], batch_size: int, energy_weight: float
    ) -> None:
        channels = potential.hidden_channels
        self.model = pyg.SchNet(channels, channels, 3, 25, CUTOFF, interaction_graph=KnownEdges())
        self.model.load_state_dict(potential.state_dict())
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1.0)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, learning_rate)
        self.batch_size, self.energy_weight = batch_size, energy_weight

    def loader(self, frames: list[Data], shuffle: bool = False) -> DataLoader:
        """Return PyG's own loader of the same frames, with each pair in both directions."""
        both = [frame.clone() for frame in frames]
        for frame in both:
            frame.edge_index = torch.cat([frame.edge_index, frame.edge_index.flip(0)], 1)
        return DataLoader(both, self.batch_size, shuffle=shuffle, drop_last=shuffle)

    def predict(self, batch: Data, training: bool) -> tuple[Tensor, Tensor]:
        """Return energies [num_graphs] and forces [num_nodes, 3]."""
        pos = batch.pos.clone().requires_grad_()
        self.model.interaction_graph.edge_index = batch.edge_index
        energy = self.model(batch.z, pos, batch.batch).flatten()
        (slope,) = torch.autograd.grad(energy.sum(), pos, create_graph=training)
        return energy, -slope

    def train_epoch(self, frames: DataLoader) -> None:
        """Update the model once per batch."""
        for batch in frames:
            self.optimizer.zero_grad()
            energy, forces = self.predict(batch, training=True)
            of_energy = nn.functional.mse_loss(energy, batch.energy)
            (nn.functional.mse_loss(forces, batch.forces) + self.energy_weight * of_energy).backward()
            self.optimizer.step()
            self.schedule.step()

    def errors(self, frames: DataLoader) -> tuple[float, float]:
        """Return the mean absolute errors of energies (eV) and forces (eV/angstrom)."""
        of_energy, of_forces = [], []
        for batch in frames:
            energy, forces = self.predict(batch, training=False)
            of_energy.append((energy.detach() - batch.energy).abs())
            of_forces.append((forces - batch.forces).abs())
        return float(torch.cat(of_energy).mean()), float(torch.cat(of_forces).mean())


def potential_of(name: str, channels: int) -> nn.Module:
    """Return the potential with three blocks of `channels` channels."""
    if name == "painn":
        return PaiNN(channels, num_interactions=3, num_radial=20, cutoff=CUTOFF)
    return SchNet(channels, channels, num_interactions=3, num_gaussians=25, cutoff=CUTOFF)


def frames_of(folder: Path, part: str) -> dict[str, np.ndarray]:
    """Return the arrays of a part's file, or a thousand random frames of rMD17's file, different per part."""
    if not (folder / "rmd17_ethanol.npz").exists():
        with np.load(folder / f"ethanol_{part}.npz") as held:
            return dict(held)
    with np.load(folder / "rmd17_ethanol.npz") as held:
        order = np.random.default_rng(0).permutation(len(held["energies"]))
        ids = order[:1000] if part == "train" else order[1000:2000]
        return {
            "z": held["nuclear_charges"],
            "pos": held["coords"][ids].astype(np.float32),
            "energy": KCAL_PER_MOL * held["energies"][ids],
            "forces": (KCAL_PER_MOL * held["forces"][ids]).astype(np.float32),
        }


def read(folder: Path, part: str, mean: float | None = None) -> tuple[list[Data], float]:
    """Return the frames of a part (`train` or `test`) without the mean energy, and the mean energy (eV)."""
    held = frames_of(folder, part)
    z = torch.from_numpy(held["z"].astype(np.int64))
    mean = float(held["energy"].mean()) if mean is None else mean
    list_pairs = PrecomputeInteractionGraph(CUTOFF, half_list=True)
    frames = [
        list_pairs(
            Data(z=z, pos=torch.from_numpy(pos), energy=torch.tensor([e - mean]).float(), forces=torch.from_numpy(f))
        )
        for pos, e, f in zip(held["pos"], held["energy"], held["forces"], strict=True)
    ]
    return frames, mean


def loader_of(
    frames: list[Data], frames_per_batch: int, num_nodes: int | None = None, shuffle: bool = False
) -> FixedSizeDataLoader:
    """Return a loader of batches with `frames_per_batch` frames and one padding graph."""
    pairs = max(frame.num_edges for frame in frames)
    atoms = frames_per_batch * frames[0].num_nodes + 1
    sizes = FixedSizeOptions(num_nodes or atoms, frames_per_batch * pairs + 1, frames_per_batch + 1)
    return FixedSizeDataLoader(
        frames, fixed_size_options=sizes, levels={"forces": "node", "energy": "graph"}, shuffle=shuffle
    )


def errors(model: ipu.CompiledStep, frames: FixedSizeDataLoader) -> tuple[float, float]:
    """Return the mean absolute errors of energies (eV) and forces (eV/angstrom) over real frames and atoms."""
    of_energy, of_forces = [], []
    for batch in frames:
        energy, forces, _ = model(*arguments_of(batch))
        of_energy.append((energy - batch.energy)[batch.graphs_mask].abs())
        of_forces.append((forces - batch.forces)[batch.nodes_mask].abs())
    return float(torch.cat(of_energy).mean()), float(torch.cat(of_forces).mean())


def told(found: tuple[float, float], seconds: float) -> str:
    """Return the errors and the processor time so far, as text."""
    of_energy, of_forces = found
    return f"test error of energy {of_energy:.3f} eV, forces {of_forces:.3f} eV/A after {seconds / 60:.2f} minutes"


def arguments_of(batch: Data) -> tuple[Tensor, ...]:
    """Return the model's arguments from a batch."""
    return batch.z, batch.pos, batch.batch, batch.edge_index, batch.energy, batch.forces, batch.graphs_mask


def show_that_padding_touches_no_force(potential: nn.Module, frames: list[Data]) -> None:
    """Print the largest force on a padding atom, and the change of real forces by more padding."""
    found = []
    for num_nodes in (None, 150):
        batch = next(iter(loader_of(frames[:10], 10, num_nodes)))
        _, forces = energy_and_forces(
            potential, batch.z, batch.pos, batch.batch, batch.edge_index, num_graphs=11, half_list=True
        )
        of_padding = forces[~batch.nodes_mask]
        print(f"largest force on {len(of_padding)} padding atoms: {of_padding.abs().max()} eV/A")
        found.append(forces[batch.nodes_mask])
    print(f"largest change of a real force by that padding: {(found[0] - found[1]).abs().max():.1e} eV/A")


def run_dynamics(potential: nn.Module, frame: Data, steps: int) -> None:
    """Print the energy drift of a run of `steps` half femtoseconds, and the number of compilations."""
    import ase
    from ase import units
    from ase.md.verlet import VelocityVerlet

    atoms = ase.Atoms(frame.z.numpy(), frame.pos.double().numpy())
    atoms.calc = Calculator(potential, compile=ipu.inference_model)
    kick = np.random.default_rng(0).normal(size=(len(atoms), 3))
    atoms.set_momenta(kick * np.sqrt(atoms.get_masses() * units.kB * 300)[:, None])
    before = atoms.get_total_energy()
    VelocityVerlet(atoms, 0.5 * units.fs).run(steps)
    drift = 1000 * (atoms.get_total_energy() - before) / len(atoms)
    print(f"{steps} steps: drift {drift:.2f} meV per atom, compiled {atoms.calc.num_compilations} times")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data", type=Path, default=Path("data/md"), help="folder of rmd17_ethanol.npz or of the two files"
    )
    parser.add_argument("--model", choices=("schnet", "painn"), default="schnet")
    parser.add_argument("--frames", type=int, default=1000, help="number of training frames")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--channels", type=int, default=64)
    parser.add_argument("--lr", type=float, default=2e-3, help="initial learning rate of a cosine schedule")
    parser.add_argument("--batch-size", type=int, default=10, help="frames per batch")
    parser.add_argument(
        "--energy-weight", type=float, default=0.1, help="weight of the energy's squared error in the loss"
    )
    parser.add_argument("--beside", choices=("pyg",), help="also train PyG's own SchNet on the same frames")
    parser.add_argument("--dynamics", type=int, default=0, help="steps of molecular dynamics afterwards")
    arguments = parser.parse_args()
    if arguments.beside and arguments.model != "schnet":
        parser.error("--beside pyg needs --model schnet: PyG has no PaiNN")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    training, mean = read(arguments.data, "train")
    testing, _ = read(arguments.data, "test", mean)
    training = training[: arguments.frames]
    energies, forces = torch.cat([f.energy for f in testing]), torch.cat([f.forces for f in testing])
    print(
        f"predicting the mean: energy {energies.abs().mean():.3f} eV, forces {forces.abs().mean():.3f} eV/A", flush=True
    )

    potential = potential_of(arguments.model, arguments.channels)
    model = ForceModel(potential, arguments.batch_size + 1, arguments.energy_weight)
    loader = loader_of(training, arguments.batch_size, shuffle=True)
    held_out = loader_of(testing, arguments.batch_size)
    num_steps = arguments.epochs * len(loader)

    def learning_rate(step: int) -> float:
        return arguments.lr * 0.5 * (1 + np.cos(np.pi * step / num_steps))

    peer = None
    if arguments.beside == "pyg":
        peer = PlainPyG(potential, learning_rate, arguments.batch_size, arguments.energy_weight)
        its_loader, its_held_out = peer.loader(training, shuffle=True), peer.loader(testing)
    train = ipu.training_model(
        model.train(), optimizer=torch.optim.Adam(model.parameters()), learning_rate=learning_rate
    )
    evaluate = ipu.inference_model(model)
    seconds, its_seconds, least = 0.0, 0.0, float("inf")
    for epoch in range(1, arguments.epochs + 1):
        start = time.process_time()
        for batch in loader:
            began = time.process_time()
            train(*arguments_of(batch))
            least = min(least, time.process_time() - began)
        seconds += time.process_time() - start
        if peer:
            start = time.process_time()
            peer.train_epoch(its_loader)
            its_seconds += time.process_time() - start
        if epoch % max(1, arguments.epochs // 6) == 0:
            model.eval()
            print(f"epoch {epoch}: {told(errors(evaluate, held_out), seconds)}", flush=True)
            model.train()
            if peer:
                beside = told(peer.errors(its_held_out), its_seconds)
                print(
                    f"{'PyG':>{len(f'epoch {epoch}')}}: {beside}, {its_seconds / seconds:.1f} times popgeo's",
                    flush=True,
                )
    print(
        f"an update: {1000 * least:.1f} ms of processor time at least, and on a modelled Bow IPU "
        f"{train.report.total_cycles:,.0f} cycles"
    )
    show_that_padding_touches_no_force(potential.eval(), testing)
    if arguments.dynamics:
        run_dynamics(potential, testing[0], arguments.dynamics)


if __name__ == "__main__":
    run(main)
