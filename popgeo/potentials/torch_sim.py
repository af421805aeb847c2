"""Many systems at once in torch_sim, at one shape: a model is compiled once for a whole screening or run of dynamics.

The systems of a state are put together into batches that keep the contract of `padding.py`, as many as it takes. Only a
system that alone is larger than a batch changes the shape: it becomes half more than that system needs, for all that
follows, and a warning says so. No edge is ever dropped.
"""

import warnings
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Batch, Data

from popgeo.deploy.neighbour_list import NeighbourList
from popgeo.packing import Budget, decreasing
from popgeo.potentials.padding import PotentialLoader, with_safe_padding

try:
    from torch_sim.models.interface import ModelInterface
except ImportError as error:
    raise ImportError("popgeo.potentials.torch_sim needs torch_sim: pip install torch-sim-atomistic.") from error


class FixedSizeModel(ModelInterface):
    """Lets torch_sim run a model on many systems at once, in batches whose shape stays.

    Args:
        evaluate: Called with the framework's batch; gives `energy` [num_graphs], and `forces` [num_nodes, 3] and
            `stress` [num_graphs, 3, 3] where there are such, by name, padding included.
        as_graph: Makes a graph with the names of `padding.py` of one with `z`, `pos`, `cell`, `pbc`, `edge_index` and
            `edge_shift`, as `popgeo.convert.read_atoms` describes them.
        as_batch: Makes the framework's batch, as that framework's loader does.
        cutoff: The model's, in angstrom.
        species: One that the model knows, as `as_graph` counts them, for padding atoms.
        num_nodes: Atoms of a batch, padding included; what a quarter more than the first state needs when left out, as
            `num_edges` and `num_graphs`.
        num_edges: Edges of a batch.
        num_graphs: Systems of a batch, padding included.
        skin: Neighbours are looked for anew only where an atom has moved half of it; see `NeighbourList`.
        dtype: Of positions; the model's.
        device: The model's.
        compute_stress: Whether the model gives stress.

    Raises:
        ValueError: the cutoff is not positive; or, when a state is evaluated, what `as_graph` raises, with the number
            of the system.
    """

    def __init__(
        self,
        evaluate: Callable[[Any], Mapping[str, Tensor]],
        *,
        as_graph: Callable[[Data], Data],
        as_batch: Callable[[Batch], Any],
        cutoff: float,
        species: int,
        num_nodes: int | None = None,
        num_edges: int | None = None,
        num_graphs: int | None = None,
        skin: float = 0.5,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
        compute_stress: bool = True,
    ) -> None:
        super().__init__()
        if not cutoff > 0:
            raise ValueError(f"The cutoff is {cutoff}; it must be more than 0 angstrom.")
        self._device, self._dtype = torch.device(device), dtype
        self._compute_stress, self._compute_forces = compute_stress, True
        self.evaluate, self.as_graph, self.as_batch = evaluate, as_graph, as_batch
        self.cutoff, self.species, self.skin = cutoff, species, skin
        self._asked = (num_nodes, num_edges, num_graphs)
        self.sizes = (0, 0, 0)
        """Nodes, edges and graphs of a batch, padding included; zeros until a state has been seen."""
        self.num_shapes = 0
        """How many shapes the model has seen: one, unless a system outgrew its batch."""
        self.num_batches = 0
        self.num_real = np.zeros(2, np.int64)
        self.num_slots = np.zeros(2, np.int64)
        self._neighbours: list[NeighbourList] = []
        self._loader: PotentialLoader | None = None

    def forward(self, state: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Energies [n_systems], forces [n_atoms, 3] and stress [n_systems, 3, 3] of a state of torch_sim."""
        given = state if isinstance(state, Mapping) else vars(state)
        graphs, atoms = self._graphs(SimpleNamespace(**{name.lstrip("_"): value for name, value in given.items()}))
        sizes = np.array([(len(graph.z), graph.edge_index.shape[1]) for graph in graphs])
        loader = self._room_for(graphs, sizes)
        num_nodes, num_edges, num_graphs = self.sizes
        budget = Budget(sizes=(num_nodes - num_graphs + 1, num_edges), num_graphs=num_graphs - 1)
        found: dict[str, Tensor] = {}
        for ids in decreasing(sizes, budget):
            batch = with_safe_padding(loader.collater([graphs[i] for i in ids.tolist()]), loader.cell_length)
            nodes, structures = batch.nodes_mask, batch.graphs_mask
            self.num_batches, self.num_real = self.num_batches + 1, self.num_real + sizes[ids].sum(axis=0)
            self.num_slots += np.array([num_nodes, num_edges])
            outputs = dict(self.evaluate(self.as_batch(batch)))
            rows = {"energy": torch.from_numpy(ids), "forces": torch.cat([atoms[i] for i in ids.tolist()])}
            if self.compute_stress:
                rows["stress"], outputs["stress"] = rows["energy"], outputs["stress"].reshape(-1, 3, 3)
            for name in rows.keys() & outputs.keys():
                values = outputs[name].detach()[nodes if name == "forces" else structures]
                total = sum(map(len, atoms)) if name == "forces" else len(graphs)
                found.setdefault(name, values.new_empty(total, *values.shape[1:]))[rows[name]] = values
        return found

    def describe(self) -> str:
        """How many shapes the model has seen, and how full its batches were."""
        nodes, edges = self.num_real / np.maximum(self.num_slots, 1)
        return f"{self.num_shapes} shapes, {self.num_batches} batches; nodes {nodes:.1%}, edges {edges:.1%} full"

    def _graphs(self, state: Any) -> tuple[list[Data], list[Tensor]]:
        """Each system as the framework's graph, and which atoms of the state it has."""
        order = torch.argsort(state.system_idx, stable=True)
        atoms = list(order.split(torch.bincount(state.system_idx).tolist()))
        pbc = torch.as_tensor(state.pbc).cpu().expand(3)
        self._neighbours += [NeighbourList(self.cutoff, self.skin) for _ in range(len(atoms) - len(self._neighbours))]
        graphs = []
        for number, (rows, cell, neighbours) in enumerate(zip(atoms, state.cell.mT, self._neighbours, strict=False)):
            pos = state.positions[rows]
            edges, shifts = neighbours.of(ase_like(pos, cell, pbc))
            graph = Data(
                z=state.atomic_numbers[rows].long(),
                pos=pos.detach().to(self.dtype),
                cell=cell[None].detach().to(self.dtype),
                pbc=pbc[None],
                edge_index=torch.from_numpy(edges),
                edge_shift=torch.from_numpy(shifts).to(self.dtype),
            ).to(self.device)
            try:
                graphs.append(self.as_graph(graph))
            except ValueError as error:
                raise ValueError(f"System {number}: {error}") from error
        return graphs, atoms

    def _room_for(self, graphs: list[Data], sizes: np.ndarray) -> PotentialLoader:
        """Fixes the shape where it is not, and lets it grow where a system alone is larger."""
        most, total = sizes.max(axis=0), sizes.sum(axis=0)
        num_nodes, num_edges, num_graphs = self.sizes
        if self._loader is None:
            num_graphs = self._asked[2] or len(graphs) + 1
            num_nodes = self._asked[0] or int(total[0] * 5 // 4) + num_graphs
            num_edges = self._asked[1] or max(int(total[1] * 5 // 4), 1)
        nodes, edges = num_nodes, num_edges
        if most[0] > num_nodes - num_graphs + 1:
            num_nodes = int(most[0] * 3 // 2) + num_graphs
        if most[1] > num_edges:
            num_edges = int(most[1] * 3 // 2)
        if (num_nodes, num_edges) != (nodes, edges):
            warnings.warn(
                f"A system has {most[0]} atoms and {most[1]} edges, more than a batch of {nodes} nodes and {edges} "
                f"edges holds. It has {num_nodes} and {num_edges} from here on, and the model is compiled anew; pass "
                f"num_nodes={num_nodes}, num_edges={num_edges} to avoid that.",
                stacklevel=4,
            )
        if self._loader is None or (num_nodes, num_edges) != (nodes, edges):
            self.sizes, self.num_shapes = (num_nodes, num_edges, num_graphs), self.num_shapes + 1
            self._loader = PotentialLoader(
                graphs,
                self.as_batch,
                cutoff=self.cutoff,
                species=self.species,
                num_nodes=num_nodes,
                num_edges=num_edges,
                batch_size=num_graphs,
            )
        return self._loader


def ase_like(pos: Tensor, cell: Tensor, pbc: Tensor) -> Any:
    """What `NeighbourList` asks of atoms."""
    from ase import Atoms

    return Atoms(positions=pos.detach().cpu().numpy(), cell=cell.detach().cpu().numpy(), pbc=pbc.numpy())


def fairchem_model(model: Callable[[Any], Mapping[str, Tensor]], cutoff: float, **kwargs: Any) -> FixedSizeModel:
    """A model of fairchem, called with its batch, that gives `energy`, `forces` and `stress`.

    Args:
        model: A backbone and its heads, with `otf_graph=False`.
        cutoff: The model's.
        kwargs: `dataset` and `max_num_elements` of `fairchem.fixed_size_loader`, and what `FixedSizeModel` takes.
    """
    from popgeo.potentials import fairchem

    of_structure = {name: kwargs.pop(name) for name in ("dataset", "max_num_elements") if name in kwargs}
    return FixedSizeModel(
        model,
        as_graph=lambda graph: fairchem.structure_as_graph(graph, cutoff, **of_structure),
        as_batch=fairchem.as_atomic_data,
        cutoff=cutoff,
        species=1,
        **kwargs,
    )


def mace_model(model: Any, **kwargs: Any) -> FixedSizeModel:
    """A model of MACE, with the cutoff and the table of atomic numbers that it has itself."""
    from popgeo.potentials import mace

    numbers = model.atomic_numbers.cpu()

    def as_graph(graph: Data) -> Data:
        if unknown := sorted(set(graph.z.tolist()) - set(numbers.tolist())):
            raise ValueError(f"it has the atomic numbers {unknown}; the model knows {numbers.tolist()}.")
        # MACE's vectors run from edge_index[0] to edge_index[1].
        unit_shift = (graph.edge_shift @ torch.linalg.pinv(graph.cell[0])).round()
        moved = {"edge_index": graph.edge_index.flip(0), "unit_shift": unit_shift}
        return Data(**{**graph.to_dict(), **moved, "z": torch.searchsorted(numbers, graph.z)})

    return FixedSizeModel(
        lambda batch: model(batch.to_dict(), compute_stress=True),
        as_graph=as_graph,
        as_batch=lambda batch: mace.as_batch(batch, num_species=len(numbers)),
        cutoff=float(model.r_max),
        species=0,
        **kwargs,
    )
