"""Systems of any size at one shape have the results of a system alone; the shape grows with a warning."""

import warnings

import numpy as np
import pytest
import torch

from popgeo.potentials.evaluator import Evaluator, SystemsCalculator
from tests.support.springs import as_graph, evaluator_of

ase = pytest.importorskip("ase")
from ase.build import bulk, molecule  # noqa: E402


def systems(count):
    made = []
    for number in range(count):
        made.append(bulk(["Cu", "Al", "Au"][number % 3], cubic=bool(number % 2)))
        made[-1].rattle(0.05, seed=number)
    return made


def test_each_system_of_a_screening_is_as_it_is_alone_and_one_shape_serves_all():
    evaluator = evaluator_of(num_nodes=24, num_edges=700, num_graphs=5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        all_at_once = evaluator(systems(11))
    alone = [evaluator_of()([atoms]) for atoms in systems(11)]
    for name, found in all_at_once.items():
        torch.testing.assert_close(found, torch.cat([one[name] for one in alone]), rtol=1e-12, atol=1e-12)
    assert (evaluator.num_shapes, len(evaluator.evaluate.shapes)) == (1, 1)
    assert evaluator.num_batches >= 3
    assert "1 shapes" in evaluator.describe()


def test_capacity_grows_once_with_a_warning_and_drops_no_edge():
    evaluator = evaluator_of(num_nodes=10, num_edges=60, num_graphs=3)
    evaluator([bulk("Cu")])
    with pytest.warns(UserWarning, match=r"A structure has 4 atoms and \d+ edges, but the largest shape has 8 and 60"):
        energy = evaluator([bulk("Cu"), bulk("Cu", cubic=True)])["energy"]
    torch.testing.assert_close(energy[1], 4 * energy[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number in range(5):
            evaluator(systems(5)[number:])
    assert len(evaluator.evaluate.shapes) == evaluator.num_shapes == 2


def test_one_atom_without_neighbors_and_molecules_without_a_cell():
    evaluator = evaluator_of(num_nodes=12, num_edges=40, num_graphs=4)
    lone = evaluator([ase.Atoms("Au", cell=[9] * 3, pbc=True)])
    assert lone["energy"].tolist() == pytest.approx([7.9])
    assert lone["forces"].tolist() == [[0, 0, 0]]
    assert evaluator([molecule("H2O")] * 2)["energy"].unique().numel() == 1


def test_a_system_without_atoms_or_a_vector_where_it_repeats_is_refused_by_its_number():
    for bad, words in (
        (ase.Atoms("Cu2", [[0, 0, 0], [0, 0, 2]], pbc=True), r"The cell repeats along \[True, True, True\] but its"),
        (ase.Atoms("Cu", cell=[[2, 0, 0], [4, 0, 0], [0, 0, 9]], pbc=True), "The cell repeats along"),
        (ase.Atoms(), "it has no atoms"),
    ):
        with pytest.raises(ValueError, match=f"System 1: {words}"):
            evaluator_of()([bulk("Cu"), bad])


def test_what_a_model_cannot_take_names_the_system():
    def refuse(graph):
        if 79 in graph.z:
            raise ValueError("it has gold.")
        return as_graph(graph)

    with pytest.raises(ValueError, match="System 2: it has gold"):
        evaluator_of(as_graph=refuse)(systems(3))
    with pytest.raises(ValueError, match="cutoff is 0"):
        Evaluator(None, as_graph=as_graph, as_batch=as_graph, cutoff=0, species=1)


def test_ase_screens_crystals_and_molecules_in_two_shapes_once_room_is_made():
    structures = [*systems(4), molecule("H2O"), ase.Atoms("Au"), *systems(3)]
    evaluator = evaluator_of(energy_unit=0.5)
    evaluator.make_room(structures)
    calculator = SystemsCalculator(evaluator)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for atoms in structures:
            atoms.calc, expected = calculator, evaluator_of()([atoms])
            assert atoms.get_potential_energy() == pytest.approx(float(expected["energy"]) / 2, rel=1e-12)
            np.testing.assert_allclose(atoms.get_forces(), expected["forces"] / 2, rtol=1e-11, atol=1e-13)
            assert ("stress" in calculator.results) == (atoms.cell.rank == 3)
    assert len(evaluator.evaluate.shapes) == evaluator.num_shapes == 2


@pytest.mark.filterwarnings("ignore:A structure has")
@pytest.mark.parametrize(("is_announced", "num_graphs"), [(False, None), (True, None), (True, 6)])
def test_results_of_a_campaign_have_the_bits_of_a_system_alone(is_announced: bool, num_graphs):
    evaluator = evaluator_of(num_graphs=num_graphs)
    order = [
        *systems(3),
        bulk("Cu").repeat((5, 2, 2)),
        molecule("H2O"),
        ase.Atoms("Au"),
        *systems(3),
        bulk("Al", a=3.1),
    ]
    if is_announced:
        evaluator.make_room(order)
    for some in [*([atoms] for atoms in order), order]:  # one by one, then all at once
        found, alone = evaluator(some), [evaluator_of()([atoms]) for atoms in some]
        for name, value in found.items():
            expected = torch.cat([one[name] for one in alone])
            torch.testing.assert_close(value, expected, rtol=0, atol=0, equal_nan=True)  # a molecule has no stress
    if is_announced:
        assert evaluator.num_shapes == len(evaluator.evaluate.shapes) == 2


def test_small_systems_fill_the_batch_of_a_large_shape():
    crystals = [*systems(12)[1::2], bulk("Cu").repeat((6, 2, 2))]
    evaluator = evaluator_of(num_graphs=9)
    evaluator.make_room(crystals)
    evaluator(crystals)
    assert evaluator.num_batches == 2
    assert evaluator.num_real[1] > 0.7 * evaluator.num_slots[1]


def test_sizes_that_were_asked_for_are_the_first_of_the_two_shapes():
    evaluator = evaluator_of(num_nodes=12, num_edges=260, num_graphs=3)
    evaluator.make_room([*systems(4), bulk("Cu").repeat((3, 3, 3))])
    evaluator([*systems(4), bulk("Cu").repeat((3, 3, 3))])
    assert (evaluator.num_shapes, evaluator.num_graphs) == (2, 3)
    assert min(evaluator.evaluate.shapes)[0] == (12, 3)


def test_forces_and_stress_of_ases_calculator_are_the_slopes_of_its_energy():
    from ase.calculators.fd import calculate_numerical_forces, calculate_numerical_stress

    atoms = systems(2)[1]
    atoms.calc = SystemsCalculator(evaluator_of())
    np.testing.assert_allclose(atoms.get_forces(), calculate_numerical_forces(atoms, eps=1e-5), atol=1e-6)
    np.testing.assert_allclose(atoms.get_stress(), calculate_numerical_stress(atoms, eps=1e-5), atol=1e-6)


@pytest.mark.parametrize(("first", "second"), [({"charge": 0}, {"charge": 1}), ({}, {"spin": 3}), ({"charge": 2}, {})])
def test_charge_and_spin_reach_a_model_that_takes_them_and_a_change_is_noticed(first, second):
    def with_states(graph):
        for name in ("charge", "spin"):
            graph[name] = graph[name] if name in graph else torch.zeros(1, dtype=torch.int64)
        return as_graph(graph)

    evaluator = evaluator_of(as_graph=with_states, levels={"charge": "graph", "spin": "graph"})
    springs = evaluator.evaluate
    evaluator.evaluate = lambda batch: {
        **(found := springs(batch)),
        "energy": found["energy"] + 10 * batch.charge + 100 * batch.spin,
    }
    one, other = (molecule("H2O", info=info) for info in (first, second))
    neutral = float(evaluator_of()([molecule("H2O")])["energy"])
    wanted = [10 * info.get("charge", 0) + 100 * info.get("spin", 0) for info in (first, second)]
    assert (evaluator([one, other])["energy"] - neutral).tolist() == pytest.approx(wanted)
    one.calc = SystemsCalculator(evaluator)
    found = [one.get_potential_energy() - neutral]
    one.info.clear()
    one.info.update(second)
    assert [*found, one.get_potential_energy() - neutral] == pytest.approx(wanted)
    assert float(evaluator_of()([other])["energy"]) == neutral  # a model without them takes no notice, as elsewhere
