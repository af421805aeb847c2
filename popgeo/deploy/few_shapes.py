"""The few shapes in which a calculator evaluates structures of any size, so that a campaign is compiled at most twice.

Most structures of a campaign have a few dozen atoms, but the largest have hundreds. A small shape serves most of them,
and a large shape the rest. Structures that are announced determine both shapes. Without an announcement the first
structure determines a shape, and each growth is twice as generous as the growth before.
"""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch.distributed as dist

from popgeo.convert.periodic_pairs import NeighborList
from popgeo.deploy.processes import from_all
from popgeo.packing.sizes import common_and_largest, grown

Shape = tuple[int, int]


def with_spare_edges(num_edges: int) -> int:
    """Return an even number of edges, a quarter above the given number, because edges appear as atoms move.

    Example:
        >>> with_spare_edges(40), with_spare_edges(0)
        (52, 2)
    """
    return 2 * (num_edges * 5 // 8 + 1)


class FewShapes:
    """The shapes of a calculator: numbers of atoms and edges, ascending. Larger shapes fit whatever a smaller one fits.

    Args:
        asked: The shapes to begin with. Default: none until `make_room` or the first structure.
        least: Sizes that a chosen shape has at least.

    Attributes:
        shapes: The shapes. Padding is not counted.

    Example:
        >>> few = FewShapes([(10, 40)])
        >>> few.shape_for(9, 38)
        (10, 40)
    """

    def __init__(self, asked: Sequence[Shape] = (), least: Shape = (1, 2)) -> None:
        self.shapes: list[Shape] = [*asked]
        self._asked, self._least = tuple(asked), least
        self._num_grown = 0
        self._is_announced, self._is_agreed = False, False

    def shape_for(self, num_atoms: int, num_edges: int) -> Shape:
        """Return the smallest shape that fits a structure. If there is none, warn, and add a larger shape.

        Raises:
            ValueError: the structure fits no shape, and several processes have agreed on the shapes.
        """
        for shape in self.shapes:
            if num_atoms <= shape[0] and num_edges <= shape[1]:
                return shape
        atoms, edges = self.shapes[-1]
        found = f"A structure has {num_atoms} atoms and {num_edges} edges"
        words = f"{found}, but the largest shape has {atoms} and {edges}"
        if self._is_agreed:
            raise ValueError(
                f"{words}. All processes must compile the same shapes. Call make_room(structures, process_group) again "
                "in all of them; in this process the structures must include this one."
            )
        # More atoms mean a new structure, for which all sizes grow; in dynamics only edges can become more.
        held = (atoms, edges) if num_atoms <= atoms else (0, 0)
        larger = grown(held, (num_atoms, num_edges), times=2**self._num_grown)
        shape = max(atoms, larger[0]), max(edges, larger[1] + larger[1] % 2)
        warnings.warn(
            f"{words}. A shape for {shape[0]} and {shape[1]} is added, for which the model is compiled. To avoid that, "
            "call make_room(structures) first, with all structures.",
            stacklevel=5,
        )
        self.shapes.append(shape)
        self._num_grown += 1
        return shape

    def make_room(self, structures: Sequence[Any], cutoff: float, process_group: Any = None) -> np.ndarray:
        """Choose one or two shapes in which all structures are evaluated with the fewest slots.

        Shapes of an earlier call are kept if all structures fit. If there are asked shapes, only a shape for larger
        structures is added. The shapes have a quarter more edges than needed.

        Args:
            structures: `ase.Atoms`; only their neighbors are counted.
            cutoff: Longest edge in angstrom.
            process_group: Processes of `torch.distributed` that each call this with their own structures, and get the
                same shapes. Default: this process alone.

        Returns:
            Atoms, edges and whether there are three cell vectors, of all structures of all processes. [n, 3]

        Raises:
            ValueError: there are no structures, or a neighbor list raises, here or in a different process.
        """

        def mine() -> np.ndarray:
            counted = NeighborList(cutoff, 0.0)
            rows = [(len(atoms), counted.of(atoms)[0].shape[1], atoms.cell.rank == 3) for atoms in structures]
            return np.array(rows, dtype=np.int64).reshape(-1, 3)

        parts = [mine()] if process_group is None else from_all("agree on shapes", mine, process_group)
        found = np.concatenate(parts)
        if not len(found):
            raise ValueError("There are no structures. Pass those that will be evaluated.")
        before, self._is_agreed = tuple(self.shapes), process_group is not None
        most = found[:, :2].max(axis=0)
        if not ((self._is_announced or self._asked) and (most <= before[-1]).all()):
            fitting = [most.tolist()] if self._asked else common_and_largest(found[:, :2])
            least = self._asked[-1] if self._asked else self._least
            made = [(max(least[0], atoms), max(least[1], with_spare_edges(edges))) for atoms, edges in fitting]
            self.shapes = [*self._asked, *made]
        reports = process_group is None or dist.get_rank(process_group) == 0
        if reports and self._is_announced and before != tuple(self.shapes):
            warnings.warn(f"Structures outgrew the shapes {before}; they are {self.shapes} from here on.", stacklevel=4)
        self._is_announced = True
        return found
