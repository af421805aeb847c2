"""Forces and stress as derivatives of a model's energy with respect to positions and cell strain."""

from typing import Any

import torch
from torch import Tensor, nn

from popgeo.ops.gather_scatter import rows_of_ends
from popgeo.ops.refusals import check_shapes


def energy_and_forces(model: nn.Module, z: Tensor, pos: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    """Compute energies, and forces F = -dE/dpos by one backward pass (arXiv:1706.08566, eq. 5).

    If the model is in training mode, forces can be differentiated again, so they can be part of a loss. Energies of
    padding graphs depend on no real atom, so padding changes no force; a padding atom's force is zero.

    Args:
        model: Model such as `SchNet`, called as `model(z, pos, *args, **kwargs)`, that returns energies.
        z: Atomic numbers. [num_atoms]
        pos: Positions. [num_atoms, 3]
        *args: Further arguments of the model.
        **kwargs: Further arguments of the model, by name.

    Returns:
        Energies [num_graphs, 1], and forces [num_atoms, 3] in the unit of energy per unit of length.

    Raises:
        ValueError: `torch.inference_mode()` is on, which excludes derivatives.

    Example:
        >>> from popgeo.nn import SchNet
        >>> model = SchNet(hidden_channels=8, num_filters=8, num_interactions=1)
        >>> z, pos = torch.tensor([8, 1, 1]), torch.randn(3, 3)
        >>> energy, forces = energy_and_forces(model, z, pos, num_graphs=1)
        >>> energy.shape, forces.shape
        (torch.Size([1, 1]), torch.Size([3, 3]))
    """
    with torch.enable_grad():
        pos = _differentiable(pos)
        energy = model(z, pos, *args, **kwargs)
        (gradient,) = torch.autograd.grad(energy, pos, torch.ones_like(energy), create_graph=model.training)
    return energy, -gradient


def energy_forces_and_stress(
    model: nn.Module,
    z: Tensor,
    pos: Tensor,
    batch: Tensor,
    edge_index: Tensor,
    *,
    edge_shift: Tensor,
    cell: Tensor,
    num_graphs: int,
    **kwargs: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute energies, forces, and the stress of each periodic cell, by one backward pass.

    The stress is dE/de / V for a strain e of atoms, images and cell. It is positive if the cell contracts, as in ASE. A
    padding graph has a cell of zeros and a stress of 0.

    Args:
        model: Model such as `SchNet`, called as `model(z, pos, batch, edge_index, edge_shift=..., num_graphs=...,
            **kwargs)`.
        z: Atomic numbers. [num_atoms]
        pos: Positions. [num_atoms, 3]
        batch: Cell of each atom. [num_atoms]
        edge_index: Neighbor and center of each edge. [2, num_edges]
        edge_shift: Vector from each neighbor to its image that interacts. [num_edges, 3]
        cell: The three vectors of each cell, one per row. [num_graphs, 3, 3]
        num_graphs: Cells in the batch, padding included.
        **kwargs: Further arguments of the model, by name.

    Returns:
        Energies [num_graphs, 1], forces [num_atoms, 3], and symmetric stresses [num_graphs, 3, 3] in the unit of energy
        per unit of volume.

    Raises:
        ValueError: `cell` is not [num_graphs, 3, 3], or `torch.inference_mode()` is on, which excludes derivatives.

    Example:
        >>> import torch
        >>> from popgeo.nn import SchNet
        >>> model = SchNet(hidden_channels=8, num_filters=8, num_interactions=1, cutoff=3.0)
        >>> cell = 2.5 * torch.eye(3).unsqueeze(0)
        >>> both_ways = torch.cat([cell[0], -cell[0]])  # one atom and its six nearest images
        >>> edges = torch.zeros(2, 6, dtype=torch.long)
        >>> z, pos, batch = torch.tensor([29]), torch.zeros(1, 3), torch.tensor([0])
        >>> _, forces, stress = energy_forces_and_stress(
        ...     model, z, pos, batch, edges, edge_shift=both_ways, cell=cell, num_graphs=1)
        >>> forces.abs().max().item(), stress.shape
        (0.0, torch.Size([1, 3, 3]))
    """
    check_shapes("Pass one cell per graph.", cell=(cell, (num_graphs, 3, 3)))
    with torch.enable_grad():
        pos = _differentiable(pos)
        strain = torch.zeros_like(cell, requires_grad=True)
        symmetric = (strain + strain.transpose(1, 2)) / 2
        moved = pos + _strained(pos, symmetric, batch)
        shift = edge_shift + _strained(edge_shift, symmetric, batch.index_select(0, edge_index[1]))
        energy = model(z, moved, batch, edge_index, edge_shift=shift, num_graphs=num_graphs, **kwargs)
        ones = torch.ones_like(energy)
        slope, virial = torch.autograd.grad(energy, (pos, strain), ones, create_graph=model.training)
    volume = volumes(cell).view(-1, 1, 1)
    stress = torch.where(volume > 0, virial / torch.where(volume > 0, volume, 1.0), 0.0)
    return energy, -slope, stress


def _differentiable(pos: Tensor) -> Tensor:
    if torch.is_inference_mode_enabled():
        remedy = "Use torch.no_grad(), or Lightning's Trainer(inference_mode=False)."
        raise ValueError(f"torch.inference_mode() excludes derivatives. {remedy}")
    return pos if pos.requires_grad else pos.detach().requires_grad_()


def volumes(cell: Tensor) -> Tensor:
    """Return the volume of each cell: [num_graphs, 3, 3] -> [num_graphs].

    Example:
        >>> volumes(2 * torch.eye(3)[None])
        tensor([8.])
    """
    (a, b, c), after, before = cell.unbind(1), [1, 2, 0], [2, 0, 1]
    # Written out, because some file formats have no torch.linalg.cross.
    return ((a[:, after] * b[:, before] - a[:, before] * b[:, after]) * c).sum(1).abs()


def _strained(vectors: Tensor, strain: Tensor, graph: Tensor) -> Tensor:
    """Return the displacement of each vector under its graph's strain: [n, 3], [num_graphs, 3, 3], [n] -> [n, 3]."""
    moves = [vectors[:, k : k + 1] * rows_of_ends(strain[:, k], graph) for k in range(3)]
    return moves[0] + moves[1] + moves[2]
