"""Correct neighbor lists, and wrong versions: minimal forms of published defects.

A list takes positions, cell, pbc and cutoff, and returns centers i, neighbors j and images S of j.
"""

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from popgeo.testing.neighbor_claims import all_pairs, structure

Listed = tuple[np.ndarray, np.ndarray, np.ndarray]


def as_arrays(rows: Any) -> Listed:
    found = np.array(list(rows), dtype=int).reshape(-1, 5)
    return found[:, 0], found[:, 1], found[:, 2:]


def right(positions: np.ndarray, cell: np.ndarray, pbc: np.ndarray, cutoff: float) -> Listed:
    return as_arrays(all_pairs(structure(positions, cell, pbc.tolist()), cutoff))


def of_images(positions: Any, cell: Any, pbc: Any, cutoff: float, reach: Any) -> list[tuple[tuple[int, ...], float]]:
    """Return rows and distances within `reach` images in each direction."""
    found = []
    for image in product(*(range(-n, n + 1) for n in np.where(pbc, reach, 0).astype(int))):
        apart = np.linalg.norm(positions[None] - positions[:, None] + np.array(image) @ cell, axis=2)
        found += [((i, j, *image), apart[i, j]) for i, j in np.argwhere(apart < cutoff) if i != j or any(image)]
    return found


def wide(positions: Any, cell: Any, pbc: Any, cutoff: float) -> list[tuple[tuple[int, ...], float]]:
    return list(all_pairs(structure(positions, cell, pbc.tolist()), cutoff).items())


def chosen(choose: Callable[[list[tuple[tuple[int, ...], float]]], Any]) -> Callable[..., Listed]:
    """Return a neighbor list with a choice of the correct rows."""

    def listed(positions: Any, cell: Any, pbc: Any, cutoff: float) -> Listed:
        return as_arrays(choose(wide(positions, cell, pbc, cutoff)))

    return listed


def _nearest_32(found: list) -> list:
    kept: dict[int, list] = {}
    for row, _ in sorted(found, key=lambda one: one[1]):
        kept.setdefault(row[0], []).append(row)
    return [row for rows in kept.values() for row in rows[:32]]


def _first_32(found: list) -> list:
    kept: dict[int, list] = {}
    for row, _ in found:
        kept.setdefault(row[0], []).append(row)
    return [row for rows in kept.values() for row in rows[:32]]


def _array_of_500(found: list) -> list:
    return [row for row, _ in found[:500]]


def _half(found: list) -> list:
    return [row for row, _ in found if row[0] < row[1] or (row[0] == row[1] and row[2:] > (0, 0, 0))]


def _half_doubled_with_images(found: list) -> list:
    rows = [row for row, _ in found]
    return rows + [row for row in rows if row[0] == row[1]]


def _nearest_image(found: list) -> list:
    nearest: dict[tuple[int, int], tuple[float, Any]] = {}
    for row, apart in found:
        if row[0] != row[1]:
            nearest[row[:2]] = min(nearest.get(row[:2], (np.inf, None)), (apart, row))
    return [row for _, row in nearest.values()]


def _no_self_images(found: list) -> list:
    return [row for row, _ in found if row[0] != row[1]]


def rounded(positions: Any, cell: Any, pbc: Any, cutoff: float) -> Listed:
    inverse = np.linalg.pinv(cell)
    rows = []
    for i, j in product(range(len(positions)), repeat=2):
        image = -np.rint((positions[j] - positions[i]) @ inverse) * pbc
        if i != j and np.linalg.norm(positions[j] - positions[i] + image @ cell) < cutoff:
            rows.append((i, j, *image))
    return as_arrays(rows)


def next_door(positions: Any, cell: Any, pbc: Any, cutoff: float) -> Listed:
    return as_arrays(row for row, _ in of_images(positions, cell, pbc, cutoff, [1, 1, 1]))


def by_lengths(positions: Any, cell: Any, pbc: Any, cutoff: float) -> Listed:
    lengths = np.linalg.norm(cell, axis=1)
    reach = np.ceil(cutoff / np.where(lengths, lengths, np.inf))
    return as_arrays(row for row, _ in of_images(positions, cell, pbc, cutoff, reach))


