"""Train a force field on periodic copper with energies, forces and stress, and compute elastic properties with it.

    python examples/copper_stress.py
    python examples/copper_stress.py --data my_copper.xyz --epochs 200

Without `--data`, the script makes a hundred strained cells with random displacements and computes their energies,
forces and stress with EMT of ASE. It trains with `popgeo train`, then finds the lattice constant from the model's
stress alone, and the bulk modulus from the change of the stress with the volume. It prints both next to EMT's: 3.588
and 3.590 angstrom, 135 and 134 GPa. A minute on one core. It needs `pip install ase vesin`.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from popgeo.__main__ import main as popgeo
from popgeo.command_line import run
from popgeo.deploy import Calculator, ForceField


def shaken(number: int) -> list[Any]:
    """Return cells of 4 and 8 atoms, strained by a few percent, with EMT's energy, forces and stress."""
    from ase.build import bulk
    from ase.calculators.emt import EMT
    from ase.calculators.singlepoint import SinglePointCalculator

    draw, made = np.random.default_rng(0), []
    for i in range(number):
        atoms = bulk("Cu", cubic=True).repeat((1 + i % 2, 1, 1))
        strain = np.eye(3) * (1 + draw.normal(0, 0.02)) + draw.normal(0, 0.01, (3, 3))
        atoms.set_cell(atoms.cell.array @ strain, scale_atoms=True)
        atoms.positions += draw.normal(0, 0.08, atoms.positions.shape)
        atoms.calc = EMT()
        told = {"energy": atoms.get_potential_energy(), "forces": atoms.get_forces(), "stress": atoms.get_stress()}
        atoms.calc = SinglePointCalculator(atoms, **told)
        made.append(atoms)
    return made


def crystal_of(calculator: Any) -> tuple[float, float]:
    """Return the lattice constant (angstrom) at zero pressure, and the bulk modulus there (GPa)."""
    from ase.build import bulk
    from ase.units import GPa

    constants = np.linspace(3.5, 3.7, 9)
    pressures = []
    for a in constants:
        atoms = bulk("Cu", a=a, cubic=True)
        atoms.calc = calculator
        pressures.append(-atoms.get_stress()[:3].mean())
    fitted = np.polynomial.Polynomial.fit(constants, pressures, 3)
    (a,) = (root.real for root in fitted.roots() if abs(root.imag) < 1e-9 and 3.5 < root.real < 3.7)
    return float(a), float(-a / 3 * fitted.deriv()(a) / GPa)  # B = -V dp/dV, V = a^3


def main() -> int | None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="file of ASE with periodic structures, energies, forces, stress")
    parser.add_argument("--structures", type=int, default=100, help="number of structures to make without --data")
    parser.add_argument("--epochs", type=int, default=150)
    parser.add_argument("--out", type=Path, default=Path("popgeo-copper"), help="folder for data and results")
    arguments = parser.parse_args()
    from ase.calculators.emt import EMT
    from ase.io import write

    data = arguments.data
    if data is None:
        arguments.out.mkdir(parents=True, exist_ok=True)
        data = arguments.out / "copper.xyz"
        write(data, shaken(arguments.structures))
    small = ["--num-channels", "32", "--num-interactions", "2"]
    if status := popgeo(["train", str(data), *small, "--epochs", str(arguments.epochs), "--out", str(arguments.out)]):
        return status
    learned = Calculator(ForceField.load(arguments.out / "model.pt"))
    for name, calculator in (("EMT", EMT()), ("the model", learned)):
        constant, modulus = crystal_of(calculator)
        print(f"{name}: lattice constant {constant:.3f} angstrom, bulk modulus {modulus:.0f} GPa")
    return None


if __name__ == "__main__":
    run(main)
