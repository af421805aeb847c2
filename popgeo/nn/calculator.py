"""A trained model as a calculator of ASE, whose shapes stay the same for a whole run."""

import copy
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from popgeo.nn.forces import energy_forces_and_stress

Evaluation = Callable[..., tuple[Tensor, Tensor, Tensor]]


class Potential(nn.Module):
    """Energy, forces and stress of one structure that shares its batch with a graph of padding."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, z: Tensor, pos: Tensor, batch: Tensor, edge_index: Tensor, edge_shift: Tensor, cell: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """[2, 1], [num_nodes, 3] and [2, 3, 3]"""
        return energy_forces_and_stress(
            self.model, z, pos, batch, edge_index, edge_shift=edge_shift, cell=cell, num_graphs=2
        )


class Calculator:
    """Lets ASE run dynamics, optimizers and the rest with a model; needs `ase`, and `vesin` for fast neighbour lists.

    Each structure fills the same number of atom and edge slots, so that whatever compiles the model does so once for a
    run in which edges come and go. Where they outgrow their slots, these grow by half and a warning says so. Neighbours
    are found over the periodic axes of `atoms.pbc`. The model is copied.

    Args:
        model: Called as `model(z, pos, batch, edge_index, edge_shift=..., num_graphs=...)`, such as `SchNet`: energies
            in eV from positions in angstrom.
        cutoff: Longest edge in angstrom; that of the model when left out.
        num_edges: Edge slots; a quarter more than the first structure has when left out.
        compile: Makes a module of tensors fast, such as `popgeo.ipu.inference_model`, or `torch.compile`'s like; called
            once for each shape. The module is run as it is when left out.

    Raises:
        ValueError: the cutoff is neither given nor the model's, or it or `num_edges` is not positive.
        ImportError: ase is not installed.

    Example:
        >>> import pytest; ase = pytest.importorskip("ase")
        >>> from popgeo.nn import Calculator, SchNet
        >>> atoms = ase.Atoms("OH2", [[0.0, 0, 0.12], [0, 0.76, -0.48], [0, -0.76, -0.48]])
        >>> atoms.calc = Calculator(SchNet(8, 8, num_interactions=1, cutoff=5.0))
        >>> atoms.get_forces().shape, atoms.calc.num_edges
        ((3, 3), 8)
    """

    implemented_properties = ("energy", "free_energy", "forces", "stress")
    results: dict[str, Any]

    def __new__(cls, *args: Any, **kwargs: Any) -> "Calculator":
        return object.__new__(_with_the_manners_of_ase(cls))  # type: ignore[arg-type]  # a class has a hash

    def __init__(
        self,
        model: nn.Module,
        cutoff: float | None = None,
        *,
        num_edges: int | None = None,
        compile: Callable[[nn.Module], Evaluation] | None = None,
    ) -> None:
        super().__init__()
        cutoff = getattr(model, "cutoff", None) if cutoff is None else cutoff
        if cutoff is None or cutoff <= 0:
            raise ValueError(f"The cutoff is {cutoff}. Pass cutoff=, the longest edge in angstrom, above 0.")
        if num_edges is not None and num_edges < 1:
            raise ValueError(f"num_edges is {num_edges}; a structure needs at least one slot.")
        self.cutoff, self.num_edges, self.num_atoms = cutoff, num_edges, 0
        self.num_compilations = 0
        """How often the shapes were fixed: once in a run that fits its slots."""
        self._potential = Potential(copy.deepcopy(model)).eval()
        self._compile = compile
        self._evaluate: Evaluation = self._potential
        like = next(model.parameters(), torch.empty(0))
        self._dtype, self._device = like.dtype, like.device

    def calculate(
        self, atoms: Any = None, properties: Sequence[str] = ("energy",), system_changes: Sequence[str] = ()
    ) -> None:
        """What ASE calls where atoms have changed; fills `results`."""
        super().calculate(atoms, properties, system_changes)  # type: ignore[misc]  # of ASE's class
        atoms = self.atoms  # type: ignore[attr-defined]
        edge_index, edge_shift = _neighbours(atoms, self.cutoff)
        self._fix_shapes(len(atoms), edge_index.shape[1])
        energy, forces, stress = self._evaluate(*self._batch(atoms, edge_index, edge_shift))
        self.results = {
            "energy": float(energy[0].detach()),
            "free_energy": float(energy[0].detach()),
            "forces": forces[: len(atoms)].detach().cpu().numpy().astype(np.float64),
        }
        if atoms.cell.rank == 3:
            voigt = stress[0].detach().cpu().numpy().astype(np.float64)
            self.results["stress"] = voigt[[0, 1, 2, 1, 0, 0], [0, 1, 2, 2, 2, 1]]

    def _fix_shapes(self, num_atoms: int, num_found: int) -> None:
        """Compiles where the number of atoms is another, or the edges have outgrown their slots."""
        slots = self.num_edges
        if slots is None:
            slots = int(num_found * 1.25) + 1
        elif num_found > slots:
            slots = num_found * 3 // 2
            warnings.warn(
                f"The structure has {num_found} edges within {self.cutoff} angstrom, num_edges is {self.num_edges}. It "
                f"is {slots} from here on, for which the model is compiled anew; pass num_edges={slots} to avoid that.",
                stacklevel=2,
            )
        if (num_atoms, slots) != (self.num_atoms, self.num_edges) or not self.num_compilations:
            self.num_atoms, self.num_edges = num_atoms, slots
            self._evaluate = self._potential if self._compile is None else self._compile(self._potential)
            self.num_compilations += 1

    def _batch(self, atoms: Any, edge_index: np.ndarray, edge_shift: np.ndarray) -> tuple[Tensor, ...]:
        """The structure and one atom of padding, which every absent edge joins to itself."""
        assert self.num_edges is not None  # since `_fix_shapes`
        count, absent = len(atoms), self.num_edges - edge_index.shape[1]
        z = np.append(atoms.numbers, 0)
        pos = np.vstack([atoms.positions, np.zeros((1, 3))])
        batch = np.append(np.zeros(count), 1)
        edge_index = np.pad(edge_index, ((0, 0), (0, absent)), constant_values=count)
        edge_shift = np.pad(edge_shift, ((0, absent), (0, 0)))
        cell = np.stack([atoms.cell.array, np.zeros((3, 3))])
        integers = [torch.as_tensor(a, dtype=torch.int64, device=self._device) for a in (z, batch, edge_index)]
        numbers = [torch.as_tensor(a, dtype=self._dtype, device=self._device) for a in (pos, edge_shift, cell)]
        return integers[0], numbers[0], integers[1], integers[2], numbers[1], numbers[2]


def _neighbours(atoms: Any, cutoff: float) -> tuple[np.ndarray, np.ndarray]:
    """Edges (neighbour, centre) [2, n], sorted by centre, and what is added to the neighbour's position [n, 3]."""
    try:
        from vesin import ase_neighbor_list as neighbor_list
    except ImportError:
        from ase.neighborlist import neighbor_list
    centre, neighbour, steps = neighbor_list("ijS", atoms, cutoff)
    return np.stack([neighbour, centre]), steps @ atoms.cell.array


@cache
def _with_the_manners_of_ase(cls: type) -> type:
    """The class and ASE's own in one, made when first asked for: importing popgeo.nn needs no ase."""
    try:
        from ase.calculators.calculator import Calculator as OfASE
    except ImportError as error:
        raise ImportError("The calculator needs ase: pip install 'popgeo[atoms]'.") from error
    return type(cls.__name__, (cls, OfASE), {"__module__": cls.__module__, "__doc__": cls.__doc__})
