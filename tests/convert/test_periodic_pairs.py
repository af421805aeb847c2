"""Claims about neighbors that are kept while atoms move."""

import itertools
import sys

import numpy as np
import pytest

from popgeo.convert.periodic_pairs import NeighborList, list_pairs

ase = pytest.importorskip("ase", reason="ase is not installed: pip install '.[atoms]' in a clone")


def copper():
    from ase.build import bulk

    return bulk("Cu", "fcc", a=3.6, cubic=True).repeat((2, 2, 1))


def as_set(edges: np.ndarray, shifts: np.ndarray) -> set[tuple[float, ...]]:
    return {(*map(int, ends), *np.round(shift, 6)) for ends, shift in zip(edges.T, shifts, strict=True)}


@pytest.mark.parametrize("pbc", [False, True, (True, False, True)])
def test_edges_of_a_walk_are_those_of_a_new_list_at_each_step(pbc):
    atoms, generator = copper(), np.random.default_rng(0)
    atoms.pbc = pbc
    kept = NeighborList(cutoff=3.0, skin=0.6)
    counts = set()
    for step in range(60):
        atoms.positions += generator.normal(0, 0.04, atoms.positions.shape)
        if step == 40:
            atoms.wrap()
        edges, shifts = kept.of(atoms)
        fresh = NeighborList(cutoff=3.0, skin=0.0)
        assert as_set(edges, shifts) == as_set(*fresh.of(atoms))
        assert (np.diff(edges[1]) >= 0).all()
        counts.add(edges.shape[1])
    assert len(counts) > 5
    assert 1 < kept.num_found < 20


@pytest.mark.parametrize("library", ["vesin", "trees"])
@pytest.mark.parametrize("far", [0.0, 500.0])
def test_the_order_of_edges_and_the_bits_of_shifts_do_not_depend_on_earlier_positions(monkeypatch, library, far):
    if library == "trees":
        monkeypatch.setitem(sys.modules, "vesin", None)
    for seed in range(12):
        atoms, generator = copper()[: 2 + 2 * (seed % 2)], np.random.default_rng(seed)
        atoms.set_cell(generator.normal(0, 0.3, (3, 3)) + 3.6 * np.eye(3))  # many images of each pair are near
        atoms.pbc, atoms.positions[:] = True, generator.uniform(0, 3, atoms.positions.shape) + far
        kept = NeighborList(cutoff=5.0, skin=1.0)
        for _ in range(5):
            atoms.positions += generator.uniform(-0.1, 0.1, atoms.positions.shape)
            for mine, new in zip(kept.near_origin(atoms), NeighborList(5.0, 0.3).near_origin(atoms), strict=True):
                assert mine.tobytes() == new.tobytes()
        assert kept.num_found < 5


def test_a_list_serves_until_an_atom_has_moved_half_of_the_skin():
    atoms, kept = copper(), NeighborList(cutoff=3.0, skin=0.6)
    kept.of(atoms)
    atoms.positions[3, 0] += 0.299
    kept.of(atoms)
    assert kept.num_found == 1
    atoms.positions[3, 0] += 0.002
    kept.of(atoms)
    assert kept.num_found == 2


def test_another_cell_other_boundaries_or_other_atoms_make_a_new_list():
    atoms, kept = copper(), NeighborList(cutoff=3.0, skin=0.6)
    for change in (
        lambda: atoms.set_cell(atoms.cell * 1.001),
        lambda: atoms.set_pbc((True, True, False)),
        lambda: atoms.pop(),
        lambda: atoms.positions.fill(np.nan),
    ):
        kept.of(atoms)
        found = kept.num_found
        change()
        if not np.isnan(atoms.positions).any():
            kept.of(atoms)
            assert kept.num_found == found + 1
    assert not kept._still_serves(atoms)


def test_a_cell_that_repeats_without_a_vector_is_refused_with_vesin_and_without(monkeypatch):
    atoms, found = copper(), []
    atoms.pbc = True, False, True
    for _ in range(2):
        found.append(as_set(*NeighborList(cutoff=3.0, skin=0.6).of(atoms)))
        for vector in (2 * atoms.cell[0], np.zeros(3)):
            flat = copper()
            flat.set_cell([*flat.cell[:2], vector])
            with pytest.raises(ValueError, match="The cell repeats along"):
                NeighborList(cutoff=3.0, skin=0.6).of(flat)
        monkeypatch.setitem(sys.modules, "vesin", None)
    assert found[0] == found[1]


def test_a_negative_skin_is_refused():
    with pytest.raises(ValueError, match="The skin is -1"):
        NeighborList(cutoff=3.0, skin=-1)


@pytest.mark.parametrize("where", [np.nan, np.inf, 1e20])
def test_atoms_that_have_flown_away_are_refused_before_a_library_is_asked(where):
    atoms = copper()
    atoms.positions[3, 1] = where
    with pytest.raises(ValueError, match="dynamics, it has blown up"):
        NeighborList(cutoff=3.0, skin=0.6).of(atoms)


@pytest.mark.parametrize("vesin", [True, False])
@pytest.mark.parametrize("pbc", [(1, 1, 0), (0, 1, 1), (0, 0, 1), (1, 0, 0), (1, 1, 1), (0, 0, 0)])
@pytest.mark.parametrize("kind", ["zero", "turned and zero", "short", "parallel"])
def test_sheets_and_wires_have_all_pairs_whatever_the_vectors_that_do_not_repeat(monkeypatch, kind, pbc, vesin):
    if not vesin:
        monkeypatch.setitem(sys.modules, "vesin", None)
    random, pbc = np.random.default_rng(0), np.array(pbc, bool)
    cell = np.diag([3.0, 4.0, 3.5]) + random.normal(0, 0.4, (3, 3))
    if kind == "turned and zero":
        cell = cell @ np.linalg.qr(random.normal(size=(3, 3)))[0]
    if kind == "parallel" and pbc.any():
        cell[~pbc] = cell[pbc][0]
    cell[~pbc] *= {"short": 0.1, "parallel": 1.0}.get(kind, 0.0)
    pos = random.uniform(-6, 6, (9, 3))
    expected = []
    for steps in itertools.product(*[range(-6, 7) if repeats else [0] for repeats in pbc]):
        apart = np.linalg.norm(pos[None] + np.array(steps) @ cell - pos[:, None], axis=2)
        near = (apart < 4.0) & ~(np.eye(9, dtype=bool) & (not any(steps)))
        expected += [(j, i, length) for (i, j), length in zip(np.argwhere(near), apart[near], strict=True)]
    edges, shift = list_pairs(pos, cell, pbc, 4.0)
    lengths = np.linalg.norm(pos[edges[0]] + shift.numpy() - pos[edges[1]], axis=1)
    found = np.array(sorted(zip(*edges.tolist(), lengths, strict=True)))
    np.testing.assert_allclose(found, np.array(sorted(expected)), atol=1e-6)
