"""Forces: how the energy that a model predicts falls as atoms move."""

from typing import Any

import torch
from torch import Tensor, nn


def energy_and_forces(model: nn.Module, z: Tensor, pos: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    """Energies and F = -dE/dpos of each atom (arXiv:1706.08566, eq. 5), one backward pass through the model.

    While the model trains, forces can be differentiated again, so they can stand in a loss. Energies of padding graphs
    depend on no real atom, so padding changes no force; a padding atom's force is zero.

    Args:
        model: Called as `model(z, pos, *args, **kwargs)`, such as `SchNet`; returns energies.
        z: Atomic numbers. [num_atoms]
        pos: Positions. [num_atoms, 3]
        args: What else the model takes.
        kwargs: What else the model takes, by name.

    Returns:
        Energies [num_graphs, 1] and forces [num_atoms, 3], in the energy's unit over that of the positions.

    Example:
        >>> from popgeo.nn import SchNet
        >>> model = SchNet(hidden_channels=8, num_filters=8, num_interactions=1)
        >>> z, pos = torch.tensor([8, 1, 1]), torch.randn(3, 3)
        >>> energy, forces = energy_and_forces(model, z, pos, num_graphs=1)
        >>> energy.shape, forces.shape
        (torch.Size([1, 1]), torch.Size([3, 3]))
    """
    with torch.enable_grad():
        if not pos.requires_grad:
            pos = pos.detach().requires_grad_()
        energy = model(z, pos, *args, **kwargs)
        (gradient,) = torch.autograd.grad(energy.sum(), pos, create_graph=model.training)
    return energy, -gradient
