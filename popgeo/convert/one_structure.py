"""A summary of one structure in about forty numbers; `popgeo.convert.doctor` finds the faults of a set from them."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor
from torch_geometric.data import Data

from popgeo.convert.atom_labels import has_shape_of
from popgeo.convert.periodic_pairs import tree_pairs
from popgeo.elements import RADII

NEAR = 6.0  # angstrom; every bond and every distance in a metal is shorter
_ENDINGS = {
    "energy": ("energy",),
    "forces": ("forces", "force"),
    "stress": ("stress",),
    "virial": ("virial", "virials"),
}
_NOT_LABELS = {"numbers", "positions", "z", "pos", "cell", "pbc", "tags", "momenta", "masses", "initial_magmoms"}
_NAMES = (  # names of the numbers in a row; a missing number is left out
    "num_atoms energy pbc lowest_z highest_z constrained finite volume handed shape has_cell has_images height outside "
    "extent vacuum filled isolated shortest relative first second bond in_unit_box print0 print1 print2 print3 "
    "lowest_energy stress work asymmetry largest_force rms_force net_force zero_forces all_zero restoring stiffness "
    "composition"
)
COLUMNS = _NAMES.split()
_NOBLE = (0, 2, 10, 18, 36, 54, 86)


class StructureParts(NamedTuple):
    """A structure in float64: lengths in angstrom, labels with the units of the file, None for an absent label."""

    z: np.ndarray
    pos: np.ndarray
    cell: np.ndarray
    pbc: np.ndarray
    labels: dict[str, np.ndarray]
    energy: float
    resolution: float  # spacing of floating-point numbers at the energy, in eV
    forces: np.ndarray | None
    stress: np.ndarray | None
    is_constrained: bool = False
    misshapen: tuple[str, ...] = ()  # labels called energy, forces or stress with a wrong size


class Bonds:
    """Running means of bond lengths per pair of elements, and sums over bonds of hydrogen with C, N and O."""

    def __init__(self) -> None:
        self.count, self.total = np.zeros((2, 128 * 128))
        self.stretch_squared = self.stretch_times_pull = 0.0


def parts_of(structure: Any, keys: Mapping[str, str | None]) -> StructureParts:
    """Return the parts of a graph or of ASE's `Atoms`; a label with an impossible shape appears only in `labels`."""
    if isinstance(structure, Data):
        by_key = {name: one.numpy() for name, one in structure.to_dict().items() if isinstance(one, Tensor)}
        z, pos, constraints = by_key["z"].reshape(-1), by_key["pos"], ()
        cell = np.asarray(by_key.get("cell", np.zeros((3, 3))), dtype=np.float64).reshape(3, 3)
        pbc = np.asarray(by_key.get("pbc", np.full(3, bool(cell.any())))).reshape(3)
        by_key = {name: one for name, one in by_key.items() if not name.startswith(("edge", "face"))}
    else:
        results = {} if structure.calc is None else structure.calc.results
        z, pos, cell, pbc = structure.numbers, structure.positions, structure.cell.array, structure.pbc
        by_key, constraints = {**structure.info, **structure.arrays, **results}, structure.constraints
    arrays = {name: np.asarray(one) for name, one in by_key.items() if name not in _NOT_LABELS and one is not None}
    labels = {name: one for name, one in arrays.items() if one.dtype.kind in "iubf"}
    misshapen = []

    def of(name: str) -> np.ndarray | None:
        ending = [one for one in labels if one.lower().endswith(_ENDINGS[name]) and "free" not in one.lower()]
        key = keys.get(name) or min(ending, key=lambda one: (len(one), one), default="")
        if key not in labels or keys.get(name, "") is None:
            return None
        found, is_right = labels[key].reshape(-1), has_shape_of(name, labels[key], len(z))
        misshapen.extend([key] * (not is_right))
        return found if is_right and np.isfinite(found).all() else None

    energy, forces, stress, virial = map(of, _ENDINGS)
    if stress is None and virial is not None and (volume := abs(np.linalg.det(cell))) > 1e-6:
        stress = -virial / volume
    if stress is not None and stress.size == 6:
        stress = stress[[0, 5, 4, 5, 1, 3, 4, 3, 2]]
    return StructureParts(
        np.asarray(z, dtype=np.int64), np.asarray(pos, dtype=np.float64), np.asarray(cell, dtype=np.float64),
        np.asarray(pbc, dtype=bool), labels, np.nan if energy is None else float(energy[0]),
        0.0 if energy is None or energy.dtype.kind != "f" else float(np.spacing(np.abs(energy[0]))),
        None if forces is None else forces.astype(np.float64).reshape(-1, 3),
        None if stress is None else stress.astype(np.float64).reshape(3, 3),
        bool(constraints), tuple(misshapen),
    )  # fmt: skip


