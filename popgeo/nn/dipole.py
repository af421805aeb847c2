"""The dipole moment of a molecule from a charge on each atom."""

import torch
from torch import Tensor

from popgeo.ops import global_add_pool

# Standard atomic weights in dalton, IUPAC 2016 (doi:10.1515/pac-2015-0305), or the mass of a long-lived isotope;
# number 0 is padding.
# fmt: off
ATOMIC_MASSES = (
    1.0, 1.008, 4.002602, 6.94, 9.0121831, 10.81, 12.011, 14.007, 15.999, 18.998403163, 20.1797, 22.98976928, 24.305,
    26.9815385, 28.085, 30.973761998, 32.06, 35.45, 39.948, 39.0983, 40.078, 44.955908, 47.867, 50.9415, 51.9961,
    54.938044, 55.845, 58.933194, 58.6934, 63.546, 65.38, 69.723, 72.63, 74.921595, 78.971, 79.904, 83.798, 85.4678,
    87.62, 88.90584, 91.224, 92.90637, 95.95, 97.90721, 101.07, 102.9055, 106.42, 107.8682, 112.414, 114.818, 118.71,
    121.76, 127.6, 126.90447, 131.293, 132.90545196, 137.327, 138.90547, 140.116, 140.90766, 144.242, 144.91276,
    150.36, 151.964, 157.25, 158.92535, 162.5, 164.93033, 167.259, 168.93422, 173.054, 174.9668, 178.49, 180.94788,
    183.84, 186.207, 190.23, 192.217, 195.084, 196.966569, 200.592, 204.38, 207.2, 208.9804, 208.98243, 209.98715,
    222.01758, 223.01974, 226.02541, 227.02775, 232.0377, 231.03588, 238.02891, 237.04817, 244.06421, 243.06138,
    247.07035, 247.07031, 251.07959, 252.083, 257.09511, 258.09843, 259.101, 262.11, 267.122, 268.126, 271.134,
    270.133, 269.1338, 278.156, 281.165, 281.166, 285.177, 286.182, 289.19, 289.194, 293.204, 293.208, 294.214,
)
# fmt: on


def dipole_magnitude(
    charge: Tensor, pos: Tensor, mass: Tensor, batch: Tensor, num_graphs: int, nodes_mask: Tensor
) -> Tensor:
    """The length of each molecule's sum of charge times position, the centre of mass as origin.

    Args:
        charge: Of each atom. [num_atoms, 1]
        pos: Positions. [num_atoms, 3]
        mass: Of each atom, in any unit. [num_atoms, 1]
        batch: Molecule of each atom. [num_atoms]
        num_graphs: Molecules, padding included.
        nodes_mask: True where the atom is real. [num_atoms]

    Returns:
        In the unit of charge times position; 0, with a gradient of 0, for molecules without atoms. [num_graphs, 1]

    Example:
        >>> charge, pos = torch.tensor([[1.0], [-1.0]]), torch.tensor([[0.0, 0.0, 0.0], [3.0, 4.0, 0.0]])
        >>> batch, mask = torch.tensor([0, 0]), torch.tensor([True, True])
        >>> dipole_magnitude(charge, pos, torch.ones(2, 1), batch, 1, mask)
        tensor([[5.]])
    """
    real = nodes_mask.unsqueeze(1)
    mass, pos, charge = (torch.where(real, part, 0) for part in (mass, pos, charge))
    total = global_add_pool(mass, batch, num_graphs)  # [num_graphs, 1]
    total = torch.where(total > 0, total, 1)
    centre = global_add_pool(mass * pos, batch, num_graphs) / total  # [num_graphs, 3]
    moment = global_add_pool(charge * (pos - centre[batch]), batch, num_graphs)  # [num_graphs, 3]
    square = moment.square().sum(1, keepdim=True)
    moved = square > 0
    return torch.where(moved, torch.where(moved, square, 1).sqrt(), 0)  # [num_graphs, 1]
