"""Checks that find structures with missing edges or unknown species, and batches from a different loader."""

from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from popgeo.convert.periodic_pairs import list_pairs
from popgeo.potentials.padding import Structures


def check_edges(structures: Any, cutoff: float, num_checked: int = 16) -> None:
    """Check that the edges of some structures reach the model's cutoff.

    Args:
        structures: Graphs with the names of `padding.py`.
        cutoff: The model's cutoff.
        num_checked: Least number of structures to check, spread over the dataset, since the first are often single
            atoms.

    Raises:
        ValueError: a structure has fewer edges than pairs of atoms within the cutoff, or is periodic without a cell.
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
                f"{cutoff:g}: its edges were listed with a shorter cutoff. List them with the model's."
            )
        return graph

    checked = Structures(structures, check)
    for number in range(0, len(structures), max(1, len(structures) // num_checked)):
        checked[number]


def require_names(batch: Mapping[str, Any], names: Iterable[str], framework: str) -> None:
    """Check that a batch is from the right loader, before a model accesses a missing attribute.

    Args:
        batch: Argument of a step.
        names: Names that batches of the loader have.
        framework: Name of the loader's file.

    Raises:
        ValueError: a name is missing.
    """
    if absent := [name for name in names if name not in batch]:
        raise ValueError(f"The batch lacks {absent}. Take it from popgeo.potentials.{framework}.fixed_size_loader.")


def require_same_fields(found: Set[str], names: Set[str]) -> None:
    """Check that a structure has the same fields as the first structure, because a batch needs every field of each.

    Raises:
        ValueError: the structure has more fields, or fewer.
    """
    if found != names:
        raise ValueError(
            f"it has the fields {sorted(found - names)} that structure 0 lacks, and lacks {sorted(names - found)}. "
            f"Give all structures the same, with NaN if there is no value, and a cell to all."
        )


def three_vectors(cell: Tensor) -> Tensor:
    """Return a cell as [1, 3, 3].

    Raises:
        ValueError: the cell has a different size, such as a single length.
    """
    if cell.numel() != 9:
        raise ValueError(f"its cell has the shape {[*cell.shape]}, not [1, 3, 3]. Give three vectors: torch.diag(...).")
    return cell.reshape(1, 3, 3)


def call_model(
    function: Callable[[Any], Any], batch: Mapping[str, Tensor], *, model: nn.Module, species: str, owner: str
) -> Any:
    """Call a model. If it raises an IndexError, raise an error that names the structure with an unknown species.

    Args:
        function: Calls the model with a batch.
        batch: The batch.
        model: The model.
        species: Name of the field with the species of atoms, as the model counts them.
        owner: Name of the field with the structure of each atom.

    Raises:
        ValueError: the model raised an IndexError, and a species has no row in one of its tables.
    """
    try:
        return function(batch)
    except IndexError as error:
        given = batch[species].flatten()
        known = min((len(one.weight) for one in model.modules() if isinstance(one, nn.Embedding)), default=1 << 30)
        beyond = ((given < 0) | (given >= known)).nonzero().flatten().tolist()
        if not beyond:
            raise
        raise ValueError(
            f"Structure {int(batch[owner][beyond[0]])} of the batch has the species {int(given[beyond[0]])}; the "
            f"model knows 0 to {known - 1}. Leave the structure out, or make the model with more species."
        ) from error
