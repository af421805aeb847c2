"""Structures of atoms as graphs, out of files of any size, with the pairs within a cutoff listed once."""

import copy
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset
from torch_geometric.data import Data

from popgeo.convert.atom_files import SUFFIXES, reach

# The most that a label can be; above that it is in another unit, or the calculation failed.
_LIMITS = {"energy": (1e6, "eV an atom"), "forces": (1e5, "eV/angstrom"), "stress": (1e3, "eV/angstrom^3")}
_TAKEN = {name: (name, f"REF_{name}") for name in _LIMITS} | {"weight": ("weight", "config_weight"), "head": ("head",)}
_INSTEAD = {"stress": ("virial", "virials", "REF_virial", "REF_virials")}
_CLOSEST, _FARTHEST = 0.1, 1e6  # angstrom
_MOST_CUTOFFS, _MOST_CELLS = 2_000, 100_000  # in a row, and in all: see `_is_wide`
_MOST_ATOMS_BY_ALL_PAIRS = 4_096
Keys: TypeAlias = Mapping[str, str | None]


def read_atoms(
    path: str | Path, *, cutoff: float | None = None, double: bool = False, keys: Keys | None = None
) -> ConcatDataset[Data]:
    """The structures of a file, each read when it is asked for: a dataset for loaders and for `popgeo.data.write`.

    Each has `z` [num_atoms], `pos` in angstrom [num_atoms, 3], `cell` [1, 3, 3] and `pbc` [1, 3], and, where the file
    has them, `energy` in eV [1], `forces` in eV/angstrom [num_atoms, 3], `stress` in eV/angstrom^3, in Voigt's order
    xx, yy, zz, yz, xz, xy [1, 6], `weight` [1] and `head`, a word. With a cutoff it has `edge_index` and `edge_shift`,
    see `list_pairs`. What the first structure has, all must have.

    Args:
        path: Extended XYZ, the HDF5 of MACE, the aselmdb of fairchem, a database or trajectory of ASE, or a folder of
            such. Of other formats, which `ase.io` reads, the file must fit into memory.
        cutoff: Lists pairs of atoms up to so far from each other, in angstrom.
        double: Whether positions, energies and the like are float64 rather than float32, in which a total energy of
            -17,660 eV is right to 1 meV.
        keys: What the file calls an attribute, as `{"energy": "dft_energy"}`, or None to leave it out; any other
            is taken too, as `{"charge": "charge"}`. Energy, forces and stress are found by themselves where they are
            called so, or with `REF_` before it; so are weight, config_weight and head. Where there is no stress it is
            made of virials, which are `virial` or `virials`, also with `REF_`.

    Raises:
        ValueError: the file cannot be read, or a package for it is absent. With its index, when it is read: a structure
            lacks an attribute or it has two names, a number is not finite or in an impossible unit, or two atoms stand
            in one place.

    Example:
        >>> import pytest, tempfile; ase = pytest.importorskip("ase"); from ase.io import write
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write(f"{folder}/water.xyz", ase.Atoms("OH2", [[0.0, 0, 0.12], [0, 0.76, -0.48], [0, -0.76, -0.48]]))
        ...     read_atoms(f"{folder}/water.xyz")[0].z
        tensor([8, 1, 1])
    """
    path = Path(path)
    files = sorted(one for one in path.iterdir() if one.suffix in SUFFIXES) if path.is_dir() else [path]
    if not files:
        raise ValueError(f"{path} has no file with one of the endings {SUFFIXES}.")
    return ConcatDataset([AtomsFile(file, cutoff, double, keys or {}) for file in files])


class AtomsFile(Dataset[Data]):
    """One file of `read_atoms`, with its arguments, each structure read when it is asked for."""

    def __init__(self, path: Path, cutoff: float | None, double: bool, keys: Keys) -> None:
        self.path, self.cutoff, self.double, self.asked = path, cutoff, double, keys
        self.file = reach(path)
        self.names: dict[str, str] | None = None
        self.names = self._read(0)[1]

    def __len__(self) -> int:
        return self.file.num_structures

    def __getitem__(self, index: int) -> Data:
        return self._read(index)[0]

    def _read(self, index: int) -> tuple[Data, dict[str, str]]:
        try:
            atoms = self.file.read(index)
            names = names_in(atoms, self.asked, self.names)
            return as_graph(atoms, names, cutoff=self.cutoff, double=self.double), names
        except Exception as error:  # what is damaged may break a reader of others in any way
            raise ValueError(f"{self.path}, structure {index}: {str(error) or repr(error)}") from error


