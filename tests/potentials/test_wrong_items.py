"""All frameworks' loaders refuse edges of a shorter cutoff, and batches of another loader."""

import pytest
import torch
from torch_geometric.data import Data

from popgeo.potentials.wrong_items import check_edges, require_names

CUTOFF, NO_EDGES = 3.0, torch.empty(2, 0, dtype=torch.long)


def test_edges_that_are_too_short_are_found_behind_single_atoms_and_a_cell_that_is_not_there_is_said() -> None:
    lone = Data(pos=torch.zeros(1, 3), edge_index=NO_EDGES)
    pair = Data(pos=torch.tensor([[0.0, 0, 0], [0, 0, 2]]), edge_index=NO_EDGES)
    with pytest.raises(ValueError, match="Structure 9: it has 0 edges, but 2 pairs of its atoms lie within the cutoff"):
        check_edges([lone] * 9 + [pair] * 9, CUTOFF)
    pair.update({"pbc": torch.tensor([[True, True, False]]), "cell": torch.diag(torch.tensor([3.0, 0, 0]))[None]})
    with pytest.raises(ValueError, match=r"Structure 1: The cell repeats along \[True, True, False\] but its"):
        check_edges([lone, pair], CUTOFF)


def test_a_batch_of_another_loader_is_refused_with_what_it_has_and_where_its_own_come_from() -> None:
    with pytest.raises(ValueError, match=r"The batch lacks \['positions'\].*potentials.mace.fixed"):
        require_names({"pos": 0}, ["positions"], "mace")
