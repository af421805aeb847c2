"""Faults of a set of structures that training does not report: units, signs, labels, cells, duplicates."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from torch.utils.data import ConcatDataset, Dataset

from popgeo.convert.atom_files import open_file
from popgeo.convert.energy_checks import CloseStructures, add_energy_columns, compare_derivatives
from popgeo.convert.key_values import Composition, composition_of
from popgeo.convert.one_structure import COLUMNS, Bonds, measure, parts_of, shapes_of
from popgeo.convert.open_file import OpenFile
from popgeo.convert.structure_paths import files_of
from popgeo.progress import progress

# `asked` and `badness` are expressions on a table with one row per structure; the worst has the largest badness.
_FAULTS = pd.read_csv(str(resources.files("popgeo.convert") / "faults.csv"), keep_default_na=False).set_index("what")


@dataclass(frozen=True)
class Fault:
    """A probable fault of some structures of a set.

    Args:
        what: The name of the fault.
        count: The number of structures with the fault, or of pairs of structures for a fault between two.
        worst: The worst value, with its unit.
        where: The index of the structure with the worst value, or of the first structure if all are equal.
        remedy: The remedy, in one sentence.
    """

    what: str
    count: int
    worst: str
    where: int
    remedy: str

    def __str__(self) -> str:
        return f"{self.what}: {self.count:,} (structure {self.where}: {self.worst}). {self.remedy}"


class _File(Dataset[Any]):
    """The structures of one file; a file that cannot be opened counts as one unreadable structure."""

    def __init__(self, path: Path, note: Callable[[int, Any], None] | None) -> None:
        self.path, self.note = path, note
        try:
            self.file: OpenFile | ValueError = open_file(path)
        except ValueError as error:
            self.file = error

    def __len__(self) -> int:
        return 1 if isinstance(self.file, ValueError) else self.file.num_structures

    def __getitem__(self, index: int) -> Any:
        if isinstance(self.file, ValueError):
            raise self.file
        try:
            atoms = self.file.read(index)
            if self.note is not None:
                self.note(index, atoms)
        except Exception as error:  # a damaged file may raise any error
            raise ValueError(f"{self.path}, structure {index}: {str(error) or repr(error)}") from error
        return atoms


def open_structures(path: str | Path, notes: Sequence[Callable[[int, Any], None]] | None = None) -> ConcatDataset[Any]:
    """Return the structures of a file or of a folder for `examine`, including faulty structures.

    Args:
        path: The file or folder.
        notes: For each file, a function that is called with the index of each read structure, and with the structure.

    Raises:
        ValueError: the file does not exist, or the folder has no file of structures.

    Example:
        >>> examine(open_structures("nothing.xyz"))
        Traceback (most recent call last):
            ...
        ValueError: There is no file or folder nothing.xyz. Check the name and the current folder.
    """
    files = files_of(Path(path))
    return ConcatDataset([_File(file, notes[i] if notes else None) for i, file in enumerate(files)])


def examine(
    structures: Sequence[Any] | Dataset[Any],
    *,
    keys: Mapping[str, str | None] | None = None,
    cutoff: float | None = None,
    show: bool | None = None,
) -> list[Fault]:
    """Return the faults of a set of structures, the most frequent first; an empty list means no fault.

    Each structure is read once. Only its summary is kept, so memory does not grow with the number of atoms.

    Args:
        structures: A list, a `FlatStore`, or the result of `open_structures`. Its items are `Atoms` of ASE, or graphs
            with `z` [num_atoms], `pos` in angstrom [num_atoms, 3] and optionally `cell` [1, 3, 3], `pbc` [1, 3],
            `energy` in eV, `forces` in eV/angstrom, `stress` in eV/angstrom^3.
        keys: The names of energy, forces and stress, as `{"energy": "dft_energy"}`; the value None ignores a label. A
            name that ends with `energy`, `forces` or `stress` needs no key.
        cutoff: The cutoff of a model that uses the nearest image only, in angstrom. Cells thinner than two cutoffs are
            then reported.
        show: Whether to show a progress bar. Default: at a terminal and in notebooks.

    Raises:
        ValueError: no structure can be read.

    Example:
        >>> import torch
        >>> from torch_geometric.data import Data
        >>> pair = Data(z=torch.tensor([1, 1]), pos=torch.tensor([[0.0, 0, 0], [0, 0, 0.3]]))
        >>> print(examine([pair])[0])
        atoms too close to each other: 1 (structure 0: 0.300 angstrom between atoms 0 and 1). Remove these structures...
    """
    read = _ReadStructures(len(structures))  # type: ignore[arg-type]
    for index in progress(range(read.total), "examining", "structure", show):
        with np.errstate(all="ignore"):
            read.add(index, structures, keys or {})
    if not read.index:
        raise ValueError(f"None of {read.total} structures can be read: {read.first_error or 'the set is empty'}")
    table = read.table().assign(cutoff=cutoff or 0.0)
    counts = _counts(read.compositions)
    add_energy_columns(table, counts)
    _add_usual(table, read.bonds)
    _add_twins(table)
    per_set = [
        *_faults_of_elements(table, counts),
        *_faults_of_labels(read.kinds),
        *compare_derivatives(read.neighbors.compare()),
    ]
    per_set += [(what, count, worst, where) for (what, worst), (count, where) in read.noted.items()]
    found = {what: Fault(what, count, worst, where, _FAULTS.remedy[what]) for what, count, worst, where in per_set}
    found |= {one.what: one for one in _faults_of_rows(table)}
    return sorted(found.values(), key=lambda one: -one.count)


class _ReadStructures:
    """The summaries of the structures that were read."""

    def __init__(self, total: int) -> None:
        self.total, self.bonds, self.neighbors = total, Bonds(), CloseStructures(total)
        self.first_error = ""  # the error of the first unreadable structure
        self.index: list[int] = []
        self.values = np.full((total, len(COLUMNS)), np.nan)  # a row per structure; missing values stay NaN
        self.compositions: dict[Composition, int] = {}
        self.kinds: dict[tuple[Any, ...], list[int]] = {}  # shapes of labels: their number, and the first
        self.noted: dict[tuple[str, str], list[int]] = {}

    def add(self, index: int, structures: Any, keys: Mapping[str, str | None]) -> None:
        try:
            parts = parts_of(structures[index], keys)
            row = measure(parts, self.bonds)
        except Exception as error:  # a damaged file may raise any error
            self.first_error = self.first_error or str(error) or repr(error)
            _count(self.noted, ("structures that cannot be read", self.first_error), index)
            return
        row["composition"] = self.compositions.setdefault(composition_of(parts.z), len(self.compositions))
        self.values[len(self.index)] = [row.get(name, np.nan) for name in COLUMNS]
        self.index.append(index)
        shapes = tuple((name, shapes_of(label, len(parts.z))) for name, label in sorted(parts.labels.items()))
        _count(self.kinds, (bool(parts.pbc.any()), shapes), index)
        for name, label in parts.labels.items():
            if not np.isfinite(label).all():
                _count(self.noted, ("labels that are not finite", name), index)
        for name in parts.misshapen:
            _count(self.noted, ("energies, forces or stress of a wrong size", name), index)
        if row["finite"]:
            self.neighbors.add(index, parts)

    def table(self) -> pd.DataFrame:
        """Return a table with one row per structure that was read."""
        return pd.DataFrame(self.values[: len(self.index)], columns=COLUMNS).assign(index=self.index)


def _count(counts: dict[Any, list[int]], name: Any, index: int) -> None:
    counts.setdefault(name, [0, index])[0] += 1


def _counts(compositions: Mapping[Composition, int]) -> pd.DataFrame:
    """Return the number of atoms of each element, a row per composition."""
    return pd.DataFrame([dict(one) for one in compositions]).fillna(0).reindex(range(len(compositions)), fill_value=0)


def _add_usual(table: pd.DataFrame, bonds: Bonds) -> None:
    """Add usual values of the set; `median` would warn about an empty column with pandas 2."""
    table["fractional"] = (table.in_unit_box == 1) & (table.bond < 0.7)
    many = table[(table.num_atoms > 1) | (table.pbc > 0)]
    table["usual_energy"] = table.energy.abs().quantile(0.5)
    table["usual_pbc"] = many.pbc.mode().min()
    table["is_dense"] = table.vacuum[table.pbc > 0].quantile(0.9) < 5
    table["usual_force"], table["usual_rms"] = table.largest_force.quantile(0.9), table.rms_force.quantile(0.5)
    table["usual_stress"], table["usual_work"] = table.stress.quantile(0.5), table.work.quantile(0.5)
    table["usual_restoring"] = table.restoring.median() if table.restoring.count() >= 5 else np.nan
    table["usual_stiffness"] = table.groupby("composition").stiffness.transform("median")
    stiffness = bonds.stretch_times_pull / max(bonds.stretch_squared, 1e-12)
    table["hydrogen_stiffness"] = abs(stiffness) if bonds.stretch_squared > 1e-3 else np.nan
    table["zero_forces"] = table.zero_forces.fillna(0)


def _add_twins(table: pd.DataFrame) -> None:
    """Add the first structure with the same geometry, and the difference of energies or forces."""
    prints = table[["composition", "pbc", "print0", "print1", "print2", "print3"]].to_numpy()
    order = np.lexsort(prints[:, [3, 1, 0]].T)
    twin, change, other = (np.full(len(table), one) for one in (np.nan, -1.0, False))
    energy, force, noise = table.energy.to_numpy(), table.rms_force.to_numpy(), 2e-7 * table.energy.abs().to_numpy()
    for lag in (1, 2, 3):
        one, two = order[:-lag], order[lag:]
        same = (np.abs(prints[one] - prints[two]) <= 2e-6 * (np.abs(prints[one]) + 1)).all(axis=1)
        one, two = np.minimum(one[same], two[same]), np.maximum(one[same], two[same])
        apart = np.abs(np.stack([energy[one] - energy[two], force[one] - force[two]]))
        differs = (apart > np.stack([1e-3 + noise[one], 1e-3 + 1e-2 * force[one]])).any(axis=0)
        twin[two], change[two] = one, np.fmax(change[two], np.nan_to_num(np.nanmax(apart, axis=0, initial=-1)))
        other[two] |= differs
    table["twin"], table["twin_change"] = np.append(table["index"], 0)[np.nan_to_num(twin, nan=-1).astype(int)], change
    table["is_twin"], table["is_other_twin"] = np.isfinite(twin), other


def _faults_of_rows(table: pd.DataFrame) -> Iterator[Fault]:
    for what, fault in _FAULTS[_FAULTS.asked != ""].iterrows():
        mask = table.eval(fault.asked, engine="python").to_numpy(bool)
        if mask.any():
            has = table[mask]
            worst = has.loc[has.eval(fault.badness, engine="python").fillna(-np.inf).idxmax()]
            yield Fault(str(what), int(mask.sum()), fault.worst.format(**worst), int(worst["index"]), fault.remedy)


def _faults_of_elements(table: pd.DataFrame, counts: pd.DataFrame) -> Iterator[tuple[str, int, str, int]]:
    composition = table.composition.astype(int).to_numpy()
    for number in counts:
        has = (counts[number].to_numpy() > 0)[composition]
        few = 1 if len(has) < 50 else max(2, len(has) // 1000)
        if len(has) >= 20 and has.sum() <= few:
            yield "rare elements", int(has.sum()), f"atomic number {number}", int(table["index"][has.argmax()])


def _faults_of_labels(kinds: Mapping[tuple[Any, ...], list[int]]) -> Iterator[tuple[str, int, str, int]]:
    names = {name for _, shapes in kinds for name, _ in shapes}
    for name in sorted(names):
        is_stress = name.lower().endswith(("stress", "virial", "virials"))  # structures without a cell do not need it
        known: list[Any] = [
            (dict(shapes).get(name), *at) for (repeats, shapes), at in kinds.items() if repeats or not is_stress
        ]
        absent = [(count, first) for shapes, count, first in known if shapes is None]
        if 0 < len(absent) < len(known):
            yield "missing labels", sum(count for count, _ in absent), name, min(first for _, first in absent)
        common: Counter[Any] = Counter()
        for shapes, count, _ in known:
            common.update(dict.fromkeys(shapes or (), count))
        best = max(common, key=lambda one: common[one], default=None)
        if other := [(count, first) for shapes, count, first in known if shapes is not None and best not in shapes]:
            yield "labels of another shape", sum(count for count, _ in other), name, min(first for _, first in other)