def bins(positions: Any, cell: Any, pbc: Any, cutoff: float) -> Listed:
    inside = np.ones(len(positions), bool)
    if cell.any():
        fraction = positions @ np.linalg.pinv(cell)
        inside = ((fraction >= 0) & (fraction < 1)).all(1)
    return as_arrays(row for row, _ in wide(positions, cell, pbc, cutoff) if inside[row[0]] and inside[row[1]])


def wrapped(positions: Any, cell: Any, pbc: Any, cutoff: float) -> Listed:
    steps = np.floor(positions @ np.linalg.pinv(cell)) * pbc
    return right(positions - steps @ cell, cell, pbc, cutoff)


def wrapped_in_place(positions: Any, cell: Any, pbc: Any, cutoff: float) -> Listed:
    steps = (np.floor(positions @ np.linalg.pinv(cell)) * pbc).astype(int)
    positions -= steps @ cell
    i, j, image = right(positions, cell, pbc, cutoff)
    return i, j, image + steps[i] - steps[j]


def skin(positions: Any, cell: Any, pbc: Any, cutoff: float) -> Listed:
    return right(positions, cell, pbc, cutoff + 0.5)


def squared(positions: Any, cell: Any, pbc: Any, cutoff: float) -> Listed:
    return right(positions, cell, pbc, cutoff**0.5)


def other_sign(positions: Any, cell: Any, pbc: Any, cutoff: float) -> Listed:
    i, j, image = right(positions, cell, pbc, cutoff)
    return i, j, -image


def itself_too(positions: Any, cell: Any, pbc: Any, cutoff: float) -> Listed:
    i, j, image = right(positions, cell, pbc, cutoff)
    own = np.arange(len(positions))
    return np.append(i, own), np.append(j, own), np.append(image, np.zeros((len(own), 3), int), 0)


def periodic_if_any(positions: Any, cell: Any, pbc: Any, cutoff: float) -> Listed:
    return right(positions, cell, np.full(3, pbc.any()), cutoff)


def periodic_if_all(positions: Any, cell: Any, pbc: Any, cutoff: float) -> Listed:
    return right(positions, cell, np.full(3, pbc.all()), cutoff)


def by_buffer(positions: Any, cell: Any, pbc: Any, cutoff: float) -> Listed:
    owner = positions if positions.base is None else positions.base
    raw = np.ravel(owner, order="K")[: positions.size].reshape(positions.shape)
    return right(raw, cell, pbc, cutoff)


def cell_by_columns(positions: Any, cell: Any, pbc: Any, cutoff: float) -> Listed:
    return right(positions, cell.T, pbc, cutoff)


class StashedValue:
    """A neighbor list that is only made again if the number of atoms, or the cell, changes."""

    def __init__(self, looks_at_cell: bool) -> None:
        self.kept: dict[Any, Listed] = {}
        self.looks_at_cell = looks_at_cell

    def __call__(self, positions: Any, cell: Any, pbc: Any, cutoff: float) -> Listed:
        key = len(positions), cell.tobytes() if self.looks_at_cell else None, pbc.tobytes(), cutoff
        if key not in self.kept:
            self.kept = {key: right(positions, cell, pbc, cutoff)}
        return self.kept[key]


def one_less(positions: Any, cell: Any, pbc: Any, cutoff: float) -> Listed:
    i, j, image = right(positions, cell, pbc, cutoff)
    stays = i < len(positions) - 1
    return i[stays], j[stays], image[stays]


