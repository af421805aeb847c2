"""Evaluation of any framework's potential on systems of any size, in batches of one shape, for dynamics and screening.

Systems are packed into batches that keep the contract of `padding.py`. `make_room` chooses at most two shapes for a
campaign. If a system is larger than each shape, a larger shape is added, with a warning. No edge is ever dropped. Each
framework's file has an `evaluator(model)`, which ASE and torch_sim use as follows:

    atoms.calc = SystemsCalculator(evaluator)                                  # ASE; one system at a time
    model = popgeo.potentials.torch_sim.FixedSizeModel(evaluator)              # torch_sim; many at once
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Batch, Data
from typing_extensions import TypedDict, Unpack

from popgeo.convert.periodic_pairs import NeighborList, require_elements
from popgeo.deploy.ase_calculator import STATES
from popgeo.deploy.ase_calculator import SystemsCalculator as SystemsCalculator
from popgeo.deploy.few_shapes import FewShapes, Shape
from popgeo.packing import Budget, decreasing
from popgeo.potentials.padding import PotentialLoader, with_safe_padding

_LEAST = 8, 32  # atoms and edges of a shape; torch sums products of fewer than four rows in a different order


class EvaluatorArguments(TypedDict, total=False):
    """Keyword arguments of `Evaluator` that every framework's `evaluator` takes.

    Args:
        num_nodes: Atoms of a batch of the first shape, padding included. Default: a quarter more than the first systems
            need, or the result of `make_room`.
        num_edges: Edges of a batch of the first shape. Default: as for atoms.
        num_graphs: Systems of a batch, padding included. Default: room for the first systems; 2 after `make_room`, as
            ASE needs. With more, several small systems share a batch in torch_sim.
        skin: Distance beyond the cutoff, in angstrom; see `NeighborList`. Default: 0.5.
        dtype: Type of positions. Default: the model's.
        device: Device of the model.
        energy_unit: Unit of the model's energies in eV. Lengths are in angstrom. Default: 1.
    """

    num_nodes: int | None
    num_edges: int | None
    num_graphs: int | None
    skin: float
    dtype: torch.dtype
    device: torch.device | str
    energy_unit: float


class Evaluator:
    """An evaluator that computes energy, forces and stress of systems, by a model that gets batches of one shape.

    Args:
        evaluate: Called with the framework's batch. Returns `energy` [num_graphs] by name and, if the model has them,
            `forces` [num_nodes, 3] and `stress` [num_graphs, 3, 3], padding included.
        as_graph: Converts a graph with the names of `popgeo.convert.read_atoms` (`z`, `pos`, `cell`, `pbc`,
            `edge_index`, `edge_shift`) to the names of `padding.py`.
        as_batch: Makes the framework's batch, as that framework's loader does.
        cutoff: Cutoff of the model, in angstrom.
        species: Species of padding atoms, as `as_graph` counts species.
        levels: Level of further attributes: "node", "edge" or "graph". `charge` and `spin` among them are read from
            `atoms.info`.
        kwargs: Sizes of a batch, and type, device and units of the model; see `EvaluatorArguments`.

    Raises:
        ValueError: the cutoff is not positive; or, when systems are evaluated, a system has no atoms, or `NeighborList`
            or `as_graph` raises. The message has the number of the system.
    """

    def __init__(
        self,
        evaluate: Callable[[Any], Mapping[str, Tensor]],
        *,
        as_graph: Callable[[Data], Data],
        as_batch: Callable[[Batch], Any],
        cutoff: float,
        species: int,
        levels: Mapping[str, str] | None = None,
        **kwargs: Unpack[EvaluatorArguments],
    ) -> None:
        if not cutoff > 0:
            raise ValueError(f"The cutoff is {cutoff}; it must be more than 0 angstrom.")
        self.evaluate, self.as_graph, self.as_batch = evaluate, as_graph, as_batch
        self.cutoff, self.species, self.levels, self.skin = cutoff, species, levels, kwargs.get("skin", 0.5)
        self.dtype, self.device = kwargs.get("dtype", torch.float64), torch.device(kwargs.get("device", "cpu"))
        self.energy_unit = kwargs.get("energy_unit", 1.0)
        self._asked = kwargs.get("num_nodes"), kwargs.get("num_edges"), kwargs.get("num_graphs")
        self._few: FewShapes | None = None
        self.num_graphs = self._asked[2]
        """Systems of a batch, padding included; None before the first system."""
        self.num_shapes = 0
        """Number of shapes that the model got: at most 2 after `make_room`, unless a system outgrew them."""
        self.num_batches = 0
        self.num_real = np.zeros(2, np.int64)
        self.num_slots = np.zeros(2, np.int64)
        self._neighbors: list[NeighborList] = []
        self._loaders: dict[tuple[int, int, int], PotentialLoader] = {}

    def __call__(self, systems: Sequence[Any]) -> dict[str, Tensor]:
        """Compute energies [n] of `ase.Atoms`, and forces [num_atoms, 3] and stress [n, 3, 3] if the model has them.

        Units are eV and angstrom.
        """
        graphs = self._graphs(systems)
        sizes = np.array([(len(graph.z), graph.edge_index.shape[1]) for graph in graphs])
        few = self._begin(sizes)
        few.shape_for(*sizes.max(axis=0).tolist())  # adds at most one shape for all systems
        of = [few.shapes.index(few.shape_for(*each)) for each in sizes.tolist()]
        atoms = torch.arange(sizes[:, 0].sum()).split(sizes[:, 0].tolist())
        found: dict[str, Tensor] = {}
        for number, ids in self._packs(few.shapes, np.array(of), sizes):
            batch, outputs = self._run(few.shapes[number], [graphs[i] for i in ids.tolist()])
            masks = {"energy": batch.graphs_mask, "forces": batch.nodes_mask, "stress": batch.graphs_mask}
            self.num_batches, self.num_real = self.num_batches + 1, self.num_real + sizes[ids].sum(axis=0)
            self.num_slots += np.array([len(batch.nodes_mask), len(batch.edges_mask)])
            rows = {"energy": torch.from_numpy(ids), "forces": torch.cat([atoms[i] for i in ids.tolist()])}
            for name in masks.keys() & {name for name, value in outputs.items() if value is not None}:
                values = outputs[name].detach()
                values = values.view(-1, 3, 3) if name == "stress" else values.flatten() if name == "energy" else values
                values = values[masks[name]] * self.energy_unit
                total = sizes[:, 0].sum() if name == "forces" else len(graphs)
                place = found.setdefault(name, values.new_empty(int(total), *values.shape[1:]))
                place[rows["forces" if name == "forces" else "energy"].to(self.device)] = values
        return found

    def make_room(self, systems: Sequence[Any], process_group: Any = None) -> None:
        """Choose at most two shapes for a campaign; see `SystemsCalculator.make_room`.

        If `num_nodes` and `num_edges` were given, they are the first shape, and the second is for larger systems.
        """
        few = self._begin()
        few.make_room(systems, self.cutoff, process_group)
        if process_group is not None and len(systems):  # all processes compile now, none later
            atom = systems[0][:1]
            atom.pbc = False
            for shape in few.shapes:
                self._run(shape, [self._graph(atom, NeighborList(self.cutoff, 0.0))])

    def describe(self) -> str:
        """Return a description: the number of shapes that the model got, and how full its batches were."""
        nodes, edges = self.num_real / np.maximum(self.num_slots, 1)
        return f"{self.num_shapes} shapes, {self.num_batches} batches; nodes {nodes:.1%}, edges {edges:.1%} full"

    def _graphs(self, systems: Sequence[Any]) -> list[Data]:
        self._neighbors += [NeighborList(self.cutoff, self.skin) for _ in range(len(systems) - len(self._neighbors))]
        graphs = []
        for number, (atoms, neighbors) in enumerate(zip(systems, self._neighbors, strict=False)):
            try:
                graphs.append(self._graph(atoms, neighbors))
            except ValueError as error:
                raise ValueError(f"System {number}: {error}") from error
        return graphs

    def _graph(self, atoms: Any, neighbors: NeighborList) -> Data:
        """Convert a system to a graph with the attribute names of `padding.py`."""
        if not len(atoms):
            raise ValueError("it has no atoms. Leave it out.")
        require_elements(atoms.numbers)
        places, edges, shifts = neighbors.near_origin(atoms, by_fragment=self.dtype is not torch.float64)
        z, pbc, edge_index = map(torch.from_numpy, (atoms.numbers, atoms.pbc[None], edges))
        pos, cell, shift = (torch.from_numpy(one).to(self.dtype) for one in (places, atoms.cell.array[None], shifts))
        graph = Data(z=z.long(), pos=pos, cell=cell, pbc=pbc, edge_index=edge_index, edge_shift=shift)
        for name in STATES & {*(self.levels or {})} & {*atoms.info}:
            graph[name] = torch.tensor([atoms.info[name]])
        return self.as_graph(graph.to(self.device))

    def _begin(self, sizes: np.ndarray | None = None) -> FewShapes:
        """Return the shapes. The first systems determine a shape if none was asked for."""
        num_nodes, num_edges, _ = self._asked
        self.num_graphs = self.num_graphs or (2 if sizes is None else len(sizes) + 1)
        spare = self.num_graphs - 1
        if self._few is None:
            self._few = FewShapes([(num_nodes - spare, num_edges)] if num_nodes and num_edges else [], _LEAST)
        if not self._few.shapes and sizes is not None:
            nodes, edges = (sizes.sum(axis=0) * 5 // 4).tolist()
            nodes, edges = max(nodes + 1, _LEAST[0]), max(edges, _LEAST[1])
            self._few.shapes.append((num_nodes - spare if num_nodes else nodes, num_edges or edges))
        return self._few

    def _packs(self, shapes: list[Shape], of: np.ndarray, sizes: np.ndarray) -> list[tuple[int, np.ndarray]]:
        """Return the number of a shape and the systems of each batch, with the fewest edge slots.

        Small systems are packed by themselves, or also together with larger ones. `of` is the smallest shape that fits.
        """
        plans: list[list[tuple[int, np.ndarray]]] = []
        for least in range(len(shapes)):
            plan, home = [], np.maximum(of, least)
            for number in np.unique(home).tolist():
                mine = np.flatnonzero(home == number)
                for ids in decreasing(sizes[mine], Budget(sizes=shapes[number], num_graphs=(self.num_graphs or 2) - 1)):
                    total = sizes[mine[ids]].sum(axis=0)
                    fitting = (i for i, shape in enumerate(shapes) if (total <= shape).all())
                    plan.append((next(fitting), mine[ids]))
            plans.append(plan)
        return min(plans, key=lambda plan: sum(shapes[number][1] for number, _ in plan))

    def _run(self, shape: Shape, graphs: list[Data]) -> tuple[Batch, Mapping[str, Tensor]]:
        """Evaluate a batch of graphs that fit a shape; return the batch with its padding, and the model's outputs."""
        num_graphs = self.num_graphs or 2
        size = shape[0] + num_graphs - 1, shape[1], num_graphs
        if size not in self._loaders:
            slots: Any = dict(zip(("num_nodes", "num_edges", "batch_size"), size, strict=True))
            of_model: Any = {"cutoff": self.cutoff, "species": self.species, "levels": self.levels}
            self._loaders[size] = PotentialLoader(graphs, self.as_batch, **of_model, **slots)
            self.num_shapes += 1
        loader = self._loaders[size]
        batch = with_safe_padding(loader.collater(graphs), loader.cell_length)
        return batch, self.evaluate(self.as_batch(batch))


def with_unit_shift(graph: Data) -> Data:
    """Return a graph with reversed edges, as most frameworks use, and the number of cells that each edge crosses."""
    steps = torch.linalg.pinv(graph.cell[0])
    turned = {"edge_index": graph.edge_index.flip(0), "unit_shift": (graph.edge_shift @ steps).round()}
    return Data(**{**graph.to_dict(), **turned})


def places_in(numbers: Tensor, z: Tensor) -> Tensor:
    """Return the position of each atomic number in a model's table.

    Raises:
        ValueError: an atomic number is not in the table.
    """
    require_elements(z.numpy(), numbers.tolist())
    return (z[:, None] == numbers).int().argmax(dim=1)
