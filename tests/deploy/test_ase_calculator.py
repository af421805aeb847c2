"""Claims about a model as a calculator of ASE."""

import copy
import pickle
import sys
from itertools import permutations

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from popgeo.convert.periodic_pairs import list_pairs
from popgeo.deploy import Calculator
from popgeo.deploy.ase_calculator import Potential, SystemsCalculator
from popgeo.ipu import inference_model
from popgeo.nn import PaiNN, RadiusInteractionGraph, SchNet, energy_and_forces

ase = pytest.importorskip("ase", reason="ase is not installed: pip install '.[atoms]' in a clone")


@pytest.fixture
def model() -> SchNet:
    torch.manual_seed(0)
    return SchNet(8, 8, num_interactions=2, num_gaussians=8, cutoff=3.0).double()


def ethanol():
    from ase.build import molecule

    return molecule("CH3CH2OH")


def copper():
    """Return four displaced atoms in a cell hardly longer than the cutoff."""
    from ase.build import bulk

    cell = bulk("Cu", "fcc", a=3.4, cubic=True)
    cell.rattle(0.1, seed=1)
    return cell


class Compile:
    """A compiler that counts compiled modules and records the shapes of every call."""

    def __init__(self) -> None:
        self.num_compiled, self.shapes = 0, set()

    def __call__(self, potential: Potential):
        self.num_compiled += 1
        compiled = inference_model(potential)

        def run(*tensors):
            self.shapes.add(tuple(tensor.shape for tensor in tensors))
            return compiled(*tensors)

        return run


@pytest.mark.parametrize("num_edges", [None, 500])
def test_a_molecule_has_the_energy_and_forces_of_the_model(model: SchNet, num_edges: int | None):
    atoms = ethanol()
    z, pos = torch.tensor(atoms.numbers), torch.tensor(atoms.positions)
    pairs = [(j, i) for i, j in permutations(range(len(z)), 2) if atoms.get_distance(i, j) < 3.0]
    energy, forces = energy_and_forces(model.eval(), z, pos, None, torch.tensor(pairs).T, num_graphs=1)
    atoms.calc = Calculator(model, num_edges=num_edges)
    assert_close(atoms.get_potential_energy(), float(energy.detach()))
    assert_close(torch.from_numpy(atoms.get_forces()), forces)
    assert "stress" not in atoms.calc.results


@pytest.mark.parametrize("pbc", [True, (True, True, False)], ids=["bulk", "slab"])
def test_forces_and_stress_in_a_cell_are_the_slopes_of_the_energy(model: SchNet, pbc):
    from ase.calculators.fd import calculate_numerical_forces, calculate_numerical_stress

    atoms = copper()
    atoms.pbc = pbc
    atoms.calc = Calculator(model)
    assert_close(atoms.get_forces(), calculate_numerical_forces(atoms, eps=1e-5), rtol=1e-4, atol=1e-7)
    assert_close(atoms.get_stress(), calculate_numerical_stress(atoms, eps=1e-5), rtol=1e-4, atol=1e-7)
    assert np.abs(atoms.get_stress()).max() > 1e-4


def test_a_run_of_molecular_dynamics_compiles_once_while_edges_come_and_go(model: SchNet):
    from ase.md.verlet import VelocityVerlet
    from ase.units import fs

    atoms, counted, found = copper().repeat((2, 1, 1)), Compile(), set()
    atoms.calc = Calculator(model, compile=counted, num_edges=160)
    atoms.set_momenta(np.random.default_rng(0).normal(0, 8, (8, 3)))
    before = atoms.get_total_energy()
    dynamics = VelocityVerlet(atoms, 2 * fs)
    dynamics.attach(lambda: found.add(np.count_nonzero(atoms.get_all_distances(mic=True) < 3.0)))
    dynamics.run(40)
    assert len(found) > 1
    assert counted.num_compiled == atoms.calc.num_compilations == 1
    assert len(counted.shapes) == 1
    assert abs(atoms.get_total_energy() - before) < 0.01 * atoms.get_kinetic_energy()


def test_edges_that_outgrow_their_slots_are_told_of_and_still_right(model: SchNet):
    atoms, counted = ethanol(), Compile()
    expected = atoms.copy()
    expected.calc = Calculator(model)
    atoms.calc = Calculator(model, num_edges=10, compile=counted)
    with pytest.warns(UserWarning, match=r"9 atoms and \d+ edges, but the largest shape has 9 and 10"):
        assert_close(atoms.get_forces(), expected.get_forces())
    assert atoms.calc.num_edges > 10
    assert counted.num_compiled == 1


