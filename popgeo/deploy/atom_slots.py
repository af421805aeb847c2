"""The memory for the arguments of an ASE calculator's model, of one shape for structures of several sizes."""

import operator
from typing import Any

import numpy as np
import torch

from popgeo.deploy.few_shapes import Shape


class AtomSlots:
    """The memory of a shape: the arguments of `Potential` for one structure and its padding.

    Attributes:
        given: The tensors on the model's device.
        filled: The same tensors, without slots that the present structure leaves empty.
    """

    def __init__(self, shape: Shape, dtype: torch.dtype, device: torch.device) -> None:
        # One atom of padding is a second graph; every padding edge joins it to itself.
        atoms, edges = shape[0] + 1, shape[1]
        numbers = torch.float32 if dtype is torch.bfloat16 else dtype  # NumPy has no bfloat16
        z, batch, index = (torch.zeros(size, dtype=torch.int64) for size in ((atoms,), (atoms,), (2, edges)))
        pos, shift, cell = (torch.zeros(size, dtype=numbers) for size in ((atoms, 3), (edges, 3), (2, 3, 3)))
        own = z, pos, batch, index, shift, cell
        self.given = tuple(one.to(device, dtype if one.is_floating_point() else None) for one in own)
        self.filled, self.places = self.given, tuple(tensor.numpy() for tensor in own)
        self._is_shared = all(map(operator.is_, self.given, own))

    def fill(self, atoms: Any, own_pos: np.ndarray, edge_index: np.ndarray, edge_shift: np.ndarray) -> None:
        """Write the structure to the first slots, and padding to the remaining slots."""
        z, pos, batch, edges, shift, cell = self.places
        count, num_edges = len(atoms), edge_index.shape[1]
        z[:count], z[count:] = atoms.numbers, 0
        pos[:count], pos[count:] = own_pos, 0
        batch[:count], batch[count:] = 0, 1
        edges[:, :num_edges], edges[:, num_edges:] = edge_index, count
        shift[:num_edges], shift[num_edges:] = edge_shift, 0
        cell[0] = atoms.cell.array
        of_atoms, (index, moves) = (one[: count + 1] for one in self.given[:3]), self.given[3:5]
        self.filled = (*of_atoms, index[:, :num_edges], moves[:num_edges], self.given[5])

    def send(self) -> None:
        """Copy what has been written to the tensors, unless they share their memory."""
        if not self._is_shared:
            for given, place in zip(self.given, self.places, strict=True):
                given.copy_(torch.from_numpy(place))
