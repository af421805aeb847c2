"""Make popgeo/datasets/molecules.npz from a seed.

Molecules are grown at random (grow.py). Each is embedded five times with ETKDGv3 and relaxed with MMFF94 to
convergence. The lowest conformer is rounded to the grid of the file, and gets a GFN2-xTB single point at exactly these
positions. Molecules are dropped if a calculation does not converge, if their bonds change, or if their gap is almost
zero. The same seed and versions of rdkit and tblite give the same file; a long run begins with the molecules of a short
run.

    pip install rdkit tblite
    OMP_NUM_THREADS=1 python scripts/make_molecules.py --out molecules.npz
"""

import argparse
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import grow
import numpy as np
from rdkit import Chem, rdBase
from rdkit.Chem import rdDistGeom, rdForceFieldHelpers
from tblite.exceptions import TBLiteRuntimeError
from tblite.interface import Calculator
from tqdm import tqdm

POS_STEP = 0.0005  # angstrom; int16 reaches 16 angstrom
TARGET_STEP = 1e-5  # eV, debye
EV_PER_HARTREE = 27.211386245988
BOHR_PER_ANGSTROM = 1.8897261246257702
DEBYE_PER_ATOMIC_UNIT = 2.541746473
MMFF_MAX_STEPS = 5000
MAX_SEED = 2**24  # the embedding's seed is a 32-bit number
NUM_CONFORMERS = 5
MAX_EMBEDDING_TRIES = 20
MIN_GAP = 1.0  # eV; below it, the closed shell of the calculation is unreliable
BOND_KINDS = (Chem.BondType.SINGLE, Chem.BondType.DOUBLE, Chem.BondType.TRIPLE, Chem.BondType.AROMATIC)
HYBRIDIZATIONS = {Chem.HybridizationType.SP: 1, Chem.HybridizationType.SP2: 2, Chem.HybridizationType.SP3: 3}


@dataclass(frozen=True, kw_only=True)
class Record:
    """One molecule in the format of the file."""

    smiles: str
    z: np.ndarray  # uint8 [num_atoms]
    pos: np.ndarray  # int16 [num_atoms, 3], in units of POS_STEP
    hybridization: np.ndarray  # uint8 [num_atoms]: 0 none (hydrogen), 1 sp, 2 sp2, 3 sp3
    bond: np.ndarray  # uint8 [num_bonds, 3]: atom, atom, index into BOND_KINDS; each bond once
    targets: np.ndarray  # int32 [4]: homo, lumo, dipole, energy, in units of TARGET_STEP


def relaxed(smiles: str, seed: int) -> Chem.Mol | None:
    """Return the lowest of a few minima of MMFF94, or None. Atoms are in the order of `smiles`, then hydrogens.

    These SMILES have no stereochemistry, so embeddings may be different stereoisomers; the lowest energy excludes
    strained stereoisomers, such as trans-fused small rings.
    """
    mol = Chem.AddHs(Chem.MolFromSmiles(smiles))
    embedding: Any = rdDistGeom.ETKDGv3()
    embedding.randomSeed = seed + 1  # conformer i uses (i + 1) times this seed, so with 0 all would be equal
    embedding.maxIterations = MAX_EMBEDDING_TRIES
    conformers = list(rdDistGeom.EmbedMultipleConfs(mol, NUM_CONFORMERS, embedding))
    if not conformers:
        return None
    results = rdForceFieldHelpers.MMFFOptimizeMoleculeConfs(mol, mmffVariant="MMFF94", maxIters=MMFF_MAX_STEPS)
    energies = {i: energy for i, (status, energy) in zip(conformers, results, strict=True) if status == 0}
    if not energies:
        return None
    return Chem.Mol(mol, confId=min(energies, key=energies.__getitem__))


def keeps_its_bonds(mol: Chem.Mol) -> bool:
    """Check whether distances agree with the graph: bonded atoms are near, all other pairs apart."""
    table = Chem.GetPeriodicTable()
    radius = np.array([table.GetRcovalent(atom.GetAtomicNum()) for atom in mol.GetAtoms()])
    ratio = Chem.Get3DDistanceMatrix(mol) / (radius[:, None] + radius)
    bonded = Chem.GetAdjacencyMatrix(mol).astype(bool)
    apart = ~bonded & ~np.eye(len(radius), dtype=bool)
    return bool(((ratio[bonded] > 0.75) & (ratio[bonded] < 1.3)).all() and (ratio[apart] > 1.15).all())


