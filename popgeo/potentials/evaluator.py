"""Any framework's potential on systems of any size, at one shape: for dynamics and screening that compile once.

Systems are put together into batches that keep the contract of `padding.py`, the same number as it takes. Only a
system that alone is larger than a batch changes the shape: it becomes half more than that system needs, for all that
follows, and a warning says so. No edge is ever dropped. Each framework's file has an `evaluator(model)`; with

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

from popgeo.convert.periodic_pairs import NeighborList, require_elements
from popgeo.deploy.ase_calculator import STATES
from popgeo.deploy.ase_calculator import SystemsCalculator as SystemsCalculator
from popgeo.packing import Budget, decreasing
from popgeo.packing.sizes import grown
from popgeo.potentials.padding import PotentialLoader, with_safe_padding


class Evaluator:
    """Energy, forces and stress of systems, by a model that sees batches of one shape.

    Args:
        evaluate: Called with the framework's batch; gives `energy` [num_graphs], and `forces` [num_nodes, 3] and
            `stress` [num_graphs, 3, 3] if there are such, by name, padding included.
        as_graph: Makes a graph with the names of `padding.py` of one with `z`, `pos`, `cell`, `pbc`, `edge_index` and
            `edge_shift`, as `popgeo.convert.read_atoms` describes them.
        as_batch: Makes the framework's batch, as that framework's loader does.
        cutoff: The model's, in angstrom.
        species: One that the model knows, as `as_graph` counts them, for padding atoms.
        levels: What the rows of further attributes belong to: "node", "edge" or "graph". With `charge` and `spin` among
            them, these are taken from `atoms.info`, as fairchem does.
        num_nodes: Atoms of a batch, padding included; what a quarter more than the first systems need when left out, as
            `num_edges` and `num_graphs`.
        num_edges: Edges of a batch.
        num_graphs: Systems of a batch, padding included.
        skin: Neighbors are looked for again only where an atom has moved half of it; see `NeighborList`.
        dtype: Of positions; the model's.
        device: The model's.
        energy_unit: The model's, in eV; its lengths are in angstrom.

    Raises:
        ValueError: the cutoff is not positive; or, when systems are evaluated, with the number of the system, that it
            has no atoms, or what `NeighborList` and `as_graph` raise.
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
        num_nodes: int | None = None,
        num_edges: int | None = None,
        num_graphs: int | None = None,
        skin: float = 0.5,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
        energy_unit: float = 1.0,
    ) -> None:
        if not cutoff > 0:
            raise ValueError(f"The cutoff is {cutoff}; it must be more than 0 angstrom.")
        self.evaluate, self.as_graph, self.as_batch, self.energy_unit = evaluate, as_graph, as_batch, energy_unit
        self.cutoff, self.species, self.levels, self.skin = cutoff, species, levels, skin
        self.dtype, self.device = dtype, torch.device(device)
        self._asked = (num_nodes, num_edges, num_graphs)
        self.sizes = (0, 0, 0)
        """Nodes, edges and graphs of a batch, padding included; zeros until a system has been seen."""
        self.num_shapes = 0
        """How many shapes the model has seen: one, unless a system outgrew its batch."""
        self.num_batches = 0
        self.num_real = np.zeros(2, np.int64)
        self.num_slots = np.zeros(2, np.int64)
        self._neighbors: list[NeighborList] = []
        self._loader: PotentialLoader | None = None

    def __call__(self, systems: Sequence[Any]) -> dict[str, Tensor]:
        """Energies [n], forces of all atoms [.., 3] and stress [n, 3, 3] of `ase.Atoms`, as far as the model has them.

        In eV and angstrom.
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
        """Fixes the shape at what the largest of these needs, before a screening one by one.

        Args:
            systems: `ase.Atoms`; only their neighbors are counted.
        """
        neighbors = NeighborList(self.cutoff, 0.0)
        sizes = np.array([(len(atoms), neighbors.of(atoms)[0].shape[1]) for atoms in systems]).max(axis=0)
        num_graphs = self._asked[2] or 2
        self._asked = int(sizes[0]) + num_graphs - 1, max(int(sizes[1]), 1), num_graphs
        self._loader = None

    def describe(self) -> str:
        """How many shapes the model has seen, and how full its batches were."""
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
        """Fixes the shape if it is not, and lets it grow where a system alone is larger."""
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
    """The other direction of edges, which most frameworks have, and how many cells each crosses."""
    steps = torch.linalg.pinv(graph.cell[0])
    turned = {"edge_index": graph.edge_index.flip(0), "unit_shift": (graph.edge_shift @ steps).round()}
    return Data(**{**graph.to_dict(), **turned})


def places_in(numbers: Tensor, z: Tensor) -> Tensor:
    """Where each atomic number is in a model's table.

    Raises:
        ValueError: one is not in it.
    """
    require_elements(z.numpy(), numbers.tolist())
    return (z[:, None] == numbers).int().argmax(dim=1)
