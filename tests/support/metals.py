"""Small structures of aluminium and copper, with the energies, forces and stress of EMT."""

from typing import Any

import numpy as np


def metals(number: int = 12, keep: bool = False) -> list[Any]:
    """Return crystals, clusters and a single atom with labels `REF_energy` etc.; only crystals have a stress.

    Args:
        number: Number of structures.
        keep: Whether labels are in a calculator instead; a missing stress is then NaN.
    """
    import ase
    from ase.build import bulk
    from ase.calculators.emt import EMT
    from ase.calculators.singlepoint import SinglePointCalculator

    rng, made = np.random.default_rng(0), [ase.Atoms("Cu")]
    while len(made) < number:
        if len(made) % 3 == 0:
            atoms = bulk("Cu" if len(made) % 2 else "Al", cubic=True)
        else:
            atoms = bulk("Al", cubic=True).repeat((3, 1, 1))[: 2 + len(made) % 9]
            atoms.numbers[0], atoms.pbc, atoms.cell = 29, False, np.zeros((3, 3))
        atoms.positions += rng.normal(0, 0.05, atoms.positions.shape)
        made.append(atoms)
    for atoms in made:
        atoms.calc = EMT()
        labels = {"energy": atoms.get_potential_energy(), "forces": atoms.get_forces()}
        stress = atoms.get_stress() if atoms.pbc.all() else np.full(6, np.nan)
        if keep:
            atoms.calc = SinglePointCalculator(atoms, **labels, stress=stress)
            continue
        atoms.calc, atoms.info["REF_energy"], atoms.arrays["REF_forces"] = None, labels["energy"], labels["forces"]
        if atoms.pbc.all():
            atoms.info["REF_stress"] = stress
    return made
