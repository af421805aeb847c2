"""ASE calculators for trained models, with constant shapes during a run."""

import copy
import math
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from popgeo.convert.periodic_pairs import NeighborList, require_elements
from popgeo.deploy.atom_slots import AtomSlots
from popgeo.deploy.few_shapes import FewShapes, Shape, with_spare_edges
from popgeo.nn.atom_targets import matrix_to_voigt
from popgeo.nn.forces import energy_and_forces, energy_forces_and_stress
from popgeo.nn.neighbor_rule import NeighborRule
from popgeo.plain_surroundings import plain_surroundings

Evaluation = Callable[..., tuple[Tensor, ...]]
STATES = {"charge", "spin"}
"""Names in `atoms.info` that a model may read."""
_INITIAL = {"initial_charges", "initial_magmoms"}


class Potential(nn.Module):
    """A module that computes energy, forces and stress of one structure, in a batch with one padding graph.

    Args:
        model: The model, see `Calculator`.
        with_stress: Whether to compute stress, which needs three cell vectors.
    """

    def __init__(self, model: nn.Module, with_stress: bool) -> None:
        super().__init__()
        self.model, self.with_stress = model, with_stress

    def forward(
        self, z: Tensor, pos: Tensor, batch: Tensor, edge_index: Tensor, edge_shift: Tensor, cell: Tensor
    ) -> tuple[Tensor, ...]:
        """Return energies [2, 1], forces [num_nodes, 3] and, with stress, stress [2, 3, 3]."""
        given: dict[str, Any] = {"edge_shift": edge_shift, "num_graphs": 2}
        if self.with_stress:
            return energy_forces_and_stress(self.model, z, pos, batch, edge_index, cell=cell, **given)
        return energy_and_forces(self.model, z, pos, batch, edge_index, **given)


class SystemsCalculator:
    """An ASE calculator for any framework's model, for dynamics, optimizers and screenings. Needs `ase`.

        atoms.calc = SystemsCalculator(popgeo.potentials.mace.evaluator(model))

    Args:
        evaluator: Takes a list of `ase.Atoms`. Returns a dictionary with `energy`, `forces` and, if the model has it,
            `stress`. An example is `popgeo.potentials.evaluator.Evaluator`.
    """

    implemented_properties = ("energy", "free_energy", "forces", "stress")
    results: dict[str, Any]

    def __new__(cls, *args: Any, **kwargs: Any) -> "SystemsCalculator":
        """Return an instance of a subclass that also inherits from ASE's calculator."""
        return object.__new__(_subclass_of_ase(cls))  # type: ignore[arg-type]  # a class has a hash

    def __init__(self, evaluator: Any) -> None:
        super().__init__()
        self.evaluator = evaluator

    def __reduce__(self) -> tuple[Any, ...]:
        """Exclude compiled programs from copies and pickles, because they use memory of this process."""
        own = type(self).__mro__[1]  # the class without ASE's base
        return own.__new__, (own,), {**vars(self), "_evaluate": {}, "_slots": {}, "_kept": ()}

    def make_room(self, structures: Sequence[Any], process_group: Any = None) -> None:
        """Choose at most two shapes for a campaign, a small shape for most structures and a large shape for the rest.

        Results are the same as without this call. If a structure needs more later, a shape is added, with a warning.

        Args:
            structures: All `ase.Atoms` of the campaign; only their neighbors are counted.
            process_group: Group of `torch.distributed`, such as `torch.distributed.group.WORLD`. Each of its processes
                makes this call with its own structures, and all get the same shapes and compile them now. A structure
                that needs more later is an error, because one process would compile alone; call this again in all
                processes. Default: this process alone.

        Raises:
            ValueError: there are no structures, or a neighbor list cannot be made, in any of the processes.
        """
        self.evaluator.make_room(structures, process_group)

    def check_state(self, atoms: Any, tol: float = 0.0) -> list[str]:
        """Return the names of a model's inputs that have changed since the last calculation.

        ASE's own check of charges and magnetic moments takes longer than the forces of a small molecule.
        """
        names = ["positions", "numbers", "cell", "pbc"]
        last: Any = self.atoms  # type: ignore[attr-defined]  # of ASE's class
        if last is None or len(last) != len(atoms):
            return names
        for old, new, of in ((last.info, atoms.info, STATES), (last.arrays, atoms.arrays, _INITIAL)):
            if found := [name for name in of & {*old, *new} if not np.array_equal(old.get(name), new.get(name))]:
                return found
        both = ((one.positions, one.numbers, one.cell.array, one.pbc) for one in (last, atoms))
        pairs = zip(names, *both, strict=True)
        if tol:
            return [name for name, one, other in pairs if not (abs(one * 1.0 - other) <= tol).all()]
        return [name for name, one, other in pairs if one.tobytes() != other.tobytes()]

    @torch.inference_mode(False)  # in which there would be no forces
    def calculate(
        self, atoms: Any = None, properties: Sequence[str] = ("energy",), system_changes: Sequence[str] = ()
    ) -> None:
        """Compute `results`. ASE calls this method if the atoms have changed."""
        super().calculate(atoms, properties, system_changes)  # type: ignore[misc]  # of ASE's class
        atoms = self.atoms  # type: ignore[attr-defined]
        energy, forces, *stress = (tensor.detach().cpu() for tensor in self._values(atoms))
        total = energy[0].item()
        self.results = {"energy": total, "free_energy": total, "forces": forces[: len(atoms)].double().numpy()}
        if stress:
            self.results["stress"] = matrix_to_voigt(stress[0][0]).double().numpy()

    def _values(self, atoms: Any) -> tuple[Tensor, ...]:
        """Return energy, forces and, for three cell vectors, stress. The rows of these atoms come first."""
        found = self.evaluator([atoms])
        stress = [found["stress"]] if "stress" in found and atoms.cell.rank == 3 else []
        return found["energy"], found["forces"], *stress


