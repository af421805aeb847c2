"""Claims about a neighbor list, checked against all pairs of atoms and images."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch_geometric.data import Data

from popgeo.testing.claims import BrokenError, Case, NotTriedError, Subject, SubjectKind, claim

_NEAR = 1e-5  # share of the cutoff; pairs so close to the cutoff may be listed or not, because of rounding
_CROWD = 31  # neighbors of an atom; lists of a fixed number often hold 32

Row = tuple[int, ...]  # center i, neighbor j, and the image of j in cells


def structure(positions: Any, cell: Any = None, pbc: Sequence[bool] = (), cutoff: float = 3.0) -> Data:
    """Return atoms, a cell with its vectors as rows, and the cutoff of neighbors."""
    return Data(
        pos=torch.as_tensor(np.array(positions), dtype=torch.float64).view(-1, 3),
        cell=torch.as_tensor(np.zeros((3, 3)) if cell is None else np.array(cell, dtype=float)).view(1, 3, 3),
        pbc=torch.tensor([list(pbc) or [cell is not None] * 3]),
        cutoff=torch.tensor([cutoff], dtype=torch.float64),
    )


def structures() -> list[Data]:
    """Return molecules and crystals on which existing neighbor lists have failed."""
    draw = np.random.default_rng(0)

    def within(cell: Any, number: int) -> np.ndarray:
        return draw.random((number, 3)) @ np.asarray(cell, dtype=float)

    cube, thin, left = 6 * np.eye(3), np.diag([9.0, 8.0, 1.9]), np.diag([5.0, -6.0, 4.0])
    skewed, steep = [[6, 0, 0], [5.5, 3, 0], [4, 2.5, 3.2]], [[5, 0, 0], [0, 6, 0], [14, 9, 4]]
    outside = within(cube, 6) + draw.integers(-3, 4, (6, 3)) * 6.0
    return [
        structure(draw.normal(0, 1.5, (8, 3))),
        structure([[0, 0, 0]]),
        structure([[0, 0, 0], [2.999, 0, 0], [0, 3.001, 0], [40, 0, 0]]),
        structure(within(cube, 7), cube),
        structure(within(thin, 5), thin),
        structure([[0.3, 0.2, 0.1]], 2.2 * np.eye(3)),
        structure(within(skewed, 5), skewed),
        structure(within(steep, 5), steep, cutoff=3.5),
        structure(within(left, 5), left),
        structure(outside, cube),
        structure(within(cube, 6) * [1, 3, 1] - [0, 6, 0], cube, (True, False, True)),
        structure(within(thin, 5), thin, (False, False, True)),
        structure(draw.random((40, 3)) * 1.7),
        structure(within(2.9 * np.eye(3), 4), 2.9 * np.eye(3), cutoff=4.0),
    ]


def all_pairs(atoms: Data, cutoff: float) -> dict[Row, float]:
    """Return the distances below a cutoff between atoms and images, by center, neighbor and image."""
    pos, cell, pbc = atoms.pos.double().numpy(), atoms.cell[0].double().numpy(), atoms.pbc[0].numpy()
    whole = np.where(pbc[:, None], cell, 0)
    inverse = np.linalg.pinv(whole)  # the length of a column is 1 / the distance of two opposite faces
    spread = np.ptp(pos @ inverse, axis=0) if len(pos) else np.zeros(3)
    reach = np.where(pbc, np.ceil(cutoff * np.linalg.norm(inverse, axis=0) + spread), 0).astype(int)
    images = np.stack(np.meshgrid(*(np.arange(-n, n + 1) for n in reach), indexing="ij"), -1).reshape(-1, 3)
    apart = np.linalg.norm(pos - pos[:, None] + (images @ whole)[:, None, None], axis=3)  # [images, i, j]
    image, i, j = np.nonzero(apart < cutoff)
    rows = np.column_stack([i, j, images[image]])
    other = (i != j) | images[image].any(axis=1)
    both = rows[other].tolist(), apart[image, i, j][other].tolist()
    return {(*row,): distance for row, distance in zip(*both, strict=True)}


@dataclass(frozen=True, kw_only=True)
class NeighborSubject(Subject):
    """A neighbor list, as a function `(positions, cell, pbc, cutoff)` that returns `i, j, S`.

    Positions [n, 3], cell [3, 3] and pbc [3] are numpy arrays; atom j, shifted by `S @ cell`, is a neighbor of atom i.
    If the function raises ValueError or NotImplementedError, the structure is skipped.
    """

    kind: ClassVar[SubjectKind] = SubjectKind.NEIGHBOR_LIST
    limit: ClassVar[int] = 100

    def __post_init__(self) -> None:
        if not self.graphs:
            object.__setattr__(self, "graphs", tuple(structures()))

    def prepare(self) -> None:
        """List the neighbors of one structure."""
        if not callable(self.what):
            raise ValueError(
                "Pass a neighbor list as a function of positions, cell, pbc and cutoff that returns i, j, S."
            )
        self.rows(self.graphs[0])

    def rows(self, atoms: Data, change: Callable[[np.ndarray], np.ndarray] = np.copy) -> list[Row]:
        """Return the rows of the list, after a function has changed its input arrays."""
        given = [change(tensor.numpy()) for tensor in (atoms.pos, atoms.cell[0], atoms.pbc[0])]
        parts = self.what(*given, float(atoms.cutoff))
        if not isinstance(parts, Sequence | np.ndarray) or len(parts) != 3:
            raise ValueError(f"The list returned a {type(parts).__name__}. Wrap it in a function that returns i, j, S.")
        i, j, image = (np.rint(np.asarray(part)).astype(int) for part in parts)
        return [(*map(int, row),) for row in np.column_stack([i, j, image.reshape(len(i), 3)])]


def _structures_to_try(subject: NeighborSubject, case: Case) -> Iterator[tuple[str, Data, list[Row], dict[Row, float]]]:
    """Yield name, structure, list rows and all pairs of each structure; skip crowded and refused structures."""
    refused = "structures are crowded"
    tried = 0
    for number, atoms in enumerate(case.graphs):
        pairs = all_pairs(atoms, float(atoms.cutoff) * (1 + _NEAR))
        if _most_neighbors(pairs) <= _CROWD:
            try:
                rows = subject.rows(atoms)
            except (ValueError, NotImplementedError) as error:
                refused = str(error)
                continue
            tried += 1
            yield f"structure {number}, cutoff {float(atoms.cutoff):g}", atoms, rows, pairs
    if not tried:
        raise NotTriedError(f"no structure can be tried: {refused}")


def _most_neighbors(pairs: dict[Row, float]) -> int:
    """Return the largest number of neighbors of an atom."""
    return max(Counter(row[0] for row in pairs).values(), default=0)


Compare = Callable[[list[Row], dict[Row, float], float], Iterator[str]]


def _against_all_pairs(name: str) -> Callable[[Compare], Compare]:
    """Register a claim from a function that yields each difference between rows and all pairs."""

    def register(compare: Compare) -> Compare:
        def check(subject: NeighborSubject, case: Case) -> None:
            for where, atoms, rows, pairs in _structures_to_try(subject, case):
                for wrong in compare(rows, pairs, float(atoms.cutoff)):
                    raise BrokenError(f"{where}: {wrong}")

        check.__doc__ = compare.__doc__
        claim(name, SubjectKind.NEIGHBOR_LIST)(check)
        return compare

    return register


def _clearly_within(pairs: dict[Row, float], cutoff: float) -> dict[Row, float]:
    return {row: distance for row, distance in pairs.items() if distance < cutoff * (1 - _NEAR)}


@_against_all_pairs("complete")
def every_pair_is_listed(rows: list[Row], pairs: dict[Row, float], cutoff: float) -> Iterator[str]:
    """Check that any two atoms with an image within the cutoff are neighbors.

    Tried: molecules, crystals, and thin, skewed, left-handed and partly periodic cells, with atoms outside of their
    cells.

    Cause: atoms outside of the cell fall out of its bins, only adjacent images are searched, or pbc is used as all or
    none.
    """
    listed = {row[:2] for row in rows}
    for row, distance in _clearly_within(pairs, cutoff).items():
        if row[0] != row[1] and row[:2] not in listed:
            yield f"atoms {row[0]} and {row[1]} are {distance:.4g} apart, image {row[2:]}, but no image is listed"


@_against_all_pairs("right images")
def images_are_right(rows: list[Row], pairs: dict[Row, float], cutoff: float) -> Iterator[str]:
    """Check that a neighbor is listed once per image within the cutoff, and an atom's own images also.

    Tried: as for complete; each image of a listed pair must be listed, and each image of the atom itself.

    Cause: only one nearest image of each pair is listed, but thin cells have more, and rounding of fractional
    coordinates misses it in skewed cells; or S belongs to wrapped positions and is used with others.
    """
    listed, found = {row[:2] for row in rows}, {*rows}
    for row, distance in _clearly_within(pairs, cutoff).items():
        if row not in found and (row[0] == row[1] or row[:2] in listed):
            yield f"image {row[2:]} of atom {row[1]}, {distance:.4g} from atom {row[0]}, is not listed"


@_against_all_pairs("within the cutoff")
def none_is_farther(rows: list[Row], pairs: dict[Row, float], cutoff: float) -> Iterator[str]:
    """Check that no neighbor is beyond the cutoff.

    Tried: the distance of each row is computed from positions, cell and S.

    Cause: the list contains a skin, compares a squared distance, or has S with the opposite sign.
    """
    if far := [row for row in rows if row not in pairs and (row[0] != row[1] or any(row[2:]))]:
        yield f"{len(far)} of {len(rows)} rows are beyond the cutoff: i, j, S = {far[0]}"


@_against_all_pairs("symmetric")
def both_directions_are_listed(rows: list[Row], pairs: dict[Row, float], cutoff: float) -> Iterator[str]:
    """Check that each pair is listed in both directions, with opposite images.

    Tried: for each row i, j, S the row j, i, -S is searched.

    Cause: the list is a half list, or drops rows by their order in memory.
    """
    sure, found = _clearly_within(pairs, cutoff), {*rows}
    for i, j, *image in rows:
        back = (j, i, *(-step for step in image))
        if (i, j, *image) in sure and back not in found:
            yield f"{(i, j, *image)} is listed, but {back} is not"


@_against_all_pairs("each once")
def none_is_doubled(rows: list[Row], pairs: dict[Row, float], cutoff: float) -> Iterator[str]:
    """Check that no row comes twice, and that no atom is its own neighbor without an image.

    Tried: repeated rows, and atoms that are their own neighbors in their own cell, are counted.

    Cause: thin cells are searched from both sides, a half list is doubled with its own images, or i = j is not removed.
    """
    for row, times in Counter(rows).items():
        if times > 1 or (row[0] == row[1] and not any(row[2:])):
            yield f"{row} is listed {times} time{'s' * (times > 1)}"


@claim("capacity is loud", SubjectKind.NEIGHBOR_LIST)
def capacity_is_loud(subject: NeighborSubject, case: Case) -> None:
    """Check that an atom with more neighbors than the list can hold raises an error.

    Tried: structures with more than 31 neighbors of an atom; either all rows or any error is accepted.

    Cause: arrays of a fixed size are filled and the rest is dropped, as in PyG's radius_graph with
    max_num_neighbors=32. Count the neighbors, and raise an error if there are more.
    """
    crowded = 0
    for number, atoms in enumerate(case.graphs):
        pairs = _clearly_within(all_pairs(atoms, float(atoms.cutoff)), float(atoms.cutoff))
        if _most_neighbors(pairs) > _CROWD:
            crowded += 1
            try:
                missing = {*pairs} - {*subject.rows(atoms)}
            except Exception:  # an error is allowed, since it is not silent
                continue
            if missing:
                raise BrokenError(f"structure {number}: {len(missing)} of {len(pairs)} neighbors are dropped silently")
    if not crowded:
        raise NotTriedError("no structure is crowded")


def _read_only(array: np.ndarray) -> np.ndarray:
    array = array.copy()
    array.flags.writeable = False
    return array


_LAYOUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "columns": np.asfortranarray,
    "strided": lambda array: np.repeat(array, 2, axis=-1)[..., ::2],
    "read-only": _read_only,
}


@claim("any memory layout", SubjectKind.NEIGHBOR_LIST, settings=[{"layout": name} for name in _LAYOUTS])
def layout_does_not_matter(subject: NeighborSubject, case: Case) -> None:
    """Check that neighbors do not depend on the memory layout of the arrays.

    Tried: the same numbers in Fortran order, as a view with strides, and read-only.

    Cause: a pointer is used without its strides. Make the array contiguous first (nequip 0.19's changelog).
    """
    for where, atoms, rows, _ in _structures_to_try(subject, case):
        if others := {*rows} ^ {*subject.rows(atoms, _LAYOUTS[case.settings["layout"]])}:
            raise BrokenError(f"{where}: {len(others)} of {len(rows)} rows differ")


@claim("nothing is kept", SubjectKind.NEIGHBOR_LIST)
def nothing_is_kept(subject: NeighborSubject, case: Case) -> None:
    """Check that neighbors depend only on the current structure, not on earlier structures.

    Tried: a structure, then one with moved atoms, one with another cell, and the first again.

    Cause: a list with a skin is kept although atoms moved too far, or the cell or pbc changed.
    """
    for where, atoms, listed, expected in _structures_to_try(subject, case):
        moved, strained = atoms.clone(), atoms.clone()
        moved.pos, strained.pos, strained.cell = 0.8 * atoms.pos.flip(0), 1.3 * atoms.pos, 1.3 * atoms.cell
        if {*listed} ^ {*expected}:
            continue  # other claims report this
        for name, other in {"moved": moved, "strained": strained, "again": atoms}.items():
            cutoff = float(other.cutoff)
            pairs, rows = all_pairs(other, cutoff * (1 + _NEAR)), {*subject.rows(other)}
            if wrong := {*_clearly_within(pairs, cutoff)} - rows | (rows - {*pairs}):
                raise BrokenError(f"{where}, {name}: {len(wrong)} rows differ, such as {min(wrong)}")
