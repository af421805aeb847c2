"""Evaluation of any framework's potential on systems of any size, in batches of one shape, for dynamics and screening.

Systems are packed into batches that keep the contract of `padding.py`. The shape changes only if one system is larger
than a batch: the batch then becomes 1.5 times as large as the system, with a warning. No edge is ever dropped. Each
framework's file has an `evaluator(model)`, which ASE and torch_sim use as follows:

    atoms.calc = SystemsCalculator(evaluator)                                  # ASE; one system at a time
    model = popgeo.potentials.torch_sim.FixedSizeModel(evaluator)              # torch_sim; many at once
"""

import warnings
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
from popgeo.packing import Budget, decreasing
from popgeo.packing.sizes import grown
from popgeo.potentials.padding import PotentialLoader, with_safe_padding


class EvaluatorArguments(TypedDict, total=False):
    """Keyword arguments of `Evaluator` that every framework's `evaluator` takes.

    Args:
        num_nodes: Atoms of a batch, padding included. Default: a quarter more than the first systems need.
        num_edges: Edges of a batch. Default: a quarter more than the first systems need.
        num_graphs: Systems of a batch, padding included. Default: for the first systems.
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
        self.sizes = (0, 0, 0)
        """Nodes, edges and graphs of a batch, padding included; zeros before the first system."""
        self.num_shapes = 0
        """Number of shapes that the model got: 1, unless a system outgrew its batch."""
        self.num_batches = 0
        self.num_real = np.zeros(2, np.int64)
        self.num_slots = np.zeros(2, np.int64)
        self._neighbors: list[NeighborList] = []
        self._loader: PotentialLoader | None = None

    def __call__(self, systems: Sequence[Any]) -> dict[str, Tensor]:
        """Compute energies [n] of `ase.Atoms`, and forces [num_atoms, 3] and stress [n, 3, 3] if the model has them.

        Units are eV and angstrom.
        """
        graphs = self._graphs(systems)
        sizes = np.array([(len(graph.z), graph.edge_index.shape[1]) for graph in graphs])
        loader = self._room_for(graphs, sizes)
        num_nodes, num_edges, num_graphs = self.sizes
        budget = Budget(sizes=(num_nodes - num_graphs + 1, num_edges), num_graphs=num_graphs - 1)
        atoms = torch.arange(sizes[:, 0].sum()).split(sizes[:, 0].tolist())
        found: dict[str, Tensor] = {}
        for ids in decreasing(sizes, budget):
            batch = with_safe_padding(loader.collater([graphs[i] for i in ids.tolist()]), loader.cell_length)
            masks = {"energy": batch.graphs_mask, "forces": batch.nodes_mask, "stress": batch.graphs_mask}
            self.num_batches, self.num_real = self.num_batches + 1, self.num_real + sizes[ids].sum(axis=0)
            self.num_slots += np.array([num_nodes, num_edges])
            outputs = self.evaluate(self.as_batch(batch))
            rows = {"energy": torch.from_numpy(ids), "forces": torch.cat([atoms[i] for i in ids.tolist()])}
            for name in masks.keys() & {name for name, value in outputs.items() if value is not None}:
                values = outputs[name].detach()
                values = values.view(-1, 3, 3) if name == "stress" else values.flatten() if name == "energy" else values
                values = values[masks[name]] * self.energy_unit
                total = sizes[:, 0].sum() if name == "forces" else len(graphs)
                place = found.setdefault(name, values.new_empty(int(total), *values.shape[1:]))
                place[rows["forces" if name == "forces" else "energy"].to(self.device)] = values
        return found

    def make_room(self, systems: Sequence[Any]) -> None:
        """Fix the shape so that the largest of some systems fits, before a screening one by one.

        Args:
            systems: `ase.Atoms`; only their neighbors are counted.
        """
        neighbors = NeighborList(self.cutoff, 0.0)
        sizes = np.array([(len(atoms), neighbors.of(atoms)[0].shape[1]) for atoms in systems]).max(axis=0)
        num_graphs = self._asked[2] or 2
        self._asked = int(sizes[0]) + num_graphs - 1, max(int(sizes[1]), 1), num_graphs
        self._loader = None

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

    def _room_for(self, graphs: list[Data], sizes: np.ndarray) -> PotentialLoader:
        """Return the loader of the current shape, which is first chosen, or enlarged for a large system, if needed."""
        most, total = sizes.max(axis=0), sizes.sum(axis=0)
        num_nodes, num_edges, num_graphs = self.sizes
        if self._loader is None:
            num_graphs = self._asked[2] or len(graphs) + 1
            num_nodes = self._asked[0] or int(total[0] * 5 // 4) + num_graphs
            num_edges = self._asked[1] or max(int(total[1] * 5 // 4), 1)
        nodes, edges, spare = num_nodes, num_edges, num_graphs - 1
        num_nodes, num_edges = np.add(grown((nodes - spare, edges), most), (spare, 0)).tolist()
        if (num_nodes, num_edges) != (nodes, edges):
            warnings.warn(
                f"A system has {most[0]} atoms and {most[1]} edges, more than a batch of {nodes} nodes and {edges} "
                f"edges holds. It has {num_nodes} and {num_edges} from here on, and the model is compiled again; pass "
                f"num_nodes={num_nodes}, num_edges={num_edges}, or call make_room first, to avoid that.",
                stacklevel=4,
            )
        if self._loader is None or (num_nodes, num_edges) != (nodes, edges):
            self.sizes, self.num_shapes = (num_nodes, num_edges, num_graphs), self.num_shapes + 1
            slots: Any = {"num_nodes": num_nodes, "num_edges": num_edges, "batch_size": num_graphs}
            of_model: Any = {"cutoff": self.cutoff, "species": self.species, "levels": self.levels}
            self._loader = PotentialLoader(graphs, self.as_batch, **of_model, **slots)
        return self._loader


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