class Calculator(SystemsCalculator):
    """An ASE calculator for a popgeo model. Needs `ase`, and `vesin` for fast neighbor lists.

    A compiled model gets a fixed number of atom and edge slots, so it is compiled once for a run in which edges appear
    and disappear. For many structures `make_room` chooses at most two shapes. Otherwise, if a structure needs more
    slots, there is a warning, and a shape with 1.5 times the need is added (3 times at the second growth, and so on).
    Results do not depend on the shape or on earlier structures: with `popgeo.compile_forward` to the bit. A model that
    is not compiled gets no padding but one atom. Neighbors are found over the periodic axes of `atoms.pbc`. A model
    with a `neighbor_rule`, such as `SchNet`, gets positions in float64. If the rule limits the number of neighbors, and
    a structure without periodic axes has more, the rule's own search finds them. The model is copied. For models of
    MACE, NequIP, SchNetPack and fairchem see `SystemsCalculator`.

    Args:
        model: Called as `model(z, pos, batch, edge_index, edge_shift=..., num_graphs=...)`, such as `SchNet`. Returns
            energies in eV from positions in angstrom.
        cutoff: Longest edge in angstrom. Default: the model's cutoff.
        num_atoms: Number of atom slots, without padding, of the first shape. Default: the atoms of the first structure.
        num_edges: Number of edge slots of the first shape. Default: a quarter more than the edges of the first
            structure. If it is even, opposite edges share a filter in a compiled `SchNet`.
        compile: Compiles a module of tensors, as `popgeo.compile_forward`, `popgeo.ipu.inference_model` or
            `torch.compile` does; called once per shape. Default: the module is not compiled.
        skin: Distance beyond the cutoff, in angstrom, up to which neighbors are listed. They are searched again only if
            an atom has moved half of the skin. Edges are those of a new list at each step.

    Raises:
        ValueError: the cutoff is missing in arguments and model, or is shorter than the model's; the cutoff,
            `num_atoms` or `num_edges` is not positive, or `skin` is negative.
        ImportError: ase is not installed.

    Example:
        >>> import pytest; ase = pytest.importorskip("ase")
        >>> from popgeo.deploy import Calculator
        >>> from popgeo.nn import SchNet
        >>> atoms = ase.Atoms("OH2", [[0.0, 0, 0.12], [0, 0.76, -0.48], [0, -0.76, -0.48]])
        >>> atoms.calc = Calculator(SchNet(8, 8, num_interactions=1, cutoff=5.0))
        >>> atoms.get_forces().shape, atoms.calc.num_edges
        ((3, 3), 8)
    """

    @plain_surroundings()
    def __init__(
        self,
        model: nn.Module,
        cutoff: float | None = None,
        *,
        num_atoms: int | None = None,
        num_edges: int | None = None,
        compile: Callable[[nn.Module], Evaluation] | None = None,
        skin: float = 0.5,
    ) -> None:
        super().__init__(None)
        self._model = copy.deepcopy(model).eval()
        self._rule: NeighborRule | None = getattr(self._model, "neighbor_rule", None)
        own = getattr(self._rule or model, "cutoff", None)
        cutoff = own if cutoff is None else cutoff
        if cutoff is not None and isinstance(own, (int, float)) and cutoff < own:
            raise ValueError(
                f"The cutoff is {cutoff} and the model's {own} angstrom: interactions between them would be missing, "
                "and energies would jump. Leave cutoff out, or pass a longer one."
            )
        if cutoff is None or cutoff <= 0:
            raise ValueError(f"The cutoff is {cutoff}. Pass cutoff=, the longest edge in angstrom, above 0.")
        for name, given in (("num_atoms", num_atoms), ("num_edges", num_edges)):
            if given is not None and given < 1:
                raise ValueError(f"{name} is {given}; a structure needs at least one slot.")
        self.cutoff = cutoff
        self._asked = num_atoms, num_edges
        self._few = FewShapes([(num_atoms, num_edges)] if num_atoms and num_edges else [])
        self._has_warned = False
        self.num_compilations = 0
        """Number of compilations: one per shape. Without `make_room` a shape is compiled twice if a crystal follows a
        molecule, because only a crystal has a stress."""
        self.neighbors = NeighborList(cutoff, skin)
        self._compile = compile
        self._evaluate: dict[tuple[Shape, bool], Evaluation] = {}  # by shape, and by whether there is stress
        self._slots: dict[Shape, AtomSlots] = {}
        self._has_crystals = False  # in an announced campaign
        self._kept: tuple[Any, ...] = ()  # what fills the slots besides positions
        like = next(model.parameters(), torch.empty(0))
        self._dtype, self._device = like.dtype if self._rule is None else torch.float64, like.device
        self._dtype_of_search = like.dtype

    @property
    def num_atoms(self) -> int | None:
        """Atom slots of the largest shape, without padding."""
        return self._few.shapes[-1][0] if self._few.shapes else self._asked[0]

    @property
    def num_edges(self) -> int | None:
        """Edge slots of the largest shape."""
        return self._few.shapes[-1][1] if self._few.shapes else self._asked[1]

    def make_room(self, structures: Sequence[Any], process_group: Any = None) -> None:
        """See `SystemsCalculator.make_room`."""
        has_cell = self._few.make_room(structures, self.cutoff, process_group)[:, 2]
        self._has_crystals, self._kept = bool(has_cell.any()), ()
        self._slots = {shape: slots for shape, slots in self._slots.items() if shape in self._few.shapes}
        self._evaluate = {key: run for key, run in self._evaluate.items() if key[0] in self._few.shapes}
        if process_group is not None and self._compile is not None:  # all processes compile now, none later
            for shape in self._few.shapes:
                self._program(shape, self._has_crystals)(*self._slots_of(shape).given)

    def _values(self, atoms: Any) -> tuple[Tensor, ...]:
        kept = atoms.numbers.tobytes(), atoms.cell.array.tobytes()
        if kept != self._kept[:2]:
            require_elements(atoms.numbers, getattr(self._model, "elements", None))
        pos, edges, shifts = self.neighbors.near_origin(atoms)
        if kept == self._kept[:2] and edges is self._kept[2] and shifts is self._kept[3]:
            slots, run = self._kept[4:]
            slots.places[1][: len(pos)] = pos
        else:
            self._kept = ()
            near = self._near(atoms, pos, edges, shifts)
            shape = self._shape_for(len(atoms), near[1].shape[1])
            slots, run = self._slots_of(shape), self._program(shape, atoms.cell.rank == 3)
            slots.fill(atoms, *near)
            self._kept = (*kept, edges, shifts, slots, run) if near[1] is edges else ()
        slots.send()
        try:
            found = run(*(slots.given if self._compile is not None else slots.filled))
            if math.isnan(found[0][0].item()):
                raise ValueError(
                    f"The model's energy of {atoms.symbols} is NaN. Check the positions, and whether the model knows "
                    "all elements."
                )
            return found[: 2 + (atoms.cell.rank == 3)]
        except IndexError as error:
            what = f"{atoms.symbols}, of atomic numbers up to {max(atoms.numbers)}"
            raise ValueError(f"The model knows too few elements for {what}. Use a model for all of them.") from error

    def _near(
        self, atoms: Any, pos: np.ndarray, edge_index: np.ndarray, edge_shift: np.ndarray
    ) -> tuple[np.ndarray, ...]:
        """Return positions, edges and edge shifts. The edges are within the cutoff and allowed by the model's rule.

        Raises:
            ValueError: the rule limits the number of neighbors, and the cell is periodic, which its search does not
                support.
        """
        rule, most = self._rule, int(np.bincount(edge_index[1]).max(initial=0))
        limit = None if rule is None else rule.max_num_neighbors
        if rule is None or limit is None or most <= limit or (rule.is_default and any(atoms.pbc)):
            return pos, edge_index, edge_shift  # the training of periodic models ignores a default limit
        if any(atoms.pbc):
            raise ValueError(rule.why_not_all(most))
        if rule.is_default and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"An atom of {atoms.symbols} has {most} neighbors within {rule.cutoff} angstrom; the "
                f"{limit} nearest are used, as the model does by itself. If it was trained with "
                f"listed pairs, make it with interaction_graph=PairInteractionGraph({rule.cutoff}) to use all.",
                stacklevel=3,
            )
        places = torch.from_numpy(pos).to(self._device, self._dtype_of_search)
        assert rule.search is not None  # a rule with a limit has a search
        edges, lengths = rule.search(places, torch.zeros(len(places), dtype=torch.int64, device=self._device))
        found = edges[:, (lengths < rule.cutoff) & (edges[0] != edges[1])].cpu().numpy()
        found = np.hstack([found, found[::-1]]) if getattr(rule.search, "half_list", False) else found
        return pos, found, np.zeros((found.shape[1], 3))

    def _shape_for(self, num_atoms: int, num_edges: int) -> Shape:
        """Return the shape for a structure; the first structure determines sizes that were not asked for."""
        if self._compile is None:  # eager code needs no padding
            self._few.shapes, self._slots = [(num_atoms, with_spare_edges(num_edges))], {}
        elif not self._few.shapes:
            self._few.shapes.append((self._asked[0] or num_atoms, self._asked[1] or with_spare_edges(num_edges)))
        return self._few.shape_for(num_atoms, num_edges)

    def _slots_of(self, shape: Shape) -> AtomSlots:
        if shape not in self._slots:
            self._slots[shape] = AtomSlots(shape, self._dtype, self._device)
        return self._slots[shape]

    def _program(self, shape: Shape, with_stress: bool) -> Evaluation:
        """Return the program of a shape. If crystals have a program, molecules use it too: it has the same bits."""
        if self._compile is None:
            return Potential(self._model, with_stress).eval()
        if (shape, with_stress) not in self._evaluate:
            with_stress = with_stress or self._has_crystals or (shape, True) in self._evaluate
        if (shape, with_stress) not in self._evaluate:
            self._evaluate[shape, with_stress] = self._compile(Potential(self._model, with_stress).eval())
            self.num_compilations += 1
        return self._evaluate[shape, with_stress]


@cache
def _subclass_of_ase(cls: type) -> type:
    """Return a subclass that also inherits from ASE's calculator, so that importing this module does not import ase."""
    try:
        from ase.calculators.calculator import Calculator as OfASE
    except ImportError as error:
        raise ImportError("The calculator needs ase: pip install ase.") from error
    return type(cls.__name__, (cls, OfASE), {"__module__": cls.__module__, "__doc__": cls.__doc__})