def test_a_screening_of_crystals_and_molecules_compiles_once_for_both(model: SchNet):
    from ase.build import molecule

    structures = [copper(), ethanol(), molecule("H2O"), copper()[:2], molecule("CH4"), copper()] * 2
    counted = Compile()
    calculator = Calculator(model, compile=counted, num_atoms=9, num_edges=400)
    for atoms in structures:
        alone = atoms.copy()
        alone.calc, atoms.calc = Calculator(model), calculator
        assert_close(atoms.get_potential_energy(), alone.get_potential_energy())
        assert_close(atoms.get_forces(), alone.get_forces())
        if atoms.cell.rank == 3:
            assert_close(atoms.get_stress(), alone.get_stress())
    assert counted.num_compiled == calculator.num_compilations == 1
    assert len(counted.shapes) == 1
    with pytest.warns(UserWarning, match="A structure has 12 atoms"):
        calculator.get_potential_energy(molecule("C6H6"))
    assert (calculator.num_atoms, calculator.num_compilations) == (18, 2)


def test_an_atom_without_neighbors_has_an_energy_and_no_force(model: SchNet):
    atoms = ase.Atoms("O", [[0.0, 0, 0]])
    atoms.calc = Calculator(model)
    assert np.isfinite(atoms.get_potential_energy())
    assert (atoms.get_forces() == 0).all()


def test_neighbors_are_the_same_without_the_fast_library(model: SchNet, monkeypatch: pytest.MonkeyPatch):
    atoms = copper()
    atoms.calc = Calculator(model)
    forces = atoms.get_forces()
    monkeypatch.setitem(sys.modules, "vesin", None)
    atoms.calc = Calculator(model)
    assert_close(atoms.get_forces(), forces)


def test_the_model_is_left_as_it_was(model: SchNet):
    atoms = ethanol()
    atoms.calc = Calculator(model.train())
    atoms.get_forces()
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_wrong_choices_are_refused(model: SchNet):
    with pytest.raises(ValueError, match="The cutoff is None"):
        Calculator(torch.nn.Linear(1, 1))
    with pytest.raises(ValueError, match="num_edges is 0"):
        Calculator(model, num_edges=0)
    with pytest.raises(ValueError, match=r"The skin is -0\.1"):
        Calculator(model, skin=-0.1)


def test_what_a_model_is_given_is_looked_at_for_changes(model: SchNet):
    atoms = copper()
    atoms.calc = Calculator(model)
    assert atoms.calc.check_state(atoms) == ["positions", "numbers", "cell", "pbc"]
    before = atoms.get_potential_energy()
    assert atoms.calc.check_state(atoms) == []
    for change, name in (
        (lambda: atoms.positions.__setitem__((0, 0), atoms.positions[0, 0] + 1e-9), "positions"),
        (lambda: atoms.numbers.__setitem__(0, 79), "numbers"),
        (lambda: atoms.set_cell(atoms.cell * 1.01), "cell"),
        (lambda: atoms.set_pbc((True, True, False)), "pbc"),
    ):
        change()
        assert atoms.calc.check_state(atoms) == [name]
        assert atoms.get_potential_energy() != before
    atoms.pop()
    assert len(atoms.get_forces()) == 3


def test_a_run_with_a_skin_is_the_run_without(model: SchNet):
    from ase.md.verlet import VelocityVerlet
    from ase.units import fs

    found = []
    for skin in (0.0, 0.8):
        atoms = copper().repeat((2, 1, 1))
        atoms.calc = Calculator(model, skin=skin, num_edges=200)
        atoms.set_momenta(np.random.default_rng(0).normal(0, 4, (8, 3)))
        VelocityVerlet(atoms, 2 * fs).run(30)
        found.append(atoms.positions)
    assert atoms.calc.neighbors.num_found < 15
    np.testing.assert_allclose(*found, rtol=0, atol=1e-9)


@pytest.mark.parametrize("compiles", [False, True])
def test_a_calculator_is_copied_and_pickled_as_other_calculators_are(compiles):
    water = ase.Atoms("OH2", [[0.0, 0, 0.12], [0, 0.76, -0.48], [0, -0.76, -0.48]])
    water.calc = Calculator(SchNet(8, 8, num_interactions=1, cutoff=5.0), compile=inference_model if compiles else None)
    energy = water.get_potential_energy()
    for again in (pickle.loads(pickle.dumps(water.calc)), copy.deepcopy(water.calc)):
        other = water.copy()
        other.calc = again
        assert other.get_potential_energy() == energy
        other.positions[1, 0] += 0.3
        fresh = water.copy()
        fresh.positions[1, 0] += 0.3
        fresh.calc = Calculator(water.calc._model)
        np.testing.assert_allclose(other.get_forces(), fresh.get_forces(), atol=1e-5)


def test_a_model_in_bfloat16_has_forces():
    water = ase.Atoms("OH2", [[0.0, 0, 0.12], [0, 0.76, -0.48], [0, -0.76, -0.48]])
    water.calc = Calculator(SchNet(8, 8, num_interactions=1, cutoff=5.0).bfloat16())
    assert np.isfinite(water.get_forces()).all()
    assert np.abs(water.get_forces()).max() > 0


