"""Atoms that are far apart are listed, or refused with the likely reason, in bounded time; nothing ends the process."""

import numpy as np
import pytest

from popgeo.convert.periodic_pairs import list_pairs

NONE = np.zeros(3, bool)


@pytest.mark.parametrize("far", [500.0, 2_000.0, 9_000.0, 2e4, 5e5])
def test_a_few_atoms_far_away_have_the_pairs_of_the_others(far):
    pos = np.array([[0.0, 0, 0], [0, 0, 1], [0, 0, far], [0, far, far]])
    edges, shift = list_pairs(pos, np.zeros((3, 3)), NONE, 5.0)
    assert edges.tolist() == [[1, 0], [0, 1]]
    assert not shift.any()


def test_a_slab_with_an_atom_far_out_and_a_needle_of_a_cell_are_refused():
    cell, flat = np.diag([4.0, 4.0, 1.0]), np.array([True, True, False])
    with pytest.raises(ValueError, match=r"too far for a cutoff of 5\.0 angstrom.*it has blown up"):
        list_pairs(np.array([[0.0, 0, 0], [0, 0, 1e5]]), cell, flat, 5.0)
    with pytest.raises(ValueError, match="too far for a cutoff"):
        list_pairs(np.zeros((1, 3)), np.diag([1e5, 4.0, 4.0]), np.ones(3, bool), 5.0)
