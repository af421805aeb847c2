"""What is refused before a model sees it: edges listed with a shorter cutoff, and the batches of another loader."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch_geometric.data import Data

from popgeo.convert.atoms import list_pairs
from popgeo.potentials.padding import Structures


def check_edges(structures: Any, cutoff: float, num_checked: int = 16) -> None:
    """Looks whether the edges of some structures reach as far as a model does, as one may be made for longer ones.

    Args:
        structures: Graphs with the names of this page.
        cutoff: That of the model.
        num_checked: How many of them at least, from first to last: datasets often begin with single atoms.

    Raises:
        ValueError: a structure has fewer edges than pairs of atoms within the cutoff, or no cell where it repeats.
    """

    def check(graph: Data) -> Data:
        cell = graph.cell[0].double() if "cell" in graph else torch.zeros(3, 3).double()
        pbc = graph.pbc.flatten() if "pbc" in graph else cell.any(dim=1)
        pos, vectors, repeats = (one.cpu().numpy() for one in (graph.pos.double(), cell, pbc))
        # An edge as long as the cutoff may be left out.
        found = list_pairs(pos, vectors, repeats, cutoff * (1 - 1e-4))[0].shape[1]
        if found > graph.edge_index.shape[1]:
            raise ValueError(
                f"it has {graph.edge_index.shape[1]} edges, but {found} pairs of its atoms lie within the cutoff of "
                f"{cutoff:g}: its edges were listed with a shorter one. List them with the model's."
            )
        return graph

    checked = Structures(structures, check)
    for number in range(0, len(structures), max(1, len(structures) // num_checked)):
        checked[number]


def require_names(batch: Mapping[str, Any], names: Iterable[str], framework: str) -> None:
    """Refuses the batch of another loader, before a model looks in vain for what it has not.

    Args:
        batch: Given to a step.
        names: What the loader's batches have, among others.
        framework: The name of the loader's file.

    Raises:
        ValueError: a name is missing.
    """
    if absent := [name for name in names if name not in batch]:
        raise ValueError(
            f"The batch has {sorted(batch)[:8]} and lacks {absent}, so it is of another loader. Take it from "
            f"popgeo.potentials.{framework}.fixed_size_loader."
        )
