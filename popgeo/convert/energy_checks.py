"""Checks that energies are consistent with compositions, and that forces and stress are derivatives of energies."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from popgeo.convert.one_structure import StructureParts

# Ratios of an energy in a wrong unit to eV: hartree, rydberg, kcal/mol, kJ/mol, meV; their inverses; and a sign.
_UNITS = np.array([1 / 27.2114, 1 / 13.6057, 23.0605, 96.4853, 1e3])
_FACTORS = np.concatenate([_UNITS, 1 / _UNITS, [-1]])
_OF_STRESS = "stress of the wrong sign", "stress in another unit"
_MOST_KEPT, _MOST_ATOMS = 1_000, 200_000


def fit_elements(counts: np.ndarray, energy: np.ndarray) -> np.ndarray:
    """Fit energies of elements by least absolute deviations per atom; return sums per structure, [num_structures].

    Args:
        counts: Atoms of each element. [num_structures, num_elements]
        energy: Energies in any unit. [num_structures]

    Example:
        >>> fit_elements(np.array([[1, 2], [2, 1], [1, 0]]), np.array([4.0, 5.0, 2.0])).round(3).tolist()
        [4.0, 5.0, 2.0]
    """
    size = counts.sum(axis=1)
    matrix, target = counts / size[:, None], energy / size
    weight = np.ones(len(target))
    for _ in range(40):
        weighted = matrix * weight[:, None]
        solution = np.linalg.lstsq(weighted.T @ matrix, weighted.T @ target, rcond=1e-10)[0]
        error = np.abs(target - matrix @ solution)
        weight = 1 / np.maximum(error, 1e-6 + 1e-2 * np.median(error))
    return counts @ solution


def add_energy_columns(table: pd.DataFrame, counts: pd.DataFrame) -> None:
    """Add the expected value of each energy, its residual, and whether a wrong unit explains the residual.

    The expected value is the median of the same composition, or the sum over elements for fewer than 5 structures.
    """
    table[["is_outlier", "is_unit", "is_constant", "is_intensive"]] = False
    valid = table.energy.notna() & (table.num_atoms > 0) & ((table.num_atoms > 1) | (table.pbc > 0))
    table["expected"] = table["residual"] = table["spread"] = np.nan
    one = table[valid]
    if one.empty:
        return
    groups = one.groupby("composition").energy
    median, many = one.composition.map(groups.quantile(interpolation="lower")), groups.transform("size") >= 5
    per_kind = groups.quantile(interpolation="lower")
    matrix = counts.loc[per_kind.index.astype(int)].to_numpy(float)
    rank = np.linalg.matrix_rank(matrix)
    is_known = len(per_kind) >= 2 * rank + 2  # enough to find units; outliers need more structures
    fit = pd.Series(fit_elements(matrix, per_kind.to_numpy()) if is_known else np.nan, per_kind.index)
    widths_of_fit = 20 if len(per_kind) >= 10 + 3 * rank else np.inf
    fitted = one.composition.map(fit)
    for expected, rows, least, widths in ((median, many, 0.1, 15), (fitted, fitted.notna(), 0.5, widths_of_fit)):
        residual = ((one.energy - expected) / one.num_atoms)[rows]
        if residual.empty:
            continue
        spread = 1.4826 * (residual - residual.median()).abs().median()
        far = ((residual - residual.median()).abs() > widths * spread) & (residual.abs() > least)
        ratio = (one.energy / expected)[rows].to_numpy()
        near = (np.abs(ratio[:, None] / _FACTORS - 1) < 0.04).any(axis=1)
        is_split = (near | (np.abs(ratio - 1) < 0.04)).sum() > 0.9 * len(near)  # into two clusters, of any sizes
        unit = near & (far | (is_split & (residual.abs() > 0.1)))
        noted = residual.index[unit | (far & (rows.equals(many) | ~many[rows]))]
        table.loc[noted, ["expected", "residual"]] = np.stack([expected[noted], residual[noted]], axis=1)
        table.loc[noted, "spread"] = spread
        table.loc[noted, "is_outlier"], table.loc[residual.index[unit], "is_unit"] = True, True
    _add_kinds(table, one, counts)


def _add_kinds(table: pd.DataFrame, one: pd.DataFrame, counts: pd.DataFrame) -> None:
    """Mark energies that do not depend on positions, or do not grow with the number of atoms."""
    varied = one.groupby("composition").print1.transform(np.ptp) > 1e-3
    same = one.groupby("composition").energy.transform(np.ptp) == 0
    is_one = len(one) >= 3 and np.ptp(one.energy) == 0 and (varied.any() or one.composition.nunique() > 1)
    if is_one or (varied.sum() >= 3 and same[varied].all()):
        table.loc[one.index[varied | is_one], "is_constant"] = True
        return
    matrix = counts.loc[one.composition.astype(int)].to_numpy(float)
    if len(one) >= 10 + 3 * np.linalg.matrix_rank(matrix) and one.num_atoms.max() >= 1.5 * one.num_atoms.min():
        energy, size = one.energy.to_numpy(), one.num_atoms.to_numpy()
        errors = energy - fit_elements(matrix, energy), energy - fit_elements(matrix, energy * size) / size
        whole, each = (np.abs(error - np.median(error)).mean() for error in errors)
        table.loc[one.index, "is_intensive"] = whole > 5 * each


def compare_derivatives(pairs: dict[str, np.ndarray]) -> Iterator[tuple[str, int, str, int]]:
    """Yield faults between close structures, see `CloseStructures`: name, number of pairs, worst value, index."""
    # For close structures, the change of energy is the work of forces plus the work of stress: both coefficients are 1.
    works = np.stack([pairs["work"], np.nan_to_num(pairs["strain_work"])], axis=1)
    known = np.isfinite(pairs["strain_work"]) & (np.abs(works).max(axis=1, initial=0) > pairs["noise"])
    columns = np.flatnonzero(np.abs(works[known]).max(axis=0, initial=0) > 1e-9)
    names = "gradients instead of forces", "energies and forces contradict", *_OF_STRESS
    index, other, change, step = (pairs[name][known] for name in ("index", "other", "change", "step"))
    works = works[known][:, columns]
    if len(columns) and len(change) >= 8 and np.ptp(change) > 0:
        kept = np.ones(len(change), bool)
        for _ in range(10):
            inverse = np.linalg.pinv(works[kept].T @ works[kept])
            slopes = inverse @ works[kept].T @ change[kept]
            error = np.abs(change - works @ slopes)
            kept = error <= 4 * np.median(error) + 1e-9
        certain = np.abs(slopes) / np.sqrt(np.diag(inverse) * (error[kept] ** 2).mean() + 1e-30)
        explained = 1 - (error[kept] ** 2).sum() / max((change[kept] ** 2).sum(), 1e-30)
        for column, slope, one in zip(columns.tolist(), slopes.tolist(), certain.tolist(), strict=True):
            is_wrong = (explained > 0.7 and one > 10 and not 0.4 < slope < 2.5) or (
                explained > 0.95 and one > 30 and kept.sum() >= 12 and not 0.62 < slope < 1.6
            )
            if is_wrong:
                text = f"energies change by {slope:.3g} times what follows from them"
                yield names[2 * column + int(slope > 0)], int(kept.sum()), text, int(index.min())
        wrong = (error > 40 * np.median(error)) & (error > 0.5)
        if explained > 0.9 and wrong.any():
            where = int(np.bincount(np.append(index, other)[np.tile(wrong, 2)].astype(int)).argmax())
            yield "energy outliers", int(wrong.sum()), f"{error[wrong].max():.3g} eV from what forces say", where
        close = step < 0.2
        if close.sum() >= 20 and 0 in columns:
            rank = np.argsort(np.argsort([change[close], works[close] @ np.sign(slopes)]))
            correlation = float(np.corrcoef(rank)[0, 1])  # type: ignore[index]
            if abs(correlation) < 0.5 and explained < 0.5:
                text = f"correlation {correlation:.2f}"
                yield "energies do not follow forces", int(close.sum()), text, int(index.min())


class CloseStructures:
    """Samples of consecutive structures, to check close structures: energies change by -F dx + V sigma strain."""

    def __init__(self, num_structures: int) -> None:
        self.every, self.run = max(num_structures // 10, 1), max(_MOST_KEPT // 10, 1)
        self.kept: dict[tuple[bytes, bytes], list[tuple[int, StructureParts]]] = {}
        self.room = _MOST_ATOMS

    def add(self, index: int, parts: StructureParts) -> None:
        """Keep a structure with forces or stress if it belongs to a sample."""
        is_labelled = np.isfinite(parts.energy) and (parts.forces is not None or parts.stress is not None)
        if is_labelled and index % self.every < self.run and len(parts.z) <= self.room:
            self.room -= len(parts.z)
            self.kept.setdefault((parts.z.tobytes(), parts.pbc.tobytes()), []).append((index, parts))

    def compare(self) -> dict[str, np.ndarray]:
        """Return the indices, energy change, works of forces and stress, longest step and noise of each pair."""
        rows = [
            (group[one][0], group[other][0], *_works(group[one][1], group[other][1]))
            for group in self.kept.values()
            for one, other in _closest([parts for _, parts in group])
        ]
        names = ("index", "other", "change", "work", "strain_work", "step", "noise")
        return dict(zip(names, np.array(rows, dtype=np.float64).reshape(-1, len(names)).T, strict=True))


def _closest(group: list[StructureParts]) -> set[tuple[int, int]]:
    """Return pairs of each structure and the structure with the closest positions and cell."""
    if len(group) < 2:
        return set()
    points = np.stack([np.concatenate([_aligned(one, group[0])[0], one.cell * len(one.z) ** 0.5]) for one in group])
    points = points.reshape(len(group), -1)
    square = (points**2).sum(axis=1)
    apart = square[:, None] + square - 2 * points @ points.T
    np.fill_diagonal(apart, np.inf)
    return {(min(pair), max(pair)) for pair in enumerate(apart.argmin(axis=1).tolist())}


def _aligned(one: StructureParts, other: StructureParts) -> tuple[np.ndarray, np.ndarray]:
    """Return positions and forces; a molecule is first rotated and moved onto the other structure."""
    forces = np.zeros_like(one.pos) if one.forces is None else one.forces
    if one.pbc.any():
        return one.pos, forces
    pos, target = one.pos - one.pos.mean(axis=0), other.pos - other.pos.mean(axis=0)
    u, _, v = np.linalg.svd(pos.T @ target)
    turn = u @ np.diag([1, 1, np.sign(np.linalg.det(u @ v)) or 1]) @ v
    return pos @ turn, forces @ turn


def _works(one: StructureParts, other: StructureParts) -> tuple[float, ...]:
    """Return a row of `CloseStructures.compare` without indices; both works use the trapezoidal rule."""
    (start, pull), (end, push), strain_work = _aligned(one, one), _aligned(other, one), 0.0
    if one.pbc.any() and (volume := abs(np.linalg.det(one.cell))) > 1e-6 and abs(np.linalg.det(other.cell)) > 1e-6:
        grown = np.linalg.solve(one.cell, other.cell)
        step = (end - start @ grown) @ np.linalg.inv(other.cell)
        step = (step - np.round(step) * one.pbc) @ other.cell
        if one.stress is not None and other.stress is not None:
            stress = (volume * one.stress + abs(np.linalg.det(other.cell)) * other.stress) / 2
            strain_work = (stress * (grown - np.eye(3))).sum()
        elif not np.allclose(grown, np.eye(3), atol=1e-6):
            strain_work = np.nan
    else:
        step = end - start
    work = -((pull + push) * step).sum() / 2
    noise = 20 * max(one.resolution, other.resolution)
    return other.energy - one.energy, work, strain_work, np.abs(step).max(initial=0), noise