def names_in(atoms: Any, asked: Keys, first: Mapping[str, str] | None = None) -> dict[str, str]:
    """What a file calls each attribute that is taken from it.

    Raises:
        ValueError: one that is asked for is absent, several names could be meant, or the first structure has others.
    """
    there = _said(atoms)
    names = {name: called for name, called in asked.items() if called is not None}
    if missing := sorted({called for name, called in names.items() if name != "weight"} - there.keys()):
        raise ValueError(f"it has no {missing}, but {sorted(there)}. Correct the keys.")
    for name in _TAKEN.keys() - asked.keys():
        found = [called for called in _TAKEN[name] if called in there]
        found = found or [called for called in _INSTEAD.get(name, ()) if called in there]
        ending = [called for called in there if called.endswith(f"_{name}") and called != "free_energy"]
        if len(found) == 1:
            names[name] = found[0]
        elif found or (name in _LIMITS and ending):
            raise ValueError(
                f"it has {sorted(found or ending)}. Pass keys={{{name!r}: ...}} (--key {name}=...) with the one meant, "
                f"or None to leave it out."
            )
    if first is not None and names != first:
        name = min(name for name in {*names, *first} if names.get(name) != first.get(name))
        raise ValueError(
            f"it has {names.get(name, 'nothing')!r} as {name}, the first has {first.get(name, 'nothing')!r}. Pass "
            f"keys={{{name!r}: None}} (--key {name}=) to leave it out."
        )
    return names


def _said(atoms: Any) -> dict[str, Any]:
    """What is said of atoms or of the whole structure, by the file's names."""
    results = {} if atoms.calc is None else atoms.calc.results
    return {**atoms.info, **atoms.arrays, **{name: value for name, value in results.items() if value is not None}}


def as_graph(atoms: Any, names: Mapping[str, str], *, cutoff: float | None = None, double: bool = False) -> Data:
    """One configuration, an `Atoms` of ASE, as `read_atoms` describes.

    Raises:
        ValueError: a number is not finite or in an impossible unit, or two atoms stand in one place.
    """
    number = partial(torch.tensor, dtype=torch.float64 if double else torch.float32)
    data = Data(z=torch.from_numpy(atoms.numbers.astype(np.int64)), pos=number(atoms.positions))
    data.cell, data.pbc = number(atoms.cell.array)[None], torch.from_numpy(atoms.pbc.copy())[None]
    said = _said(atoms)
    for name, called in names.items():
        value = said.get(called, 1.0)  # a weight that is not said is 1
        if isinstance(value, str) or name == "head":
            data[name] = str(value)
            continue
        values = _checked(name, called, np.asarray(value), atoms)
        values = values if called in atoms.arrays or name == "forces" else values[None]
        whole = values.dtype.kind in "iub" and name not in _TAKEN
        data[name] = torch.from_numpy(values.astype(np.int64)) if whole else number(values)
    if cutoff is not None:
        _add_pairs(data, atoms.positions, atoms.cell.array, atoms.pbc, cutoff)
    return data


def with_pairs(data: Data, cutoff: float) -> Data:
    """A structure with the pairs of its atoms within a cutoff, listed anew; without a cell nothing repeats.

    Args:
        data: With `z`, `pos` and, where it repeats, `cell` [1, 3, 3] and `pbc` [1, 3].
        cutoff: Longest distance (angstrom).

    Raises:
        ValueError: see `list_pairs`; or two atoms stand in one place.

    Example:
        >>> pair = Data(z=torch.tensor([1, 1]), pos=torch.tensor([[0.0, 0, 0], [0, 0, 0.7]]))
        >>> with_pairs(pair, cutoff=2.0).edge_index.tolist()
        [[1, 0], [0, 1]]
    """
    data = copy.copy(data)
    if "cell" not in data:
        data.cell = data.pos.new_zeros(1, 3, 3)
    repeats = data.pbc.flatten().numpy() if "pbc" in data else np.full(3, bool(data.cell.any()))
    _add_pairs(data, data.pos.double().numpy(), data.cell.double().view(3, 3).numpy(), repeats, cutoff)
    return data


def _add_pairs(data: Data, pos: np.ndarray, cell: np.ndarray, pbc: np.ndarray, cutoff: float) -> None:
    data.edge_index, shift = list_pairs(pos, cell, pbc, cutoff)
    data.edge_shift = shift.to(data.pos)
    source, destination = pos[data.edge_index]
    if (near := np.linalg.norm(source + shift.numpy() - destination, axis=1).min(initial=1)) < _CLOSEST:
        raise ValueError(f"it has two atoms {near:.3g} angstrom from each other. Is it another unit?")


def _checked(name: str, called: str, values: np.ndarray, atoms: Any) -> np.ndarray:
    """Values of the right shape, stress in Voigt's order.

    Raises:
        ValueError: they cannot be what they are called.
    """
    limit, unit = _LIMITS.get(name, (np.inf, ""))
    if values.dtype.kind not in "iubf" or not np.isfinite(values).all():
        raise ValueError(f"it has {called} that is no finite number. Correct it or leave the structure out.")
    if name == "stress":
        values = values.reshape(9)[[0, 4, 8, 5, 2, 1]] if values.size == 9 else values.reshape(6)
        if "virial" in called.lower():  # the stress times the volume, with the other sign
            values = -values / atoms.get_volume()
    elif name in _TAKEN:
        values = values.reshape((len(atoms), 3) if name == "forces" else ())
    largest = np.abs(values).max(initial=0) / (len(atoms) if name == "energy" else 1)
    if largest > limit:
        raise ValueError(
            f"it has {called} of {largest:.3g} {unit}; more than {limit:.0e} cannot be. Convert its unit, or leave the "
            f"structure out."
        )
    return values


