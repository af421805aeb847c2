"""Structures of atoms as graphs, from files of any size, with the pairs of atoms within a cutoff."""

import copy
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Dataset
from torch_geometric.data import Data

from popgeo.convert.atom_files import open_file
from popgeo.convert.atom_keys import (
    LABELS,
    WEIGHTS,
    Keys,
    check_cell,
    find_factors,
    find_names,
    key_mismatch,
    level_of,
    require_same_attributes,
)
from popgeo.convert.atom_labels import as_label, numbers, warn_of_rounding
from popgeo.convert.key_values import KeyValues, other_energy, values_by_key
from popgeo.convert.periodic_pairs import list_pairs, near_origin, require_elements, require_places
from popgeo.convert.structure_paths import files_of

_CLOSEST = 0.1  # angstrom
LEVELS = {"z": "node", "pos": "node", "forces": "node", "edge_index": "edge", "edge_shift": "edge"}
LEVELS |= dict.fromkeys(("energy", "stress", "cell", "pbc", "cutoff", *WEIGHTS), "graph")
"""The level of each attribute."""


def read_atoms(
    path: str | Path,
    *,
    cutoff: float | None = None,
    double: bool = False,
    keys: Keys | None = None,
    units: Mapping[str, str] | None = None,
    levels: Mapping[str, str] | None = None,
    labels: str = "all",
) -> "AtomFiles":
    """Return the structures of a file as a dataset for loaders and `popgeo.data.write`; each access reads a structure.

    Each structure has `z` [num_atoms], `pos` in angstrom [num_atoms, 3], `cell` [1, 3, 3] and `pbc` [1, 3]. If the file
    has them, it also has `energy` in eV [1], `forces` in eV/angstrom [num_atoms, 3], `stress` in eV/angstrom^3, in
    Voigt's order xx, yy, zz, yz, xz, xy [1, 6], and the word `head`. Weights are `weight`, `energy_weight`,
    `forces_weight` and `stress_weight` [1]. With a cutoff, a structure has `edge_index` and `edge_shift`, see
    `list_pairs`, and `cutoff` [1], which a model compares with its own cutoff. All structures must have the attributes
    of the first structure; only a missing weight is 1. A warning reports unused keys that look like a label, a charge
    or a weight.

    In float32, positions farther than 64 angstrom from the origin are moved by whole vectors of the cell and by their
    mean. This does not change distances.

    Args:
        path: Extended XYZ, the HDF5 of MACE, the aselmdb of fairchem, a database or trajectory of ASE, or a folder of
            such files. Any other format of `ase.io` is also possible, if the file fits into memory.
        cutoff: Largest distance of the listed pairs of atoms, in angstrom. Default: no pairs.
        double: Whether positions, energies and other numbers are float64. Default: float32, in which a total energy of
            -17,660 eV is exact to 1 meV.
        keys: The key of an attribute in the file, as `{"energy": "dft_energy"}`, or None to leave the attribute out.
            Further attributes are read if they are named here, as `{"charge": "charge"}`. Energy, forces and stress are
            found without `keys` under these names, also with `REF_` before them, in upper or lower case; so are the
            head, weights such as `config_weight` and `config_energy_weight`, and the `property_weights` of MACE's HDF5.
            A missing stress is computed from `virial` or `virials`.
        units: The units of the file, as `{"energy": "kcal/mol", "length": "bohr"}`. Default of `forces` and `stress`:
            they follow from energy and length. Units that the file states need no entry.
        levels: The level of attributes from `keys`, as `{"q": "node"}` for values of atoms, if it is not clear.
        labels: "all"; "partial", which allows structures without some of energy, forces and stress (NaN fills them); or
            "none", which reads no label.

    Raises:
        ValueError: the file cannot be read, or a package for it is missing. When a structure is read, the error names
            its index: an attribute is missing, a key or unit is ambiguous, a label is not a finite number or too large
            for its unit, a stress has no volume or is not symmetric, an atom is not an element, or two atoms have the
            same position.

    Example:
        >>> import pytest, tempfile; ase = pytest.importorskip("ase"); from ase.io import write
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write(f"{folder}/water.xyz", ase.Atoms("OH2", [[0.0, 0, 0.12], [0, 0.76, -0.48], [0, -0.76, -0.48]]))
        ...     read_atoms(f"{folder}/water.xyz")[0].z
        tensor([8, 1, 1])
    """
    if labels not in ("all", "partial", "none"):
        raise ValueError(f'labels is {labels!r}; it is "all", "partial" or "none".')
    by_file: dict[str, Any] = {"keys": keys or {}, "units": units or {}, "levels": {**(levels or {})}}
    reader = AtomsReader(**by_file, cutoff=cutoff, double=double, labels=labels)
    # `map`, because a warning counts frames to find the caller, and a comprehension adds a frame before Python 3.12.
    files = AtomFiles(list(map(partial(AtomsFile, reader=reader), files_of(Path(path)))))
    if labels == "all":
        require_same_attributes({one.path: one.names or {} for one in files.datasets})
    return files


