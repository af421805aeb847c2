"""What models are given of structures: pairs of atoms within a cutoff, known elements, positions that float32 holds."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

_FARTHEST = 1e6  # angstrom
_MOST_CUTOFFS, _MOST_CELLS = 2_000, 100_000  # in a row, and in all: see `_is_wide`
_MOST_ATOMS_BY_ALL_PAIRS = 4_096
_MOST_PAIRS = 50_000_000
_LAST_ELEMENT = 118
_FAR = 64.0  # angstrom from the origin, beyond which float32 rounds more than 4e-6 angstrom


def list_pairs(pos: np.ndarray, cell: np.ndarray, pbc: np.ndarray, cutoff: float) -> tuple[Tensor, Tensor]:
    """All ordered pairs of atoms within a cutoff, images in periodic directions included.

    Args:
        pos: Positions (angstrom). [num_atoms, 3]
        cell: Rows are the vectors of the cell (angstrom). [3, 3]
        pbc: Which of them repeat. [3]
        cutoff: Longest distance (angstrom).

    Returns:
        `edge_index` [2, num_edges], sorted by destination, and `edge_shift` (angstrom) [num_edges, 3]: the image of the
        source atom is at `pos[source] + edge_shift`, so an edge is as long as
        `pos[source] + edge_shift - pos[destination]`.

    Raises:
        ValueError: a cell repeats and neither vesin nor ASE is there, the cutoff is not positive, a direction repeats
            without a vector of its own, atoms are nowhere near each other, or there are too many pairs.
    """
    if not cutoff > 0:
        raise ValueError(f"The cutoff is {cutoff}; it must be more than 0 angstrom.")
    require_places(pos, cell)
    if any(pbc) and np.linalg.matrix_rank(cell[pbc]) < np.count_nonzero(pbc):
        raise ValueError(f"The cell repeats along {pbc.tolist()} but its vectors are {cell.tolist()}. Set all three.")
    pos, cell = (np.ascontiguousarray(part, dtype=np.float64) for part in (pos, cell))
    pbc = np.asarray(pbc, dtype=bool)
    _check_count(pos, cell, pbc, cutoff)
    moves = near_origin(pos, cell, pbc)
    pos = pos - moves
    extent, is_wide = _is_wide(pos, cell, pbc, cutoff)
    if is_wide and (any(pbc) or len(pos) > _MOST_ATOMS_BY_ALL_PAIRS):
        raise ValueError(
            f"The structure is {extent:,.0f} angstrom long, which is too far for a cutoff of {cutoff} angstrom to be "
            "searched. If this is dynamics, it has blown up: take a shorter step."
        )
    first, second, steps = _all_pairs(pos, cutoff) if is_wide else _pairs(pos, cell, pbc, cutoff)
    # A pair runs from `first` to the image of `second`, which is moved by the cell's steps.
    order = np.lexsort((second, first))
    edges = np.stack([second[order], first[order]]).astype(np.int64)
    shift = steps[order].astype(np.float64) @ cell
    shift = shift + moves[edges[1]] - moves[edges[0]] if moves.any() else shift
    return torch.from_numpy(edges), torch.from_numpy(shift)


class NeighborList:
    """The edges within a cutoff while atoms move, from a list that reaches a skin farther.

    No edge can be missing while no atom has moved half of the skin. Longer edges are left out, so the edges equal the
    edges of a new list.

    Args:
        cutoff: Longest edge in angstrom.
        skin: How much farther the kept list reaches, in angstrom; with 0 each call makes its own.

    Raises:
        ValueError: the skin is negative.

    Example:
        >>> import pytest; ase = pytest.importorskip("ase")
        >>> neighbors = NeighborList(cutoff=1.5, skin=0.5)
        >>> neighbors.of(ase.Atoms("H3", [[0, 0, 0], [0, 0, 1], [0, 0, 2.6]]))[0].tolist()
        [[1, 0], [0, 1]]
    """

    def __init__(self, cutoff: float, skin: float) -> None:
        if skin < 0:
            raise ValueError(f"The skin is {skin}; neighbors are kept up to the cutoff and the skin, at least 0.")
        self.cutoff, self.skin = cutoff, skin
        self.num_found = 0
        """How often all neighbors were searched."""
        self._made_for: tuple[np.ndarray, ...] | None = None
        self._edges, self._shifts = np.empty((2, 0), np.int64), np.empty((0, 3))

    def of(self, atoms: Any) -> tuple[np.ndarray, np.ndarray]:
        """Edges (neighbor, centre) [2, n], sorted by centre, and what is added to the neighbor's position [n, 3].

        Raises:
            ValueError: see `list_pairs`.
        """
        if not self._still_serves(atoms):
            found = list_pairs(atoms.positions, atoms.cell.array, atoms.pbc, self.cutoff + self.skin)
            self._edges, self._shifts = (part.numpy() for part in found)
            self._made_for = atoms.positions.copy(), atoms.cell.array.copy(), atoms.pbc.copy()
            self.num_found += 1
        neighbor, centre = self._edges
        vectors = atoms.positions[neighbor] - atoms.positions[centre] + self._shifts
        near = np.flatnonzero(np.einsum("ij,ij->i", vectors, vectors) < self.cutoff**2)
        return self._edges[:, near], self._shifts[near]

    def near_origin(self, atoms: Any, by_fragment: bool = False) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Positions [num_atoms, 3] that float32 holds, and edges and shifts that fit them, as `of` returns them.

        With `by_fragment` each set of atoms that edges join is moved by itself, so that float32 also holds fragments
        that are far from each other; distances between fragments are then different ones.

        Raises:
            ValueError: see `list_pairs`.
        """
        edges, shifts = self.of(atoms)
        moves = near_origin(atoms.positions, atoms.cell.array, atoms.pbc)
        if by_fragment and moves.any():
            fragment = _fragments(edges, len(atoms))
            total = np.stack([np.bincount(fragment, column) for column in (atoms.positions - moves).T], axis=1)
            moves = moves + np.round(total / np.bincount(fragment)[:, None])[fragment]
        shifts = shifts + moves[edges[0]] - moves[edges[1]] if moves.any() else shifts
        return atoms.positions - moves, edges, shifts

    def _still_serves(self, atoms: Any) -> bool:
        if self._made_for is None or not self.skin:
            return False
        positions, cell, pbc = self._made_for
        if len(positions) != len(atoms) or (cell != atoms.cell.array).any() or (pbc != atoms.pbc).any():
            return False
        moved = atoms.positions - positions
        # NaN is not a move that a kept list serves.
        return bool((np.einsum("ij,ij->i", moved, moved) < (self.skin / 2) ** 2).all())