def shapes_of(label: np.ndarray, num_atoms: int) -> frozenset[tuple[Any, ...]]:
    """Return the possible meanings of a label's shape: one value per atom, or one per structure."""
    shape = label.shape
    whole = shape[1:] if shape[:1] == (1,) else shape
    return frozenset({whole, ("per atom", *shape[1:])} if shape[:1] == (num_atoms,) else {whole})


def measure(parts: StructureParts, bonds: Bonds) -> dict[str, Any]:
    """Return the summary of one structure, and update `bonds`."""
    z, pos, cell, pbc = parts.z, parts.pos, parts.cell, parts.pbc
    row: dict[str, Any] = {"num_atoms": len(z), "energy": parts.energy, "pbc": int(pbc @ [1, 2, 4])}
    row |= {"lowest_z": z.min(initial=1), "highest_z": z.max(initial=1), "constrained": parts.is_constrained}
    row["finite"] = bool(len(z) and np.isfinite(pos).all() and np.isfinite(cell).all())
    if not row["finite"]:
        return row
    full = _measure_cell(parts, row)
    radii = np.array(RADII)[np.clip(z, 0, len(RADII) - 1)]
    repeats = pbc & (row["has_images"] > 0)
    first, second, _, apart, distance = tree_pairs(pos, full, repeats, NEAR, is_limited=True)
    ratio = distance / (radii[first] + radii[second])
    nearest, relative = np.full(len(z), np.inf), np.full(len(z), np.inf)
    np.minimum.at(nearest, first, distance)
    np.minimum.at(relative, first, ratio)
    row["isolated"] = np.count_nonzero(np.isinf(nearest)) * (len(z) > 1)
    if len(distance):
        worst = ratio.argmin()
        row |= {"shortest": distance[worst], "relative": ratio[worst], "first": first[worst], "second": second[worst]}
        bonded = relative[np.isfinite(relative) & ~np.isin(z, _NOBLE)]
        row["bond"] = np.median(bonded) if len(bonded) > len(z) / 2 else np.nan
    row["in_unit_box"] = len(z) > 1 and pos.min() > -0.05 and pos.max() < 1.05 and bool(cell.any())
    _add_prints(parts, row, first, second, distance)
    row["lowest_energy"] = -31.0 * (np.clip(z, 0, 118) ** (7 / 3)).sum()  # 1.5 times the Thomas-Fermi energy
    if parts.stress is not None:
        largest = np.abs(parts.stress).max()
        row |= {"stress": largest, "work": largest * row["volume"] / len(z)}
        row["asymmetry"] = np.abs(parts.stress - parts.stress.T).max() / max(largest, 1e-3)
    if parts.forces is not None:
        size = np.linalg.norm(parts.forces, axis=1)
        row |= {"largest_force": size.max(), "rms_force": np.sqrt((size**2).mean())}
        row["net_force"] = np.linalg.norm(parts.forces.sum(axis=0))
        if (zero := size == 0).any():
            weight = (1 - distance / NEAR) ** 2 * (z[second] + 1.0) / np.maximum(distance, 1e-9)
            lean = np.zeros((len(z), 3))
            np.add.at(lean, first, weight[:, None] * apart)
            wrong = zero & (np.linalg.norm(lean, axis=1) > 1e-2)  # other zero forces follow from symmetry
            row |= {"zero_forces": np.count_nonzero(wrong), "all_zero": bool(zero.all() and wrong.any())}
        is_bond = (first < second) & (ratio < 1.25) & (ratio > 0.5)
        _add_stiffness(row, z, parts.forces, first[is_bond], second[is_bond], apart[is_bond], distance[is_bond], bonds)
    return row