class AtomFiles(ConcatDataset[Data]):
    """The structures of several files, one after the other."""

    datasets: "list[AtomsFile]"  # type: ignore[assignment]

    @property
    def levels(self) -> dict[str, str]:
        """The level of each attribute, as an argument of `popgeo.data.write`."""
        reader = self.datasets[0].reader
        return {name: reader.levels[key] for name, key in reader.keys.items() if key in reader.levels} | LEVELS

    @property
    def file_names(self) -> list[str]:
        """The name of the file of each structure."""
        return [one.path.name for one in self.datasets for _ in range(len(one))]

    @property
    def values(self) -> KeyValues:
        """The values in unused keys of the structures that were read."""
        return self.datasets[0].reader.values


@dataclass(kw_only=True, eq=False)
class AtomsReader:
    """A converter of structures (`Atoms` of ASE) to graphs, with the arguments of `read_atoms`."""

    keys: Keys
    units: Mapping[str, str]
    levels: dict[str, str]
    """The level of each key in use."""
    cutoff: float | None
    double: bool
    labels: str
    values: KeyValues = field(default_factory=KeyValues)
    """The values in unused keys of the structures that were read."""
    _names: dict[tuple[str, ...], tuple[dict[str, str], dict[str, str]]] = field(default_factory=dict)

    def names(self, by_key: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
        """Return the key of each attribute, and the unused keys with the options that read them."""
        if (keys := tuple(by_key)) not in self._names:
            # Only the last result is kept, because most structures of a file have the same keys.
            self._names = {keys: find_names(by_key, self.keys, self.labels != "none")}
        return self._names[keys]

    def graph(self, atoms: Any, by_key: dict[str, Any], names: dict[str, str], factors: dict[str, float]) -> Data:
        """Return the graph of a structure, with numbers multiplied by factors because of their units.

        Raises:
            ValueError: the structure has a fault, see `read_atoms`.
        """
        check_cell(atoms.info, atoms.cell.rank > 0)
        require_elements(atoms.numbers)
        length = factors.get("length", 1.0)
        pos, cell, pbc = atoms.positions * length, atoms.cell.array * length, atoms.pbc.copy()
        require_places(pos, cell)
        data = Data(z=torch.from_numpy(atoms.numbers.astype(np.int64)))
        data.pos, data.cell, data.pbc = self._number(pos), self._number(cell)[None], torch.from_numpy(pbc)[None]
        for name, key in names.items():
            self._add(data, name, key, by_key.get(key, 1.0), atoms, factors.get(name, 1.0), cell)
        if self.labels == "partial":
            for name, shape in (("energy", (1,)), ("forces", pos.shape), ("stress", (1, 6))):
                data[name] = data[name] if name in data else self._number(np.full(shape, np.nan))
        if self.cutoff is not None:
            _add_pairs(data, pos, cell, pbc, self.cutoff)
        return _near_origin(data, pos, cell, pbc)

    def _number(self, values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.array(values, np.float64 if self.double else np.float32))

    def _add(self, data: Data, name: str, key: str, value: Any, atoms: Any, factor: float, cell: np.ndarray) -> None:
        """Add the value of a key as an attribute."""
        known = name in LABELS or name in WEIGHTS
        if name == "head" or (isinstance(value, str) and not known):
            data[name] = str(value)
            return
        values = numbers(key, value, "iuf" if known else "iufb", self.labels == "partial" and name in LABELS)
        if known:
            values = as_label(name, key, values * factor, len(atoms), cell)
            if name == "energy" and not self.double:
                warn_of_rounding(float(values[0]), len(atoms))
        else:
            values = values if factor == 1.0 else values * factor
            level = self.levels.get(key) or level_of(key, values.shape, len(atoms), key in atoms.arrays)
            self.levels[key] = level
            values = values if level == "node" else values[None]
        whole = values.dtype.kind in "iub" and not known
        data[name] = torch.from_numpy(values.astype(np.int64)) if whole else self._number(values)


class AtomsFile(Dataset[Data]):
    """One file of `read_atoms`; each access reads a structure."""

    def __init__(self, path: Path, reader: AtomsReader) -> None:
        self.path, self.reader, self.file = path, reader, open_file(path)
        self._of_file = {"atomrefs": "--E0s, energies of elements"} if self.file.metadata.get("atomrefs") else {}
        self.names: dict[str, str] | None = None
        """The key of each attribute in the first structure that was read; None before."""
        self.factors: dict[str, float] = {}
        """The factors of units that were applied to the structures that were read."""
        self.ignored: dict[str, str] = {}
        """Unused keys that look like a label, a charge or a weight, with the options that read them."""
        if reader.labels != "none":
            _ = self[0]

    def __len__(self) -> int:
        return self.file.num_structures

    def __getitem__(self, index: int) -> Data:
        try:
            atoms = self.file.read(index)
            by_key, names, ignored = self._record(index, atoms)
            names = self._check_keys(names)
            factors = find_factors(by_key, self.file.metadata, names, self.reader.units)
            graph = self.reader.graph(atoms, by_key, names, factors)
        except Exception as error:  # a damaged file may raise any error
            raise ValueError(f"{self.path}, structure {index}: {str(error) or repr(error)}") from error
        self.factors |= factors
        if ignored and self.reader.labels != "none":
            self._report(ignored)
        return graph

    def note(self, index: int, atoms: Any) -> None:
        """Record the values in unused keys of a structure, for `KeyValues.table`."""
        with suppress(ValueError):  # `read_atoms` reports the fault
            self.ignored |= self._record(index, atoms)[2]

    def _record(self, index: int, atoms: Any) -> tuple[dict[str, Any], dict[str, str], dict[str, str]]:
        """Return the values of a structure by key, the key of each attribute, and the unused keys."""
        by_key = values_by_key(atoms)
        names, ignored = self.reader.names(by_key)
        chosen, place = self.reader.keys, f"structure {index} of {self.path.name}"
        self.reader.values.add(place, atoms, by_key, names, chosen)
        return by_key, names, {**ignored, **self._of_file, **other_energy(by_key, names, chosen)}

    def _check_keys(self, names: dict[str, str]) -> dict[str, str]:
        """Check that a structure has the keys of the file's first structure, and return them; weights may be absent.

        Raises:
            ValueError: a key differs.
        """
        first = self.names = names if self.names is None else self.names
        names = {**{name: key for name, key in first.items() if name in WEIGHTS}, **names}
        wrong = {name for name in {*names, *first} if names.get(name) != first.get(name)}
        if wrong and self.reader.labels != "partial":
            raise ValueError(key_mismatch(min(wrong), names, first, "the first"))
        return names

    def _report(self, ignored: dict[str, str]) -> None:
        if new := {key: option for key, option in ignored.items() if key not in self.ignored}:
            self.ignored |= new
            listed = ", ".join(f"{key} ({option})" for key, option in new.items())
            warnings.warn(f"{self.path} has keys that are not read: {listed}. The option reads the key.", stacklevel=5)


def with_pairs(data: Data, cutoff: float) -> Data:
    """Return a structure with a new list of the pairs of atoms within a cutoff.

    Args:
        data: A structure with `z`, `pos` and, if it is periodic, `cell` [1, 3, 3] and `pbc` [1, 3].
        cutoff: Largest distance (angstrom).

    Returns:
        A copy. Positions farther than 64 angstrom from the origin are moved, see `read_atoms`.

    Raises:
        ValueError: see `list_pairs`; or two atoms have the same position.

    Example:
        >>> pair = Data(z=torch.tensor([1, 1]), pos=torch.tensor([[0.0, 0, 0], [0, 0, 0.7]]))
        >>> with_pairs(pair, cutoff=2.0).edge_index.tolist()
        [[1, 0], [0, 1]]
    """
    data = copy.copy(data)
    if "cell" not in data:
        data.cell = data.pos.new_zeros(1, 3, 3)
    repeats = data.pbc.flatten().numpy() if "pbc" in data else np.full(3, bool(data.cell.any()))
    pos, cell = data.pos.double().numpy(), data.cell.double().view(3, 3).numpy()
    _add_pairs(data, pos, cell, repeats, cutoff)
    return _near_origin(data, pos, cell, repeats)


def _add_pairs(data: Data, pos: np.ndarray, cell: np.ndarray, pbc: np.ndarray, cutoff: float) -> None:
    data.edge_index, shift = list_pairs(pos, cell, pbc, cutoff)
    data.edge_shift, data.cutoff = shift.to(data.pos), data.pos.new_tensor([cutoff])
    source, destination = pos[data.edge_index]
    if (near := np.linalg.norm(source + shift.numpy() - destination, axis=1).min(initial=1)) < _CLOSEST:
        raise ValueError(f"it has two atoms {near:.3g} angstrom from each other. Check the unit of positions.")


def _near_origin(data: Data, pos: np.ndarray, cell: np.ndarray, pbc: np.ndarray) -> Data:
    """Move positions, and adapt shifts of edges, so that float32 is exact enough."""
    moves = near_origin(pos, cell, pbc)
    if moves.any():
        data.pos = torch.from_numpy(pos - moves).to(data.pos)
        if "edge_index" in data:
            source, destination = moves[data.edge_index]
            data.edge_shift = (data.edge_shift.double() + torch.from_numpy(source - destination)).to(data.pos)
    return data
