"""Neighbours of moving atoms: found again only where an atom has moved so far that one could be missing."""

from typing import Any

import numpy as np

from popgeo.convert.neighbours import list_pairs


class NeighbourList:
    """The edges within a cutoff, exactly those of a list made again, from one that reaches a skin farther.

    No edge can be missing while no atom has moved half of the skin: the rest are measured, and kept within the cutoff.

    Args:
        cutoff: Longest edge in angstrom.
        skin: How much farther the kept list reaches, in angstrom; with 0 each call makes its own.

    Raises:
        ValueError: the skin is negative.

    Example:
        >>> import pytest; ase = pytest.importorskip("ase")
        >>> neighbours = NeighbourList(cutoff=1.5, skin=0.5)
        >>> neighbours.of(ase.Atoms("H3", [[0, 0, 0], [0, 0, 1], [0, 0, 2.6]]))[0].tolist()
        [[1, 0], [0, 1]]
    """

    def __init__(self, cutoff: float, skin: float) -> None:
        if skin < 0:
            raise ValueError(
                f"The skin is {skin}; it is how much farther than the cutoff neighbours are kept, at least 0."
            )
        self.cutoff, self.skin = cutoff, skin
        self.num_found = 0
        """How often all neighbours were looked for."""
        self._made_for: tuple[np.ndarray, ...] | None = None
        self._edges, self._shifts = np.empty((2, 0), np.int64), np.empty((0, 3))

    def of(self, atoms: Any) -> tuple[np.ndarray, np.ndarray]:
        """Edges (neighbour, centre) [2, n], sorted by centre, and what is added to the neighbour's position [n, 3].

        Raises:
            ValueError: see `list_pairs`.
        """
        if not self._still_serves(atoms):
            found = list_pairs(atoms.positions, atoms.cell.array, atoms.pbc, self.cutoff + self.skin)
            self._edges, self._shifts = (part.numpy() for part in found)
            self._made_for = atoms.positions.copy(), atoms.cell.array.copy(), atoms.pbc.copy()
            self.num_found += 1
        neighbour, centre = self._edges
        vectors = atoms.positions[neighbour] - atoms.positions[centre] + self._shifts
        near = np.flatnonzero(np.einsum("ij,ij->i", vectors, vectors) < self.cutoff**2)
        return self._edges[:, near], self._shifts[near]

    def _still_serves(self, atoms: Any) -> bool:
        if self._made_for is None or not self.skin:
            return False
        positions, cell, pbc = self._made_for
        if len(positions) != len(atoms) or (cell != atoms.cell.array).any() or (pbc != atoms.pbc).any():
            return False
        moved = atoms.positions - positions
        # NaN is not a move that a kept list serves.
        return bool((np.einsum("ij,ij->i", moved, moved) < (self.skin / 2) ** 2).all())