def compute_targets(z: np.ndarray, pos: np.ndarray) -> np.ndarray | None:
    """Return HOMO, LUMO (eV), dipole (debye) and total energy (eV) by GFN2-xTB, or None without convergence.

    Args:
        z: Atomic numbers. [num_atoms]
        pos: Positions in angstrom. [num_atoms, 3]
    """
    calculator = Calculator("GFN2-xTB", z.astype(np.int32), pos * BOHR_PER_ANGSTROM)
    calculator.set("verbosity", 0)
    try:
        result = calculator.singlepoint()
    except TBLiteRuntimeError:
        return None
    levels = result["orbital-energies"] * EV_PER_HARTREE
    lumo = round(result["orbital-occupations"].sum() / 2)
    dipole = np.linalg.norm(result["dipole"]) * DEBYE_PER_ATOMIC_UNIT
    return np.array([levels[lumo - 1], levels[lumo], dipole, result["energy"] * EV_PER_HARTREE])


def make_record(smiles: str, seed: int) -> Record | None:
    """Return the molecule with positions and targets, or None if a step failed."""
    mol = relaxed(smiles, seed)
    if mol is None or not keeps_its_bonds(mol):
        return None
    pos = mol.GetConformer().GetPositions()
    pos = np.rint((pos - pos.mean(axis=0)) / POS_STEP).astype(np.int16)
    z = np.array([atom.GetAtomicNum() for atom in mol.GetAtoms()], dtype=np.uint8)
    targets = compute_targets(z, pos * POS_STEP)
    if targets is None or targets[1] - targets[0] < MIN_GAP:
        return None
    return Record(
        smiles=smiles,
        z=z,
        pos=pos,
        hybridization=np.array([HYBRIDIZATIONS.get(a.GetHybridization(), 0) for a in mol.GetAtoms()], dtype=np.uint8),
        bond=np.array(
            [(b.GetBeginAtomIdx(), b.GetEndAtomIdx(), BOND_KINDS.index(b.GetBondType())) for b in mol.GetBonds()],
            dtype=np.uint8,
        ),
        targets=np.rint(targets / TARGET_STEP).astype(np.int32),
    )


def records(seed: int) -> Iterator[Record]:
    """Yield all accepted molecules of a seed, without end."""
    for smiles in grow.stream(seed):
        if (record := make_record(smiles, seed)) is not None:
            yield record


def write(path: Path, molecules: list[Record], seed: int) -> None:
    """Write the compressed file next to its place and move it there, so that no reader finds a partial file."""
    partial = path.with_name(path.name + ".part")
    with partial.open("wb") as file:
        np.savez_compressed(
            file,
            smiles=np.array([molecule.smiles for molecule in molecules], dtype="S"),
            num_atoms=np.array([len(molecule.z) for molecule in molecules], dtype=np.uint8),
            num_bonds=np.array([len(molecule.bond) for molecule in molecules], dtype=np.uint8),
            z=np.concatenate([molecule.z for molecule in molecules]),
            pos=np.concatenate([molecule.pos for molecule in molecules]),
            hybridization=np.concatenate([molecule.hybridization for molecule in molecules]),
            bond=np.concatenate([molecule.bond for molecule in molecules]),
            targets=np.stack([molecule.targets for molecule in molecules]),
            pos_step=np.float64(POS_STEP),
            target_step=np.float64(TARGET_STEP),
            seed=np.int64(seed),
            versions=np.array([f"{package} {version(package)}" for package in ("rdkit", "tblite")]),
        )
    os.replace(partial, path)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="20,000 molecules take about 15 minutes.",
    )
    default_out = Path(__file__).resolve().parent.parent / "popgeo" / "datasets" / "molecules.npz"
    parser.add_argument("--seed", type=int, default=0, help="seed of all random choices (default: %(default)s)")
    parser.add_argument("--count", type=int, default=20_000, help="number of molecules (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=default_out, help="file to write (default: %(default)s)")
    options = parser.parse_args(arguments)
    if options.count < 1:
        parser.error(f"--count is {options.count}; at least 1 is needed")
    if not 0 <= options.seed < MAX_SEED:
        parser.error(f"--seed is {options.seed}; 0 to {MAX_SEED - 1} are allowed")
    if not options.out.resolve().parent.is_dir():
        parser.error(
            f"--out is {options.out}, but the folder {options.out.resolve().parent} does not exist; make it first"
        )
    rdBase.DisableLog("rdApp.*")  # no warnings about undefined stereo centres
    found = tqdm(islice(records(options.seed), options.count), total=options.count, desc="molecules", unit="molecule")
    write(options.out, list(found), options.seed)
    print(f"{options.count} molecules, {options.out.stat().st_size / 1e6:.2f} MB: {options.out}", file=sys.stderr)


if __name__ == "__main__":
    main()