def _measure_cell(parts: StructureParts, row: dict[str, float]) -> np.ndarray:
    """Add the numbers of the cell to a summary, and return the cell completed to three independent vectors."""
    cell, pbc, lengths = parts.cell, parts.pbc, np.linalg.norm(parts.cell, axis=1)
    there = lengths > 1e-6
    shape = abs(np.linalg.det(cell)) / max(lengths.prod(), 1e-12)
    full = cell.copy()
    if not there.all():
        full[~there] = np.linalg.svd(cell)[2][int(there.sum()) :] if there.any() else np.eye(3)
        shape = abs(np.linalg.det(full)) / np.linalg.norm(full, axis=1).prod()
    row |= {"volume": abs(np.linalg.det(cell)), "handed": np.linalg.det(cell), "shape": shape if there.any() else 1.0}
    row |= {"has_cell": bool(there.any()), "has_images": bool(there[pbc].all() and shape > 1e-4)}
    if shape < 1e-4:
        full = np.eye(3)
    inverse = np.linalg.inv(full)
    frac, heights = parts.pos @ inverse, 1 / np.linalg.norm(inverse, axis=0)
    row["height"] = heights[pbc].min(initial=np.inf) if row["has_images"] else np.inf
    if there.all() and shape > 1e-4:
        row["extent"] = np.ptp(frac, axis=0).max()
        row["outside"] = max(-frac.min(), frac.max() - 1, 0.0)
        ordered = np.sort(frac - np.floor(frac), axis=0)
        gaps = np.vstack([np.diff(ordered, axis=0), ordered[:1] + 1 - ordered[-1:]]).max(axis=0) * heights
        row["vacuum"] = gaps[pbc].max(initial=0)
        row["filled"] = bool(pbc.any() and (gaps[~pbc] < 4).any())
    return full


def _add_prints(
    parts: StructureParts, row: dict[str, float], first: np.ndarray, second: np.ndarray, apart: np.ndarray
) -> None:
    """Add four numbers that are invariant under translation, rotation, wrapping and reordering of atoms."""
    kind = np.sqrt(parts.z + 1.37)
    weight = kind[first] * kind[second] * (1 - (apart / NEAR) ** 2) ** 3
    centred = parts.pos - parts.pos.mean(axis=0)
    row["print0"] = row["volume"] if parts.pbc.any() else (kind * (centred**2).sum(axis=1)).sum()
    for k in (1, 2, 3):
        around = np.bincount(first, weight * np.cos(k * apart), len(kind)) / kind
        row[f"print{k}"] = (kind * (around + 1) ** 2).sum()  # squared, because sums over pairs hardly differ in alloys


def _add_stiffness(
    row: dict[str, float], z: np.ndarray, forces: np.ndarray, first: np.ndarray, second: np.ndarray, apart: np.ndarray,
    distance: np.ndarray, bonds: Bonds,
) -> None:  # fmt: skip
    """Add the response of forces to bonds that are longer than usual: forces shorten them, gradients lengthen them."""
    low, high = np.minimum(z[first], z[second]), np.maximum(z[first], z[second])
    kind = np.clip(low, 0, 127) * 128 + np.clip(high, 0, 127)
    np.add.at(bonds.count, kind, 1.0)
    np.add.at(bonds.total, kind, distance)
    stretch = distance - bonds.total[kind] / bonds.count[kind]
    pull = ((forces[first] - forces[second]) * apart).sum(axis=1) / (2 * distance)
    of_hydrogen = (low == 1) & (high >= 6) & (high <= 8)
    bonds.stretch_squared += (stretch[of_hydrogen] ** 2).sum()
    bonds.stretch_times_pull += (stretch * pull)[of_hydrogen].sum()
    scale = np.sqrt((stretch @ stretch) * (pull @ pull))
    if len(stretch) >= 5 and scale > 0:
        row |= {"restoring": stretch @ pull / scale, "stiffness": stretch @ pull / (stretch @ stretch)}