def _fragments(edges: np.ndarray, num_atoms: int) -> np.ndarray:
    """The number of the fragment of each atom, whose atoms are joined by edges, [2, num_edges] -> [num_atoms]."""
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    graph = coo_matrix((np.ones(edges.shape[1]), edges), shape=(num_atoms, num_atoms))
    return connected_components(graph, directed=False)[1]


def _is_wide(pos: np.ndarray, cell: np.ndarray, pbc: np.ndarray, cutoff: float) -> tuple[float, bool]:
    """How far a structure reaches, and whether vesin would need minutes for it or end the process.

    vesin divides space into at most 100,000 cells with the length of the cutoff. If a structure needs more, vesin takes
    fewer along all three directions, and none along a thin one.
    """
    reach = np.max([np.ptp(pos, axis=0), *np.abs(cell[pbc])], axis=0) if len(pos) else np.zeros(3)
    cells = np.maximum(reach / cutoff, 1.0)
    fewer = (_MOST_CELLS / np.prod(cells)) ** (1 / 3)
    return float(reach.max()), bool(cells.max() > _MOST_CUTOFFS or (fewer < 1.0 and cells.min() * fewer < 2.0))


def _all_pairs(pos: np.ndarray, cutoff: float) -> tuple[np.ndarray, ...]:
    """By the distances of all atoms, if nothing repeats."""
    apart = np.linalg.norm(pos[:, None] - pos, axis=2)
    first, second = np.nonzero((apart < cutoff) & ~np.eye(len(pos), dtype=bool))
    return first, second, np.zeros((len(first), 3))


def _pairs(pos: np.ndarray, cell: np.ndarray, pbc: np.ndarray, cutoff: float) -> tuple[np.ndarray, ...]:
    """By vesin or ASE, whichever is installed; a small structure without a cell needs neither."""
    try:
        import vesin
    except ImportError:
        if not any(pbc) and len(pos) <= _MOST_ATOMS_BY_ALL_PAIRS:
            return _all_pairs(pos, cutoff)
        try:
            from ase.neighborlist import primitive_neighbor_list
        except ImportError as error:
            what = "in a cell that repeats" if any(pbc) else f"of {len(pos):,} atoms"
            raise ValueError(f"Listing pairs {what} needs vesin: pip install vesin.") from error
        return primitive_neighbor_list("ijS", pbc, _completed(cell, pbc), pos, cutoff)
    neighbors = vesin.NeighborList(cutoff=cutoff, full_list=True)
    return neighbors.compute(points=pos, box=cell, periodic=pbc, quantities="ijS")


