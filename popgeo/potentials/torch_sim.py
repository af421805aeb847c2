"""A torch_sim model for many systems at once in one shape, compiled once for a screening or a dynamics run."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from popgeo.deploy.ase_calculator import STATES
from popgeo.potentials.evaluator import Evaluator

try:
    from ase import Atoms
    from torch_sim.models.interface import ModelInterface
except ImportError as error:
    raise ImportError("popgeo.potentials.torch_sim needs torch_sim: pip install torch-sim-atomistic.") from error


class FixedSizeModel(ModelInterface):
    """A torch_sim model that evaluates many systems at once, in batches of constant shape.

        model = FixedSizeModel(popgeo.potentials.mace.evaluator(model))

    Args:
        evaluator: Evaluates systems. `Evaluator` explains when the shape grows.
        compute_stress: Whether results have stress.
    """

    def __init__(self, evaluator: Evaluator, compute_stress: bool = True) -> None:
        super().__init__()
        self.evaluator = evaluator
        self._device, self._dtype = evaluator.device, evaluator.dtype
        self._compute_stress, self._compute_forces = compute_stress, True

    def forward(self, state: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Return energies [n_systems], forces [n_atoms, 3] and stress [n_systems, 3, 3] of a state of torch_sim."""
        given = state if isinstance(state, Mapping) else vars(state)
        state = SimpleNamespace(**{name.lstrip("_"): value for name, value in given.items()})
        order = torch.argsort(state.system_idx, stable=True)
        pbc = torch.as_tensor(state.pbc).cpu().expand(3).numpy()
        tensors = state.atomic_numbers, state.positions, state.cell.mT
        z, pos, cells = (tensor.detach().cpu().numpy() for tensor in tensors)
        atoms = [rows.numpy() for rows in order.cpu().split(torch.bincount(state.system_idx).tolist())]
        systems = [Atoms(z[rows], pos[rows], cell=cell, pbc=pbc) for rows, cell in zip(atoms, cells, strict=True)]
        for name in (name for name in STATES if getattr(state, name, None) is not None):
            for system, value in zip(systems, getattr(state, name).tolist(), strict=True):
                system.info[name] = value
        found = self.evaluator(systems)
        if "forces" in found:
            found["forces"] = torch.empty_like(found["forces"]).index_copy(0, order, found["forces"])
        if not self.compute_stress:
            found.pop("stress", None)
        return found