Wrong = tuple[Callable[..., Listed], str, str]
WRONG: dict[str, Wrong] = {
    "nearest 32": (
        chosen(_nearest_32),
        "capacity is loud",
        "radius_graph's max_num_neighbors=32",
    ),
    "array of 500": (
        chosen(_array_of_500),
        "capacity is loud",
        "arrays of one size under jit",
    ),
    "half": (chosen(_half), "symmetric", "half lists, as of LAMMPS with newton on, taken for whole ones"),
    "self-images twice": (chosen(_half_doubled_with_images), "each once", "a half list doubled, with i = j in it"),
    "nearest image": (
        chosen(_nearest_image),
        "right images",
        "the minimum image in a cell below two cutoffs",
    ),
    "no self-images": (chosen(_no_self_images), "right images", "loop=False of radius_graph on a crystal of one atom"),
    "rounded": (rounded, "right images", "rounding of fractional coordinates in skewed cells, as in many notebooks"),
    "images next door": (next_door, "right images", "27 cells, whatever the cutoff"),
    "images by lengths": (by_lengths, "complete", "cutoff / |a| instead of the distance of the faces"),
    "bins": (bins, "complete", "a cell list of atoms that are not wrapped"),
    "wrapped": (wrapped, "within the cutoff", "S of wrapped positions beside positions that are not"),
    "wrapped in place": (wrapped_in_place, "any memory layout", "positions of the caller wrapped in place"),
    "skin": (skin, "within the cutoff", "a Verlet list used without its mask"),
    "squared": (squared, "complete", "a squared distance compared to the cutoff"),
    "other sign": (other_sign, "within the cutoff", "S of the other end"),
    "itself too": (itself_too, "each once", "i = j left in, whose distance of 0 has no gradient"),
    "periodic if any": (periodic_if_any, "within the cutoff", "pbc.any() of a slab"),
    "periodic if all": (periodic_if_all, "complete", "pbc.all() of a slab"),
    "by buffer": (by_buffer, "any memory layout", "nequip 0.19's changelog: forces of inputs that are not contiguous"),
    "kept by number": (StashedValue(False), "nothing is kept", "a skin without a look at how far atoms moved"),
}
HELD_OUT: dict[str, Wrong] = {
    "first 32": (chosen(_first_32), "capacity is loud", "the first that were found"),
    "cell by columns": (cell_by_columns, "within the cutoff", "a cell whose vectors are columns"),
    "kept by cell": (StashedValue(True), "nothing is kept", "a list that looks at the cell alone"),
    "one less": (one_less, "complete", "the last atom's bin is left out"),
}


def refuses_cells(positions: Any, cell: Any, pbc: Any, cutoff: float) -> Listed:
    if pbc.any():
        raise NotImplementedError("only molecules")
    return right(positions, cell, pbc, cutoff)


def refuses_crowds(positions: Any, cell: Any, pbc: Any, cutoff: float) -> Listed:
    found = right(positions, cell, pbc, cutoff)
    if len(found[0]) > 500:
        raise RuntimeError("more than 500 neighbors")
    return found


def of_ase(positions: Any, cell: Any, pbc: Any, cutoff: float) -> Listed:
    from ase.neighborlist import primitive_neighbor_list

    return primitive_neighbor_list("ijS", pbc, cell, positions, cutoff)


def of_vesin(positions: Any, cell: Any, pbc: Any, cutoff: float) -> Listed:
    from vesin import NeighborList

    return NeighborList(cutoff=cutoff, full_list=True).compute(
        points=positions, box=cell, periodic=pbc, quantities="ijS"
    )


def of_matscipy(positions: Any, cell: Any, pbc: Any, cutoff: float) -> Listed:
    from matscipy.neighbours import neighbour_list

    whole = cell + np.diag(np.where(cell.any(axis=1), 0.0, 1e3))
    return neighbour_list("ijS", cell=whole, pbc=pbc, positions=positions, cutoff=cutoff)


def of_popgeo(positions: Any, cell: Any, pbc: Any, cutoff: float, skin: float = 0.0) -> Listed:
    from ase import Atoms

    from popgeo.convert.periodic_pairs import NeighborList

    atoms = Atoms(f"H{len(positions)}", positions, cell=cell, pbc=pbc)
    edges, shifts = NeighborList(cutoff=cutoff, skin=skin).of(atoms)
    return edges[1], edges[0], np.rint(shifts @ np.linalg.pinv(cell))


RIGHT: dict[str, Callable[..., Listed]] = {"all pairs": right, "refuses cells": refuses_cells, "loud": refuses_crowds}
OTHERS: dict[str, tuple[str, Callable[..., Listed]]] = {
    "ase": ("ase", of_ase),
    "vesin": ("vesin", of_vesin),
    "matscipy": ("matscipy", of_matscipy),
    "popgeo": ("ase", of_popgeo),
    "popgeo, skin": ("ase", partial(of_popgeo, skin=1.0)),
}