def _completed(cell: np.ndarray, pbc: np.ndarray) -> np.ndarray:
    """The cell with other vectors where nothing repeats, at right angles to all others: ASE's list needs a volume."""
    _, _, axes = np.linalg.svd(cell[pbc])  # the last ones are at right angles to all vectors that repeat
    whole = cell.copy()
    whole[~pbc] = axes[np.count_nonzero(pbc) :]
    return whole


def _check_count(pos: np.ndarray, cell: np.ndarray, pbc: np.ndarray, cutoff: float) -> None:
    """Counts pairs that are certain, so that no list is begun that would fill the memory.

    Raises:
        ValueError: there are more than 50 million.
    """
    heights = 1 / np.linalg.norm(np.linalg.pinv(cell[pbc]), axis=0) if any(pbc) else np.ones(0)
    images = max(np.prod(np.maximum(cutoff / heights, 1.0)), 1.0)
    pairs = len(pos) ** 2 * images
    if pairs > _MOST_PAIRS:  # all atoms in a cube with a diagonal of one cutoff are pairs
        wrapped = pos - near_origin(pos, cell, pbc, always=True)
        cubes = np.unique(np.floor(wrapped / (cutoff / 3**0.5)).astype(np.int64), axis=0, return_counts=True)[1]
        pairs = (cubes.astype(np.float64) ** 2).sum() * images
    if pairs > _MOST_PAIRS:
        raise ValueError(
            f"There are more than {min(pairs, 1e15):,.0f} pairs of atoms within {cutoff} angstrom. Is the cell or are "
            "the positions in another unit, or do many atoms have the same position?"
        )


def require_places(pos: np.ndarray, cell: np.ndarray) -> None:
    """Refuses positions and cells that are not finite, or so far away that vesin would end the process (angstrom)."""
    if not (np.abs([*pos, *cell]) < _FARTHEST).all():
        raise ValueError(
            f"Positions or the cell are not finite and below {_FARTHEST:.0e} angstrom. Leave the structure "
            "out, or correct the unit. If this is dynamics, it has blown up: take a shorter step."
        )


def require_elements(numbers: np.ndarray, known: Sequence[int] | None = None) -> None:
    """Checks the atomic numbers of a structure.

    Args:
        numbers: Of its atoms; 0 is ASE's X, a dummy atom, and the padding of models.
        known: Those that a model knows; None represents all elements.

    Raises:
        ValueError: one is not an element, or not known.

    Example:
        >>> require_elements(np.array([8, 1, 0]))
        Traceback (most recent call last):
            ...
        ValueError: it has atoms of number 0, which is not an element (ASE calls 0 X). Remove them.
    """
    if (odd := numbers[(numbers < 1) | (numbers > _LAST_ELEMENT)]).size:
        raise ValueError(f"it has atoms of number {odd[0]}, which is not an element (ASE calls 0 X). Remove them.")
    if known is not None and (unknown := sorted(set(numbers.tolist()) - set(known))):
        raise ValueError(
            f"it has the atomic numbers {unknown}, which the model was not trained on; it knows {list(known)}. Leave "
            "the structure out, or train on structures that have them."
        )


def near_origin(pos: np.ndarray, cell: np.ndarray, pbc: np.ndarray, always: bool = False) -> np.ndarray:
    """What is subtracted from positions before they become float32: whole vectors of the cell, and the mean.

    Edges then need `shift + moves[source] - moves[destination]`, in which the mean cancels.

    Args:
        pos: Positions (angstrom). [num_atoms, 3]
        cell: Rows are the vectors of the cell (angstrom). [3, 3]
        pbc: Which of them repeat. [3]
        always: Whether positions that are near the origin are moved, too.

    Returns:
        (angstrom) [num_atoms, 3]; zeros if all positions are within 64 angstrom of the origin.

    Example:
        >>> near_origin(np.array([[0.0, 0, 1001], [0, 0, 1003]]), np.zeros((3, 3)), np.zeros(3, bool)).tolist()
        [[0.0, 0.0, 1002.0], [0.0, 0.0, 1002.0]]
    """
    moves = np.zeros_like(pos, dtype=np.float64)
    if not len(pos) or not (always or np.abs(pos).max() > _FAR):
        return moves
    if any(pbc):
        moves = np.floor(pos @ np.linalg.pinv(cell[pbc])) @ cell[pbc]
    return moves + np.round((pos - moves).mean(axis=0))
