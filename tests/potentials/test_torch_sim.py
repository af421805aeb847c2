"""Many systems at once at one shape, in torch_sim: its own checks pass, and each system is as it is alone."""

import warnings

import pytest
import torch

ase = pytest.importorskip("ase")
pytest.importorskip("vesin")
torch_sim = pytest.importorskip("torch_sim", reason="torch-sim-atomistic is not installed", exc_type=ImportError)

from ase.build import bulk, molecule  # noqa: E402
from torch_geometric.data import Data  # noqa: E402
from torch_sim.models.interface import validate_model_outputs  # noqa: E402

from popgeo.potentials.torch_sim import FixedSizeModel  # noqa: E402

CUTOFF = 4.0


def as_graph(graph):
    return Data(**graph.to_dict(), unit_shift=(graph.edge_shift @ torch.linalg.pinv(graph.cell[0])).round())


class Springs(torch.nn.Module):
    """Pairs with an envelope and charges, in the names of the contract."""

    def __init__(self):
        super().__init__()
        self.shapes = set()

    def forward(self, batch):
        self.shapes.add((batch.pos.shape, batch.edge_shift.shape, batch.cell.shape))
        pos = batch.pos.requires_grad_(True)
        strain = torch.zeros_like(batch.cell, requires_grad=True)
        symmetric = (strain + strain.mT) / 2
        source, destination = batch.edge_index
        vector = pos[source] + batch.edge_shift - pos[destination]
        vector = vector + torch.einsum("ei,eij->ej", vector, symmetric[batch.batch[destination]])
        length = vector.norm(dim=1)
        pair = (1 - length / CUTOFF).clamp(min=0) ** 3 * (batch.z[source] * batch.z[destination]) / 100
        each = torch.zeros_like(pos[:, 0]).index_add(0, destination, pair) + batch.z * 0.1
        energy = torch.zeros_like(batch.cell[:, 0, 0]).index_add(0, batch.batch, each)
        of_pos, of_strain = torch.autograd.grad(energy.sum(), [pos, strain])
        stress = of_strain / torch.linalg.det(batch.cell).abs()[:, None, None]
        return {"energy": energy, "forces": -of_pos, "stress": stress}


def model_of(**kwargs):
    return FixedSizeModel(Springs(), as_graph=as_graph, as_batch=lambda b: b, cutoff=CUTOFF, species=1, **kwargs)


def systems(count):
    made = []
    for number in range(count):
        atoms = bulk(["Cu", "Al", "Au"][number % 3], cubic=bool(number % 2))
        atoms.rattle(0.05, seed=number)
        made.append(atoms)
    return made


def state_of(atoms):
    return torch_sim.io.atoms_to_state(atoms, torch.device("cpu"), torch.float64)


def test_torch_sims_own_validation_passes():
    validate_model_outputs(model_of(), torch.device("cpu"), torch.float64)


def test_each_system_of_a_screening_is_as_it_is_alone_and_one_shape_serves_all():
    model = model_of(num_nodes=24, num_edges=700, num_graphs=5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        all_at_once = model(state_of(systems(11)))
    for number, atoms in enumerate(systems(11)):
        alone = model_of()(state_of([atoms]))
        torch.testing.assert_close(all_at_once["energy"][number], alone["energy"][0], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(all_at_once["stress"][number], alone["stress"][0], rtol=1e-12, atol=1e-12)
    forces = torch.cat([model_of()(state_of([atoms]))["forces"] for atoms in systems(11)])
    torch.testing.assert_close(all_at_once["forces"], forces, rtol=1e-12, atol=1e-12)
    assert (model.num_shapes, len(model.evaluate.shapes)) == (1, 1)
    assert model.num_batches >= 3
    assert "1 shapes" in model.describe()


def test_capacity_grows_once_with_a_warning_and_drops_no_edge():
    model = model_of(num_nodes=10, num_edges=60, num_graphs=3)
    model(state_of([bulk("Cu")]))
    state = state_of([bulk("Cu"), bulk("Cu", cubic=True)])
    with pytest.warns(UserWarning, match=r"A system has 4 atoms and \d+ edges, more than a batch"):
        energy = model(state)["energy"]
    torch.testing.assert_close(energy[1], 4 * energy[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number in range(5):
            model(state_of(systems(5)[number:]))
    assert len(model.evaluate.shapes) == model.num_shapes == 2


@pytest.mark.filterwarnings("ignore:Optimize has reached max steps")
def test_dynamics_of_many_systems_keep_their_energy_at_one_shape():
    model = model_of()
    state = state_of([atoms.repeat((2, 1, 1)) for atoms in systems(3)])
    first = float(model(state)["energy"].sum())
    state = torch_sim.optimize(state, model, optimizer=torch_sim.gradient_descent, max_steps=5, steps_between_swaps=5)
    assert float(state.energy.sum()) < first
    assert len(model.evaluate.shapes) == 1


def test_one_atom_without_neighbours_and_a_molecule_without_a_cell():
    model = model_of(num_nodes=12, num_edges=40, num_graphs=4)
    lone = state_of([ase.Atoms("Au", cell=[9] * 3, pbc=True)])
    assert model(lone)["energy"].tolist() == pytest.approx([7.9])
    assert model(lone)["forces"].tolist() == [[0, 0, 0]]
    water = molecule("H2O")
    assert model(state_of([water, water]))["energy"].unique().numel() == 1


def test_what_a_model_cannot_take_names_the_system():
    def refuse(graph):
        if 79 in graph.z:
            raise ValueError("it has gold.")
        return as_graph(graph)

    model = FixedSizeModel(Springs(), as_graph=refuse, as_batch=lambda b: b, cutoff=CUTOFF, species=1)
    with pytest.raises(ValueError, match="System 2: it has gold"):
        model(state_of(systems(3)))
    with pytest.raises(ValueError, match="cutoff is 0"):
        FixedSizeModel(Springs(), as_graph=refuse, as_batch=refuse, cutoff=0, species=1)
