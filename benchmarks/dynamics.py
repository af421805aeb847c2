"""Time of a step of dynamics under ASE with compiled and with eager models: a molecule, a periodic crystal, water.

    pip install ase vesin schnetpack     # without SchNetPack, compiled PaiNN is compared only with popgeo's eager PaiNN
    python benchmarks/dynamics.py

One thread, random weights, very short time steps so that no bond breaks, denormal numbers flushed. The eager models of
the crystal use the same calculator, so all models get their neighbors from the same search. popgeo's share of a step is
its time less that of a step with an ASE calculator that returns zeros.
"""

import argparse
import functools
import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch_geometric.nn as pyg
from forces import SchNetPack, processor
from timing import measure, one_thread
from torch import Tensor, nn

from popgeo import compile_forward
from popgeo.command_line import run
from popgeo.deploy import Calculator
from popgeo.nn import PaiNN, SchNet
from popgeo.ops import distance

GOAL_OF_ETHANOL, GOAL_OF_OURS = 0.8, 0.2  # milliseconds per step: in all, and without ASE's share
GOAL_OF_COPPER = 5.0  # ratio of the eager time to the compiled time
GOAL_OF_WATER = 1.2  # time per atom of the large system over time per atom of a system a tenth as large
SCHNET, CUTOFF, TIME_STEP = (64, 64, 3, 25), 5.0, 0.02