def list_pairs(pos: np.ndarray, cell: np.ndarray, pbc: np.ndarray, cutoff: float) -> tuple[Tensor, Tensor]:
    """All ordered pairs of atoms within a cutoff, images in periodic directions included.

    Args:
        pos: Positions (angstrom). [num_atoms, 3]
        cell: Rows are the vectors of the cell (angstrom). [3, 3]
        pbc: Which of them repeat. [3]
        cutoff: Longest distance (angstrom).

    Returns:
        `edge_index` [2, num_edges], sorted by destination, and `edge_shift` (angstrom) [num_edges, 3]: the source atom
        that is meant stands at `pos[source] + edge_shift`, so an edge is as long as
        `pos[source] + edge_shift - pos[destination]`.

    Raises:
        ValueError: a cell repeats and neither vesin nor ASE is there, the cutoff is not positive, a direction repeats
            without a vector of its own, or atoms are nowhere near each other.
    """
    if not cutoff > 0:
        raise ValueError(f"The cutoff is {cutoff}; it must be more than 0 angstrom.")
    if not (np.abs([*pos, *cell]) < _FARTHEST).all():  # beyond it, or at NaN, vesin ends the process
        raise ValueError(
            f"Positions or the cell are not finite and below {_FARTHEST:.0e} angstrom. Is it another unit? Where this "
            f"is dynamics, it has blown up: take a shorter step, or look at the forces."
        )
    if any(pbc) and np.linalg.matrix_rank(cell[pbc]) < np.count_nonzero(pbc):
        raise ValueError(f"The cell repeats along {pbc.tolist()} but its vectors are {cell.tolist()}. Set all three.")
    extent, is_wide = _is_wide(pos, cell, pbc, cutoff)
    if is_wide and (any(pbc) or len(pos) > _MOST_ATOMS_BY_ALL_PAIRS):
        raise ValueError(
            f"The structure is {extent:,.0f} angstrom long, which is too far for a cutoff of {cutoff} angstrom to be "
            "searched. Where this is dynamics, it has blown up: take a shorter step."
        )
    first, second, steps = _all_pairs(pos, cutoff) if is_wide else _pairs(pos, cell, pbc, cutoff)
    # A pair runs from `first` to the image of `second`, which is moved by the cell's steps.
    order = np.lexsort((second, first))
    shift = steps[order].astype(np.float64) @ np.asarray(cell, dtype=np.float64)
    edges = np.stack([second[order], first[order]]).astype(np.int64)
    return torch.from_numpy(edges), torch.from_numpy(shift)


def _is_wide(pos: np.ndarray, cell: np.ndarray, pbc: np.ndarray, cutoff: float) -> tuple[float, bool]:
    """How far a structure reaches, and whether vesin would take minutes over it or end the process.

    It divides space into cells of a cutoff, at most 100,000: where more are needed, all three directions get fewer, and
    a thin one none at all.
    """
    vectors = np.abs(np.asarray(cell, dtype=np.float64)[np.asarray(pbc, dtype=bool)])
    reach = np.max([np.ptp(np.asarray(pos, dtype=np.float64), axis=0), *vectors], axis=0) if len(pos) else np.zeros(3)
    cells = np.maximum(reach / cutoff, 1.0)
    fewer = (_MOST_CELLS / np.prod(cells)) ** (1 / 3)
    return float(reach.max()), bool(cells.max() > _MOST_CUTOFFS or (fewer < 1.0 and cells.min() * fewer < 2.0))


def _all_pairs(pos: np.ndarray, cutoff: float) -> tuple[np.ndarray, ...]:
    """By the distances of all atoms, where nothing repeats."""
    apart = np.linalg.norm(pos[:, None] - pos, axis=2)
    first, second = np.nonzero((apart < cutoff) & ~np.eye(len(pos), dtype=bool))
    return first, second, np.zeros((len(first), 3))


def _pairs(pos: np.ndarray, cell: np.ndarray, pbc: np.ndarray, cutoff: float) -> tuple[np.ndarray, ...]:
    """By vesin, ASE or, where nothing repeats, by the distances themselves: what there is, in this order."""
    try:
        import vesin
    except ImportError:
        if any(pbc):
            try:
                from ase.neighborlist import primitive_neighbor_list
            except ImportError as error:
                raise ValueError("Listing pairs in a cell that repeats needs vesin: pip install vesin.") from error
            return primitive_neighbor_list("ijS", pbc, cell, pos, cutoff)
        return _all_pairs(pos, cutoff)
    points, box = (np.ascontiguousarray(one, dtype=np.float64) for one in (pos, cell))
    neighbors = vesin.NeighborList(cutoff=cutoff, full_list=True)
    return neighbors.compute(points=points, box=box, periodic=np.asarray(pbc, dtype=bool), quantities="ijS")