@pytest.mark.parametrize("compile", [None, inference_model])
def test_an_element_that_the_model_does_not_know_is_named(model: SchNet, compile):
    atoms = ethanol()
    atoms.numbers[0], atoms.calc = 110, Calculator(model, compile=compile)
    with pytest.raises(ValueError, match=r"atomic numbers \[110\], which the model was not trained on"):
        atoms.get_potential_energy()
    atoms.numbers[0] = 0
    with pytest.raises(ValueError, match="atoms of number 0, which is not an element"):
        atoms.get_potential_energy()


@pytest.mark.parametrize("with_edges", [True, False])
@pytest.mark.parametrize("readout", ["add", "mean", "max"])
@pytest.mark.parametrize("kind", [SchNet, PaiNN])
def test_a_dummy_atom_changes_nothing_with_given_edges_and_with_an_interaction_graph(kind, with_edges, readout):
    torch.manual_seed(0)
    settings = {"cutoff": 5.0, "readout": readout, "num_interactions": 2}
    net = kind(8, interaction_graph=RadiusInteractionGraph(5.0, 96), **settings)
    for weights in net.parameters():
        torch.nn.init.normal_(weights, std=0.3)  # biases included, which a dummy atom would be read out with
    atoms = ethanol()
    for dummy in ([0.0, 0, 1.5], [50.0, 0, 0]):
        pos = torch.tensor(np.vstack([atoms.positions, dummy]), dtype=torch.float32)
        z = torch.tensor([*atoms.numbers, 0])
        energies = []
        for count in (len(atoms), len(z)):
            pairs = list_pairs(pos[:count].numpy(), np.zeros((3, 3)), np.zeros(3, bool), 5.0)[0] if with_edges else None
            energies.append(energy_and_forces(net, z[:count], pos[:count], edge_index=pairs, num_graphs=1))
        assert_close(energies[1][0], energies[0][0])
        assert_close(energies[1][1][:-1], energies[0][1])
        assert not energies[1][1][-1].any()


@pytest.mark.parametrize("compile", [None, inference_model])
@pytest.mark.parametrize("far", [2_200.0, 22_000.0])
def test_forces_far_from_the_origin_and_of_unwrapped_atoms_are_those_near_it(model: SchNet, compile, far):
    atoms = copper()
    atoms.rattle(0.1, seed=0)
    atoms.calc = Calculator(model, compile=compile)
    near = atoms.get_forces()
    atoms.positions += [far, 0, -far]
    np.testing.assert_allclose(atoms.get_forces(), near, atol=2e-5)
    atoms.positions -= [far, 0, -far]
    atoms.positions[0] += round(far / 10) * atoms.cell.array[1]
    np.testing.assert_allclose(atoms.get_forces(), near, atol=2e-5)


def test_an_energy_that_is_no_number_is_an_error(model: SchNet):
    broken = copy.deepcopy(model)
    torch.nn.init.constant_(broken.lin2.bias, torch.nan)
    atoms = ethanol()
    atoms.calc = Calculator(broken)
    with pytest.raises(ValueError, match="energy of C2OH6 is NaN"):
        atoms.get_potential_energy()


def test_states_in_info_may_be_arrays(model: SchNet):
    atoms = ethanol()
    atoms.calc = Calculator(model)
    atoms.info["charge"] = np.array([1, 2])
    energy = atoms.get_potential_energy()
    assert not atoms.calc.check_state(atoms)
    atoms.info["charge"] = np.array([1, 3])
    assert atoms.calc.check_state(atoms) == ["charge"]
    assert atoms.get_potential_energy() == energy


def test_an_evaluator_that_reads_charges_or_moments_of_atoms_is_called_when_they_change():
    def evaluate(systems):
        (atoms,) = systems
        energy = (
            atoms.info.get("spin", 0)
            + atoms.get_initial_charges().sum()
            + 100 * atoms.get_initial_magnetic_moments().sum()
        )
        return {"energy": torch.tensor([float(energy)]), "forces": torch.zeros(len(atoms), 3)}

    atoms = ethanol()
    atoms.calc = SystemsCalculator(evaluate)
    assert atoms.get_potential_energy() == 0
    atoms.set_initial_charges(np.ones(9))
    assert atoms.get_potential_energy() == 9
    atoms.set_initial_magnetic_moments(np.ones(9))
    assert atoms.get_potential_energy() == 909
    atoms.info["spin"] = 1
    assert atoms.get_potential_energy() == 910
    del atoms.arrays["initial_charges"]
    assert atoms.get_potential_energy() == 901


def test_forces_are_those_outside_of_inference_mode_or_the_remedy_is_named(model: SchNet):
    atoms = ethanol()
    atoms.calc = Calculator(model)
    expected = atoms.get_forces()
    with torch.inference_mode():
        atoms.calc = Calculator(model)
        assert_close(atoms.get_forces(), expected)
        z, pos = torch.tensor(atoms.numbers), torch.tensor(atoms.positions)
        with pytest.raises(ValueError, match=r"inference_mode\(\) excludes derivatives. Use torch.no_grad"):
            energy_and_forces(model, z, pos, num_graphs=1)
    assert_close(atoms.get_forces(), expected)
