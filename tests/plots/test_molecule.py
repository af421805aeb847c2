"""Pictures of molecules show each atom and bond once, from the broad side, and no padding."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from popgeo import plots

WATER = ([8, 1, 1], [[0.0, 0, 0], [0.76, 0.59, 0], [-0.76, 0.59, 0]])


def letters(ax):
    return sorted(text.get_text() for text in ax.texts)


def centres(ax):
    return np.array([text.get_position() for text in ax.texts if text.get_text() != "1 Å"])


def test_padding_atoms_are_not_drawn_and_change_nothing():
    z, pos = WATER
    padded = plots.molecule([*z, 0, 0], [*pos, [9, 9, 9], [0, 0, 0]])
    assert letters(padded) == letters(plots.molecule(z, pos)) == ["1 Å", "H", "H", "O"]
    assert_allclose(centres(padded), centres(plots.molecule(z, pos)), atol=1e-9)


def test_a_picture_is_no_longer_than_the_molecule_and_nearly_as_long():
    line = plots.molecule([6, 6], [[0, 0, -3], [0, 0, 3]])  # along z, hidden in a fixed view from above
    (a, b), length = centres(line), 6.0
    assert 0.9 * length < np.hypot(*(a - b)) <= length


def test_a_turned_molecule_gives_the_same_distances_on_paper():
    z, pos = WATER[0], np.array(WATER[1]) + np.array([0.1, -0.2, 0.3])
    turned = pos[:, [2, 0, 1]]  # a rotation that permutes the axes
    paper = [centres(plots.molecule(z, p)) for p in (pos, turned)]
    lengths = [np.hypot(*(p[:, None] - p[None]).transpose(2, 0, 1)) for p in paper]
    assert_allclose(*lengths, atol=1e-6)


def test_bonds_have_as_many_lines_as_their_order_and_loops_have_none():
    chain, edges = [[1.5 * i, 0, 0] for i in range(4)], [[0, 1, 1, 2, 2, 3, 3], [1, 0, 2, 1, 3, 2, 3]]
    kinds = np.eye(4)[[0, 0, 1, 1, 2, 2, 0]]  # single, double, triple, each in both directions; and a loop
    scale_bar = 1
    assert len(plots.molecule([6] * 4, chain, edges, kinds).lines) == 1 + 2 + 3 + scale_bar


def test_an_edge_in_one_direction_is_drawn_as_one_in_both_is():
    z, pos = WATER
    both, one = plots.molecule(z, pos, [[0, 1], [1, 0]]), plots.molecule(z, pos, [[1], [0]])
    scale_bar = 1
    assert len(both.lines) == len(one.lines) == 1 + scale_bar


def test_positions_of_another_number_of_atoms_are_refused():
    with pytest.raises(ValueError, match=r"z has shape \(2,\), pos \(1, 3\)"):
        plots.molecule([6, 6], [[0, 0, 0]])
