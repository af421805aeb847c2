"""Targets of a potential's training: energies of elements, and stress as a matrix or in Voigt's order."""

import torch
from torch import Tensor

MAX_Z = 100  # number of embeddings in a model of atoms; atomic number 0 is padding
_VOIGT = [0, 4, 8, 5, 2, 1]  # places of xx, yy, zz, yz, xz, xy among the nine entries of a matrix
_MATRIX = [0, 5, 4, 5, 1, 3, 4, 3, 2]  # places of the nine entries in Voigt's order


def element_energies(
    z: Tensor, batch: Tensor, energy: Tensor, weight: Tensor | None = None, fixed: Tensor | None = None
) -> Tensor:
    """Compute the energy per atom of each element that fits a dataset best, as MACE's `E0s="average"`.

    A model with these energies as its `atomref` learns only the binding energy. A singular value decomposition of the
    compositions solves the least-squares problem, which does not square their condition number.

    Args:
        z: Atomic numbers of all structures; 0 is padding. [num_atoms]
        batch: Structure of each atom. [num_atoms]
        energy: Energy of each structure; NaN if unknown. [num_graphs] or [num_graphs, 1]
        weight: Weight of each structure. [num_graphs]
        fixed: Energies that are already known; NaN for energies to find. [100]

    Returns:
        Energies in the unit of `energy`; 0 for elements that do not occur. If compositions do not distinguish
        elements, as in pure water, the smallest energies that fit. [100]

    Raises:
        ValueError: an atom has a number that models do not embed, or belongs to no structure, or an energy in `fixed`
            is infinite.

    Example:
        >>> z, batch = torch.tensor([1, 1, 8, 1, 1, 8, 8]), torch.tensor([0, 0, 1, 1, 1, 2, 2])
        >>> energies = element_energies(z, batch, torch.tensor([-2.0, -12.0, -20.0]))
        >>> energies[[1, 8]]
        tensor([ -1., -10.])
    """
    num_graphs = energy.numel()
    if z.numel() and (int(z.min()) < 0 or int(z.max()) >= MAX_Z):
        raise ValueError(
            f"z is {int(z.min())} to {int(z.max())}; atomic numbers are 1 to {MAX_Z - 1}, and 0 is padding."
        )
    if batch.numel() and int(batch.max()) >= num_graphs:
        raise ValueError(f"An atom belongs to structure {int(batch.max())}, but there are {num_graphs} energies.")
    if fixed is not None and bool(fixed.isinf().any()):
        raise ValueError("fixed has an infinite energy; pass finite energies, and NaN for the elements to find.")
    counts = torch.bincount(batch.long() * MAX_Z + z, minlength=num_graphs * MAX_Z).view(num_graphs, MAX_Z).double()
    given = torch.zeros(MAX_Z).double() if fixed is None else fixed.double().nan_to_num(0.0)
    left = energy.flatten().double() - counts @ given
    count = torch.ones_like(left) if weight is None else weight.double()
    used = left.isfinite() & (count > 0)
    open_ = (counts[used].sum(0) > 0) & (torch.arange(MAX_Z) > 0)
    open_ = open_ if fixed is None else open_ & fixed.isnan()
    root = count[used].sqrt().unsqueeze(1)
    solved = torch.linalg.lstsq(counts[used][:, open_] * root, left[used].unsqueeze(1) * root, driver="gelsd").solution
    given[open_] = solved.flatten()
    return given.to(energy if energy.is_floating_point() else torch.empty(0, device=energy.device))


def voigt_to_matrix(stress: Tensor) -> Tensor:
    """Return stress as a symmetric matrix, from Voigt's order xx, yy, zz, yz, xz, xy: [..., 6] -> [..., 3, 3].

    Raises:
        ValueError: there are not six entries.

    Example:
        >>> voigt_to_matrix(torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]))
        tensor([[1., 6., 5.],
                [6., 2., 4.],
                [5., 4., 3.]])
    """
    if stress.shape[-1:] != (6,):
        raise ValueError(f"stress has shape {tuple(stress.shape)}; Voigt's order has 6 entries, [..., 6].")
    return stress[..., _MATRIX].unflatten(-1, (3, 3))


def matrix_to_voigt(stress: Tensor) -> Tensor:
    """Return stress in Voigt's order xx, yy, zz, yz, xz, xy, which ASE uses: [..., 3, 3] -> [..., 6].

    Raises:
        ValueError: the last two dimensions are not 3 and 3.

    Example:
        >>> matrix_to_voigt(torch.tensor([[1.0, 6.0, 5.0], [6.0, 2.0, 4.0], [5.0, 4.0, 3.0]]))
        tensor([1., 2., 3., 4., 5., 6.])
    """
    if stress.shape[-2:] != (3, 3):
        raise ValueError(f"stress has shape {tuple(stress.shape)}; a matrix is [..., 3, 3].")
    return stress.flatten(-2)[..., _VOIGT]