class Lengths(nn.Module):
    """An interaction graph for PyG's model that returns the edges of a calculator."""

    def __init__(self, edge_index: Tensor, edge_shift: Tensor) -> None:
        super().__init__()
        self.edge_index, self.edge_shift = edge_index, edge_shift

    def forward(self, pos: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
        return self.edge_index, distance(pos, self.edge_index, None, CUTOFF, self.edge_shift)


class PyGsSchNet(nn.Module):
    """PyG's SchNet with the arguments that the calculator passes."""

    def __init__(self) -> None:
        super().__init__()
        self.schnet = pyg.SchNet(*SCHNET, CUTOFF)

    def forward(
        self, z: Tensor, pos: Tensor, batch: Tensor, edge_index: Tensor, *, edge_shift: Tensor, num_graphs: int
    ) -> Tensor:
        self.schnet.interaction_graph = Lengths(edge_index, edge_shift)
        return self.schnet(z, pos, batch)


def steps(atoms: Any, calculator: Any, count: int, settle: int) -> Callable[[], object]:
    """Return a function that runs `count` steps; run `settle` steps first."""
    from ase.md.verlet import VelocityVerlet

    atoms.calc = calculator
    dynamics = VelocityVerlet(atoms, TIME_STEP)
    dynamics.run(settle)
    return functools.partial(dynamics.run, count)


def print_ethanol(rounds: int) -> None:
    """Print the time of a step of ethanol with SchNet, and with a calculator that returns zeros."""
    import ase.build
    from ase.calculators.calculator import Calculator as OfASE

    class Zeros(OfASE):
        implemented_properties = ("energy", "forces")

        def calculate(self, atoms: Any, properties: Sequence[str], system_changes: Sequence[str]) -> None:
            super().calculate(atoms, properties, system_changes)
            self.results = {"energy": 0.0, "forces": np.zeros((len(atoms), 3))}

    calculators = {"popgeo": Calculator(SchNet(*SCHNET, CUTOFF), compile=compile_forward), "zeros": Zeros()}
    molecule = ase.build.molecule("CH3CH2OH")
    ways = {name: steps(molecule.copy(), each, 10, settle=20) for name, each in calculators.items()}
    whole, of_ase = (1e2 * seconds for seconds in measure(ways, rounds=rounds).values())
    goals = ((whole, GOAL_OF_ETHANOL), (whole - of_ase, GOAL_OF_OURS))
    of_step, of_ours = (f"goal {goal}: {'met' if spent <= goal else 'missed'}" for spent, goal in goals)
    print(f"  a step of ethanol: {whole:.2f} ms ({of_step})")
    print(
        f"  with a calculator that returns zeros: {of_ase:.2f} ms; popgeo's share: {whole - of_ase:.2f} ms ({of_ours})"
    )


def print_copper(repeats: Sequence[int], rounds: int) -> None:
    """Print the time of a step of a copper crystal at 300 K, compiled and eager."""
    import ase.build

    peer, schnet, painn = PyGsSchNet(), SchNet(*SCHNET, CUTOFF), PaiNN(64, 3, cutoff=CUTOFF)
    schnet.load_state_dict(peer.schnet.state_dict())
    calculators = {
        "PyG's SchNet": Calculator(peer, CUTOFF),
        "SchNet": Calculator(schnet, compile=compile_forward),
        "our eager PaiNN": Calculator(painn),
        "PaiNN": Calculator(painn, compile=compile_forward),
    }
    if importlib.util.find_spec("schnetpack") is not None:
        calculators["SchNetPack's PaiNN"] = Calculator(SchNetPack(64, 3, 20), CUTOFF)
    ways, energies, crystal = {}, {}, ase.build.bulk("Cu", cubic=True).repeat(repeats)
    crystal.positions += np.random.default_rng(0).normal(0, 0.05, crystal.positions.shape)
    for name, calculator in calculators.items():
        atoms = crystal.copy()
        ways[name] = steps(atoms, calculator, 3, settle=3)
        energies[name] = atoms.get_potential_energy() / len(atoms)
    spent = measure(ways, rounds=rounds)
    for ours, peers in (("SchNet", "PyG's SchNet"), ("PaiNN", "our eager PaiNN"), ("PaiNN", "SchNetPack's PaiNN")):
        if peers not in spent:
            continue
        of_others = peers.startswith("SchNetPack")  # its weights differ from popgeo's
        assert of_others or abs(energies[ours] - energies[peers]) < 1e-4 * abs(energies[peers]), energies
        ratio = spent[peers] / spent[ours]
        verdict = f" (goal {GOAL_OF_COPPER:.0f}: {'met' if ratio >= GOAL_OF_COPPER else 'missed'})"
        print(
            f"  a step of {len(crystal)} atoms of copper, {ours} compiled: {1e3 * spent[ours] / 3:.2f} ms, "
            f"{ratio:.2f}x {peers}{'' if peers.startswith('our') else verdict}"
        )


def print_water(sides: Sequence[int], rounds: int) -> None:
    """Print the time per atom in periodic boxes of water with `sides` molecules along an edge."""
    import ase

    for_an_atom = {}
    for side in sides:
        grid = 3.1 * np.stack(np.meshgrid(*3 * [np.arange(side)], indexing="ij"), -1).reshape(-1, 3)
        pos = np.concatenate([grid + bond for bond in np.array([[0, 0, 0], [0.96, 0, 0], [-0.24, 0.93, 0]])])
        symbols = ["O"] * len(grid) + ["H"] * (2 * len(grid))
        atoms = ase.Atoms(symbols, pos, cell=3 * [3.1 * side], pbc=True)
        way = steps(atoms, Calculator(SchNet(*SCHNET, CUTOFF), compile=compile_forward), 3, settle=3)
        for_an_atom[len(atoms)] = measure({"water": way}, rounds=rounds)["water"] / 3 / len(atoms)
    few, many = min(for_an_atom), max(for_an_atom)
    ratio = for_an_atom[many] / for_an_atom[few]
    goal = f"goal {GOAL_OF_WATER:g}: {'met' if ratio <= GOAL_OF_WATER else 'missed'}"
    times = ", ".join(f"{1e6 * seconds:.0f} us of {count:,}" for count, seconds in for_an_atom.items())
    print(f"  time per atom of a step of water: {times}; {ratio:.2f}x from {few:,} to {many:,} atoms ({goal})")


def print_drift(count: int) -> None:
    """Print the drift of the total energy at constant energy, with filters on a grid and at each edge."""
    import ase.build
    from ase.md.velocitydistribution import MaxwellBoltzmannDistribution
    from ase.md.verlet import VelocityVerlet

    crystal = ase.build.bulk("Cu", cubic=True).repeat((2, 2, 2))
    for name, start in (("ethanol", ase.build.molecule("CH3CH2OH")), ("copper", crystal)):
        drifts = {}
        for filters in ("grid", "edges"):
            torch.manual_seed(0)
            atoms = start.copy()
            atoms.calc = Calculator(SchNet(*SCHNET, CUTOFF, filters=filters), compile=compile_forward)
            MaxwellBoltzmannDistribution(atoms, temperature_K=300, rng=np.random.RandomState(0))
            energies: list[float] = []
            dynamics = VelocityVerlet(atoms, 0.1)
            dynamics.attach(lambda atoms=atoms, energies=energies: energies.append(atoms.get_total_energy()), 20)
            dynamics.run(count)
            drifts[filters] = 1e3 * np.polyfit(range(len(energies)), energies, 1)[0] * len(energies) / len(atoms)
        found = ", ".join(f"{drift:+.4f} meV with filters {way}" for way, drift in drifts.items())
        print(f"  energy drift per atom of {name} in {count:,} steps: {found}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="use a small crystal and two rounds")
    parser.add_argument("--drift", type=int, help="print the energy drift over this number of steps instead of times")
    options = parser.parse_args()
    one_thread()
    torch.manual_seed(0)
    torch.set_flush_denormal(True)
    print(processor())
    if options.drift:
        return print_drift(options.drift)
    rounds = 2 if options.quick else options.rounds
    print_ethanol(rounds)
    print_water((4, 7) if options.quick else (7, 15), rounds)
    print_copper((2, 2, 2) if options.quick else (3, 3, 3), rounds)


if __name__ == "__main__":
    run(main)
