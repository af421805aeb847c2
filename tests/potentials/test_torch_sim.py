"""Many systems at once in torch_sim: torch_sim's own checks pass, and dynamics keep one shape."""

import pytest
import torch

pytest.importorskip("ase")
pytest.importorskip("vesin")
torch_sim = pytest.importorskip("torch_sim", reason="torch-sim-atomistic is not installed", exc_type=ImportError)

from ase import Atoms  # noqa: E402
from ase.build import bulk  # noqa: E402
from torch_sim.models.interface import validate_model_outputs  # noqa: E402

from popgeo.potentials.torch_sim import FixedSizeModel  # noqa: E402
from tests.support.springs import evaluator_of  # noqa: E402


def test_torch_sims_own_validation_passes():
    validate_model_outputs(FixedSizeModel(evaluator_of()), torch.device("cpu"), torch.float64)


@pytest.mark.filterwarnings("ignore:Optimize has reached max steps")
def test_relaxations_of_many_systems_lower_their_energy_at_one_shape():
    model, systems = FixedSizeModel(evaluator_of()), []
    for number in range(3):
        systems.append(bulk(["Cu", "Al", "Au"][number], cubic=bool(number % 2)).repeat((2, 1, 1)))
        systems[-1].rattle(0.05, seed=number)
    state = torch_sim.io.atoms_to_state(systems, torch.device("cpu"), torch.float64)
    first = float(model(state)["energy"].sum())
    for number, atoms in enumerate(systems):
        alone = evaluator_of()([atoms])
        torch.testing.assert_close(model(state)["energy"][number], alone["energy"][0], rtol=1e-12, atol=1e-12)
        rows = state.system_idx == number
        torch.testing.assert_close(model(state)["forces"][rows], alone["forces"], rtol=1e-12, atol=1e-12)
    state = torch_sim.optimize(state, model, optimizer=torch_sim.gradient_descent, max_steps=5, steps_between_swaps=5)
    assert float(state.energy.sum()) < first
    assert len(model.evaluator.evaluate.shapes) == 1


def test_a_campaign_with_changing_cells_has_two_shapes_and_the_bits_of_systems_alone():
    model = FixedSizeModel(evaluator_of())
    systems = [bulk("Cu").repeat((1 + 8 * (number == 4), 2, 1)) for number in range(8)]
    model.evaluator.make_room(systems)
    for some in (systems[:3], systems[3:], systems[2:6]):
        for strain in (1.0, 0.98, 1.05):
            for number, atoms in enumerate(some):
                atoms.set_cell(atoms.cell * strain, scale_atoms=True)
                atoms.rattle(0.05, seed=number)
            found = model(torch_sim.io.atoms_to_state(some, torch.device("cpu"), torch.float64))
            alone = [evaluator_of()([atoms]) for atoms in some]
            for name in ("energy", "forces", "stress"):
                torch.testing.assert_close(found[name], torch.cat([one[name] for one in alone]), rtol=0, atol=0)
    assert len(model.evaluator.evaluate.shapes) == 2


def test_systems_of_one_atom_have_the_results_of_ases_calculator():
    systems = [Atoms("Cu", cell=[20] * 3, pbc=True), bulk("Cu"), Atoms("He", [[0.0, 0, 0]], cell=[9] * 3)]
    for some in (systems[:1], systems[1:2], systems[2:], systems[:2]):
        found = FixedSizeModel(evaluator_of())(torch_sim.io.atoms_to_state(some, torch.device("cpu"), torch.float64))
        alone = [evaluator_of()([atoms]) for atoms in some]
        for name in ("energy", "forces", "stress"):
            torch.testing.assert_close(found[name], torch.cat([one[name] for one in alone]))
