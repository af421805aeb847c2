"""Small files of atoms for tests: extended XYZ as text, and structures with results."""

import pytest

ase = pytest.importorskip("ase")


def write_xyz(path, header, columns="species:S:1:pos:R:3", rows=("Cu 0 0 0", "Cu 0 0 2.5"), count=2, lattice=True):
    cell = 'Lattice="5 0 0 0 5 0 0 0 5" ' if lattice else ""
    path.write_text(f"{len(rows)}\n{cell}Properties={columns} {header}\n" + "\n".join(rows) + "\n")
    path.write_text(path.read_text() * count)
    return path


def structure(num_atoms, **results):
    from ase.calculators.singlepoint import SinglePointCalculator

    atoms = ase.Atoms("H" * num_atoms, positions=[[0, 0, 1.5 * i] for i in range(num_atoms)], cell=[20] * 3, pbc=True)
    atoms.calc = SinglePointCalculator(atoms, **{"energy": -1.0 * num_atoms, **results})
    return atoms
