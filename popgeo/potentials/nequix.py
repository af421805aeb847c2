"""Fixed-shape batches for nequix, a potential in JAX: tuples of graphs as NumPy arrays, without jraph.

    nodes     species, positions, forces       edges     shifts, in cells
    globals   cell, energy, stress             senders, receivers, n_node, n_edge as of jraph

Padding is that of `jraph.pad_with_graphs`, which jraph's functions recognize: the first padding graph has all padding
atoms and edges, later ones are empty. nequix counts neither in its losses, and an edge of length 0 does no harm.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch_geometric.data import Data
from typing_extensions import Unpack

from popgeo.data.bridges import GraphsTuple, to_graphs_tuple
from popgeo.loader.data_loader import FixedSizeDataLoader
from popgeo.loader.run import EpochPlan, Run
from popgeo.nn.atom_targets import voigt_to_matrix
from popgeo.potentials.evaluator import places_in
from popgeo.potentials.padding import PotentialArguments, Structures

_LEVELS = {"species": "node", "positions": "node", "forces": "node", "shifts": "edge"}
_LEVELS |= {"cell": "graph", "energy": "graph", "stress": "graph"}


class GraphsTupleLoader(FixedSizeDataLoader):
    """A `FixedSizeDataLoader` that yields each batch as a tuple of graphs with the attributes that nequix reads."""

    def _batches(self, run: Run, plan: EpochPlan) -> Iterator[GraphsTuple]:
        for batch in super()._batches(run, plan):
            graphs = to_graphs_tuple(batch, _LEVELS)
            of_levels = {name: getattr(graphs, name) for name in ("nodes", "edges", "globals")}
            known: Any = {name: {k: v for k, v in part.items() if k in _LEVELS} for name, part in of_levels.items()}
            yield graphs._replace(**known)


def fixed_size_loader(
    items: Any, atomic_numbers: Sequence[int], **kwargs: Unpack[PotentialArguments]
) -> GraphsTupleLoader:
    """Return a loader that yields nequix's batches, all with one shape, so that `jax.jit` traces a step once.

    Args:
        items: Structures of `popgeo.convert.read_atoms`, with a cutoff. A list is kept in memory.
        atomic_numbers: The model's atomic numbers. Its species are their places in ascending order.
        kwargs: `num_nodes`, `num_edges`, `batch_size`, `shuffle` and others; see `FixedSizeDataLoader`.
            `fixed_size_strategy` is `"Window"` by default.

    Raises:
        ValueError: a structure has an atom that the model does not know, no listed edges, or a stress but not three
            periodic directions; the message has its number. Or `FixedSizeDataLoader` raises.
    """
    table = torch.tensor(sorted(atomic_numbers))
    graphs = Structures(items, lambda item: as_graph(item, table)).in_memory()
    choices: Any = {"index_dtype": torch.int32, "output": "numpy", "levels": _LEVELS, "fixed_size_strategy": "Window"}
    return GraphsTupleLoader(graphs, **choices | kwargs)


def as_graph(item: Any, table: torch.Tensor) -> Data:
    """Convert one structure to a graph with nequix's attribute names.

    Args:
        item: Structure with `z`, `pos`, `cell`, `pbc`, `edge_index`, `edge_shift`, and labels.
        table: The model's atomic numbers, sorted.

    Raises:
        ValueError: see `fixed_size_loader`.
    """
    if item.edge_index is None or "edge_shift" not in item:
        raise ValueError("it has no edges; list them with read_atoms(..., cutoff=...) or popgeo convert --cutoff.")
    if "stress" in item and not item.pbc.all():
        raise ValueError("it has a stress but is not periodic in all directions. Leave stress out of all structures.")
    species = places_in(table, item.z).int()
    shifts = (item.edge_shift.double() @ torch.linalg.pinv(item.cell[0].double())).round().to(item.pos.dtype)
    graph = Data(edge_index=item.edge_index, species=species, positions=item.pos, cell=item.cell, shifts=shifts)
    graph.num_nodes = len(item.z)
    for name in ("energy", "forces"):
        if name in item:
            graph[name] = item[name]
    if "stress" in item:
        graph.stress = voigt_to_matrix(item.stress)
    return graph
