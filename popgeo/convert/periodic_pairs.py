"""Inputs of models from structures: pairs of atoms within a cutoff, known elements, positions near the origin."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import torch
from scipy.spatial import cKDTree
from torch import Tensor

_FARTHEST = 1e6  # angstrom
_MOST_CUTOFFS, _MOST_CELLS = 2_000, 100_000  # along one direction, and in total: see `_is_wide`
_MOST_PAIRS = 50_000_000
_LAST_ELEMENT = 118
_FAR = 64.0  # angstrom from the origin; farther away float32 rounds more than 4e-6 angstrom


def list_pairs(pos: np.ndarray, cell: np.ndarray, pbc: np.ndarray, cutoff: float) -> tuple[Tensor, Tensor]:
    """Return all ordered pairs of atoms within a cutoff, images in periodic directions included.

    Args:
        pos: Positions (angstrom). [num_atoms, 3]
        cell: Rows are the vectors of the cell (angstrom). [3, 3]
        pbc: True for periodic directions. [3]
        cutoff: Largest distance (angstrom).

    Returns:
        `edge_index` [2, num_edges], sorted by destination, and `edge_shift` (angstrom) [num_edges, 3]. The image of the
        source atom is at `pos[source] + edge_shift`, so the vector of an edge is
        `pos[source] + edge_shift - pos[destination]`.

    Raises:
        ValueError: the cutoff is not positive, a periodic direction has no vector, the structure is too wide for the
            cutoff, or there are too many pairs.
    """
    if not 0 < cutoff < np.inf:
        raise ValueError(f"The cutoff is {cutoff}; it must be more than 0 angstrom, and finite.")
    require_places(pos, cell)
    if any(pbc) and np.linalg.matrix_rank(cell[pbc]) < np.count_nonzero(pbc):
        raise ValueError(f"The cell repeats along {pbc.tolist()} but its vectors are {cell.tolist()}. Set all three.")
    pos, cell = (np.ascontiguousarray(part, dtype=np.float64) for part in (pos, cell))
    pbc = np.asarray(pbc, dtype=bool)
    _check_count(pos, cell, pbc, cutoff)
    moves = near_origin(pos, cell, pbc)
    pos = pos - moves
    extent, is_wide = _is_wide(pos, cell, pbc, cutoff)
    if is_wide and any(pbc):
        raise ValueError(
            f"The structure is {extent:,.0f} angstrom long, which is too far for a cutoff of {cutoff} angstrom to be "
            "searched. If this is dynamics, it has blown up: take a shorter step."
        )
    first, second, steps = _pairs(pos, cell, pbc, cutoff, is_wide)
    # A pair leads from `first` to the image of `second`, moved by steps of the cell.
    if moves.any():
        wraps = np.round((moves - moves[0]) @ np.linalg.pinv(cell * pbc[:, None]))
        steps = steps + wraps[first] - wraps[second]
    order = np.lexsort((*steps.T, second, first))
    edges = np.stack([second[order], first[order]]).astype(np.int64)
    # Not a product of matrices: its bits could depend on the number of rows, and so on the search.
    shift = sum(step[order, None] * vector for step, vector in zip(steps.T, cell, strict=True))
    return torch.from_numpy(edges), torch.from_numpy(shift)


class NeighborList:
    """A neighbor list for moving atoms: a kept list of edges up to the cutoff plus a skin.

    The kept list is complete while no atom has moved by half of the skin. Longer edges are left out, so the result
    equals a new list.

    Args:
        cutoff: Largest length of an edge in angstrom.
        skin: Additional length of the kept edges, in angstrom; with 0 each call searches again.

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
            raise ValueError(f"The skin is {skin}; it is added to the cutoff and must be at least 0.")
        self.cutoff, self.skin = cutoff, skin
        self.num_found = 0
        """The number of searches for all neighbors."""
        self._made_for: tuple[np.ndarray, ...] | None = None
        self._edges, self._shifts = np.empty((2, 0), np.int64), np.empty((0, 3))
        self._near, self._found = b"", (self._edges, self._shifts)

    def of(self, atoms: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return edges (neighbor, center) [2, n], sorted by center, and shifts of the neighbors' positions [n, 3].

        They are the arrays of the last call if no edge has appeared or disappeared since then.

        Raises:
            ValueError: see `list_pairs`.
        """
        if not self._still_serves(atoms):
            found = list_pairs(atoms.positions, atoms.cell.array, atoms.pbc, self.cutoff + self.skin)
            self._edges, self._shifts = (part.numpy() for part in found)
            self._made_for = atoms.positions.copy(), atoms.cell.array.copy(), atoms.pbc.copy()
            self.num_found += 1
            self._near = b""
        neighbors, centers = atoms.positions.take(self._edges, axis=0)
        vectors = neighbors - centers + self._shifts
        near = np.einsum("ij,ij->i", vectors, vectors) < self.cutoff**2
        if not self._near or self._near != near.tobytes():
            self._near, self._found = near.tobytes(), (self._edges[:, near], self._shifts[near])
        return self._found

    def near_origin(self, atoms: Any, by_fragment: bool = False) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return positions near the origin [num_atoms, 3] for float32, with edges and shifts that fit, as from `of`.

        With `by_fragment` each connected set of atoms moves separately, so that float32 is exact for fragments that are
        far from each other. Distances between fragments then change.

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
        now = atoms.positions, atoms.cell.array, atoms.pbc
        if len(positions) != len(now[0]) or cell.tobytes() != now[1].tobytes() or pbc.tobytes() != now[2].tobytes():
            return False
        moved = now[0] - positions
        # The comparison is False for NaN.
        return bool((np.einsum("ij,ij->i", moved, moved) < (self.skin / 2) ** 2).all())


def _fragments(edges: np.ndarray, num_atoms: int) -> np.ndarray:
    """Return the fragment of each atom; edges connect the atoms of a fragment, [2, num_edges] -> [num_atoms]."""
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    graph = coo_matrix((np.ones(edges.shape[1]), edges), shape=(num_atoms, num_atoms))
    return connected_components(graph, directed=False)[1]


def _is_wide(pos: np.ndarray, cell: np.ndarray, pbc: np.ndarray, cutoff: float) -> tuple[float, bool]:
    """Return the extent of a structure, and whether vesin would need minutes for it or end the process.

    vesin divides space into at most 100,000 cells of the length of the cutoff. If a structure needs more, vesin uses
    fewer cells along all three directions, and none along a thin direction.
    """
    reach = np.max([np.ptp(pos, axis=0), *np.abs(cell[pbc])], axis=0) if len(pos) else np.zeros(3)
    cells = np.maximum(reach / cutoff, 1.0)
    fewer = (_MOST_CELLS / np.prod(cells)) ** (1 / 3)
    return float(reach.max()), bool(cells.max() > _MOST_CUTOFFS or (fewer < 1.0 and cells.min() * fewer < 2.0))


def _pairs(pos: np.ndarray, cell: np.ndarray, pbc: np.ndarray, cutoff: float, is_wide: bool) -> tuple[np.ndarray, ...]:
    """Find pairs with vesin, or with k-d trees if vesin is missing or cannot search a wide structure."""
    try:
        import vesin
    except ImportError:
        is_wide = True
    if is_wide:
        return tree_pairs(pos, _completed(cell, pbc), pbc, cutoff)[:3]
    neighbors = vesin.NeighborList(cutoff=cutoff, full_list=True)
    return neighbors.compute(points=pos, box=cell, periodic=pbc, quantities="ijS")


def tree_pairs(
    pos: np.ndarray, cell: np.ndarray, pbc: np.ndarray, cutoff: float, is_limited: bool = False
) -> tuple[np.ndarray, ...]:
    """Find ordered pairs of atoms with k-d trees of the atoms and of their images.

    Args:
        pos: Positions (angstrom). [num_atoms, 3]
        cell: Three independent vectors (angstrom). [3, 3]
        pbc: True for periodic directions. [3]
        cutoff: Largest distance (angstrom).
        is_limited: Whether to leave out far images and far pairs in a cell that is small or dense, so that the search
            stays fast. Default: False.

    Returns:
        For each pair: the atom, the neighbor, the steps of the neighbor's image along the cell, the vector from the
        atom to this image, and the distance.
    """
    inverse = np.linalg.inv(cell)
    frac = pos @ inverse
    offset, images, owner, shifts = np.floor(frac) * pbc, pos, np.arange(len(pos)), np.zeros((len(pos), 3))
    if pbc.any():
        frac = frac - offset
        reach = np.where(pbc, cutoff * np.linalg.norm(inverse, axis=0), 0)
        most = np.clip((1e6 / len(pos)) ** (1 / 3) / 2, 1, 6) if is_limited else np.inf
        steps = np.minimum(np.ceil(reach), most).astype(int)
        grid = np.array(list(product(*(range(-many, many + 1) for many in steps))))
        moved = frac + grid[:, None]
        kept = ((moved >= -reach) & (moved <= 1 + reach) | ~pbc).all(axis=2)
        which, owner = np.nonzero(kept)
        pos, images, shifts = frac @ cell, moved[kept] @ cell, grid[which] - offset[owner]
    if is_limited and len(images) >= 2_000:
        density = len(images) / np.maximum(np.ptp(images, axis=0), 1).prod()
        cutoff = min(cutoff, (120 / density) ** (1 / 3))  # at most about 500 neighbors
    trees = [cKDTree(points, compact_nodes=False, balanced_tree=False) for points in (pos, images)]
    found = trees[0].sparse_distance_matrix(trees[1], cutoff, output_type="ndarray")
    first, image, distance = found["i"], found["j"], found["v"]
    other = (distance < cutoff) & ((first != owner[image]) | (distance > 1e-6))
    first, image, distance = first[other], image[other], distance[other]
    return first, owner[image], shifts[image] + offset[first], images[image] - pos[first], distance


def _completed(cell: np.ndarray, pbc: np.ndarray) -> np.ndarray:
    """Return the cell with orthogonal vectors along directions that are not periodic, so that it has a volume."""
    _, _, axes = np.linalg.svd(cell[pbc])  # the last axes are orthogonal to all periodic vectors
    whole = cell.copy()
    whole[~pbc] = axes[np.count_nonzero(pbc) :]
    return whole


def _check_count(pos: np.ndarray, cell: np.ndarray, pbc: np.ndarray, cutoff: float) -> None:
    """Check a lower bound of the number of pairs, so that a list does not fill the memory.

    Raises:
        ValueError: there are more than 50 million pairs.
    """
    heights = 1 / np.linalg.norm(np.linalg.pinv(cell[pbc]), axis=0) if any(pbc) else np.ones(0)
    images = max(np.prod(np.maximum(cutoff / heights, 1.0)), 1.0)
    pairs = len(pos) ** 2 * images
    if pairs > _MOST_PAIRS:  # all atoms in a cube with the cutoff as its diagonal are pairs
        wrapped = pos - near_origin(pos, cell, pbc, always=True)
        cubes = np.unique(np.floor(wrapped / (cutoff / 3**0.5)).astype(np.int64), axis=0, return_counts=True)[1]
        pairs = (cubes.astype(np.float64) ** 2).sum() * images
    if pairs > _MOST_PAIRS:
        raise ValueError(
            f"There are more than {min(pairs, 1e15):,.0f} pairs of atoms within {cutoff} angstrom. Is the cell or are "
            "the positions in another unit, or do many atoms have the same position?"
        )


def require_places(pos: np.ndarray, cell: np.ndarray) -> None:
    """Raise if positions or the cell are not finite, or so far away that vesin would end the process (angstrom)."""
    if not (np.abs([*pos, *cell]) < _FARTHEST).all():
        raise ValueError(
            f"Positions or the cell are not finite and below {_FARTHEST:.0e} angstrom. Leave the structure "
            "out, or correct the unit. If this is dynamics, it has blown up: take a shorter step."
        )


def require_elements(numbers: np.ndarray, known: Sequence[int] | None = None) -> None:
    """Check the atomic numbers of a structure.

    Args:
        numbers: Atomic numbers; 0 is ASE's dummy atom X, and the padding of models.
        known: The atomic numbers that a model knows. Default: all elements.

    Raises:
        ValueError: a number is not an element, or the model does not know it.

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
    """Return the moves to subtract from positions before they become float32: whole cell vectors, and the mean.

    The shift of an edge then becomes `shift + moves[source] - moves[destination]`, in which the mean cancels.

    Args:
        pos: Positions (angstrom). [num_atoms, 3]
        cell: Rows are the vectors of the cell (angstrom). [3, 3]
        pbc: True for periodic directions. [3]
        always: Whether positions near the origin are moved, too. Default: False.

    Returns:
        Moves (angstrom) [num_atoms, 3]; zeros if all positions are within 64 angstrom of the origin.

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
