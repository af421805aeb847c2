"""Claims about SchNet against PyG's, under rotation, and about its forces."""

import sys
import warnings
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor
from torch.testing import assert_close
from torch_geometric.data import Batch, Data

from popgeo.elements import ATOMIC_MASSES
from popgeo.nn import (
    KNNInteractionGraph,
    PairInteractionGraph,
    PolynomialEnvelope,
    PrecomputeInteractionGraph,
    RadiusInteractionGraph,
    SchNet,
    energy_and_forces,
    mse_loss,
)

SIZES = (5, 9, 1, 3)
ARGUMENTS = {"hidden_channels": 16, "num_filters": 12, "num_interactions": 3, "num_gaussians": 10, "cutoff": 5.0}


def make_molecules(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    batch = torch.repeat_interleave(torch.arange(len(SIZES)), torch.tensor(SIZES))
    z = torch.randint(1, 9, batch.shape, generator=generator)
    return z, 2.5 * torch.randn(len(batch), 3, generator=generator, dtype=torch.float64).to(dtype), batch


@pytest.fixture(autouse=True)
def masses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the atomic masses that PyG reads from ase, which is not installed."""
    ase = ModuleType("ase")
    ase.data = SimpleNamespace(atomic_masses=np.array(ATOMIC_MASSES))
    monkeypatch.setitem(sys.modules, "ase", ase)


def make_pair(dtype: torch.dtype, interaction_graph, **kwargs) -> tuple[SchNet, pyg.SchNet]:
    """Return our model and PyG's model on the same edges, with the same parameters."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)  # PyG rounds ln 2 and the Gaussians' width to the default type
    torch.manual_seed(0)
    theirs = pyg.SchNet(**ARGUMENTS, interaction_graph=KNNInteractionGraph(8, 5.0), **kwargs).to(dtype)
    ours = SchNet(**ARGUMENTS, interaction_graph=interaction_graph, **kwargs)
    torch.set_default_dtype(before)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


GRAPHS = {
    "knn": lambda: KNNInteractionGraph(8, 5.0, max_num_nodes=9),
    "pairs": lambda: PairInteractionGraph(5.0, max_num_nodes=9),
    "radius": lambda: RadiusInteractionGraph(5.0, 120, max_num_nodes=9),
}
HEADS = {
    "sum": {},
    "mean": {"readout": "mean"},
    "dipole": {"dipole": True},
    "scaled": {"mean": -3.0, "std": 2.0, "atomref": torch.linspace(-1, 1, 100).view(-1, 1)},
}


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)], ids=["32", "64"])
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("graph", GRAPHS)
def test_a_checkpoint_of_pyg_gives_the_same_outputs_and_gradients(graph, head, dtype, tolerance):
    ours, theirs = make_pair(dtype, GRAPHS[graph](), **HEADS[head])
    z, pos, batch = make_molecules(dtype)
    found, expected = ours(z, pos, batch, num_graphs=4), theirs(z, pos, batch)
    assert_close(found, expected, rtol=tolerance, atol=tolerance)
    pairs = ((found, ours), (expected, theirs))
    gradients = [torch.autograd.grad(out.square().mean(), list(model.parameters())) for out, model in pairs]
    for one, other in zip(*gradients, strict=True):
        scale = float(other.abs().max()) + 1
        assert_close(one, other, rtol=tolerance, atol=tolerance * scale)


@pytest.mark.parametrize("half_list", [False, True])
def test_precomputed_edges_packed_by_a_collater_give_the_same(half_list: bool):
    ours, theirs = make_pair(torch.float64, None)
    z, pos, batch = make_molecules()
    transform = PrecomputeInteractionGraph(5.0, half_list=half_list)
    packed = Batch.from_data_list([transform(Data(z=z[batch == i], pos=pos[batch == i])) for i in range(4)])
    out = ours(packed.z, packed.pos, packed.batch, packed.edge_index, num_graphs=4, half_list=half_list)
    assert_close(out, theirs(z, pos, batch), rtol=1e-10, atol=1e-10)


def test_precomputed_edges_take_fewer_slots_than_neighbors():
    z, pos, batch = make_molecules()
    transform = PrecomputeInteractionGraph(5.0)
    num_edges = sum(transform(Data(z=z[batch == i], pos=pos[batch == i])).num_edges for i in range(4))
    assert num_edges < KNNInteractionGraph(8, 5.0)(pos, batch)[1].numel() / 1.5


def test_turning_and_moving_a_molecule_keeps_its_energy_and_turns_its_forces():
    model, (z, pos, batch) = SchNet(**ARGUMENTS).double(), make_molecules()
    rotation, _ = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64))
    energy, forces = energy_and_forces(model, z, pos, batch, num_graphs=4)
    turned_energy, turned_forces = energy_and_forces(model, z, pos @ rotation + 7.0, batch, num_graphs=4)
    assert_close(turned_energy, energy)
    assert_close(turned_forces, forces @ rotation)
    assert forces.abs().max() > 1e-3


@pytest.mark.parametrize("graph", GRAPHS)
def test_forces_are_the_slope_of_the_energy(graph: str):
    model = SchNet(**ARGUMENTS, interaction_graph=GRAPHS[graph](), envelope=PolynomialEnvelope(5.0)).double()
    z, pos, batch = make_molecules()
    _, forces = energy_and_forces(model, z, pos, batch, num_graphs=4)
    step = torch.zeros_like(pos)
    step[3, 1] = 1e-5
    up, down = (model(z, p, batch, num_graphs=4).sum() for p in (pos + step, pos - step))
    assert_close(forces[3, 1], (down - up) / 2e-5, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("graph", GRAPHS)
def test_padding_changes_neither_a_force_nor_what_training_on_forces_learns(graph: str):
    torch.manual_seed(0)
    model = SchNet(**ARGUMENTS, interaction_graph=GRAPHS[graph]()).double()
    z, pos, batch = make_molecules()
    padding = (z.new_zeros(20), pos.new_zeros(20, 3), batch.new_full((20,), 4))
    padded = [torch.cat(parts) for parts in zip((z, pos, batch), padding, strict=True)]
    results = []
    for arguments, num_graphs in (((z, pos, batch), 4), (padded, 5)):
        _, forces = energy_and_forces(model, *arguments, num_graphs=num_graphs)
        loss = mse_loss(forces, torch.ones_like(forces), arguments[0] > 0)
        results.append([forces[:18], loss, *torch.autograd.grad(loss, list(model.parameters())[:-1])])
    assert_close(*results)
    assert any(float(gradient.abs().max()) > 1e-6 for gradient in results[0][2:])


def test_forces_of_a_model_in_evaluation_keep_no_graph():
    model, (z, pos, batch) = SchNet(**ARGUMENTS).eval().double(), make_molecules()
    with torch.no_grad():
        _, forces = energy_and_forces(model, z, pos, batch, num_graphs=4)
    assert not forces.requires_grad


def test_one_atom_alone_has_an_energy_and_no_force():
    model = SchNet(**ARGUMENTS)
    energy, forces = energy_and_forces(model, torch.tensor([6]), torch.zeros(1, 3))
    assert energy.shape == (1, 1)
    assert (forces == 0).all()


@pytest.mark.parametrize(
    ("arguments", "words"), [({"readout": "median"}, "readout is 'median'"), ({"mean": 1.0}, "give both or none")]
)
def test_a_wrong_head_is_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        SchNet(**ARGUMENTS | arguments)


def test_a_hook_on_a_part_of_a_block_is_called():
    z, pos, batch = make_molecules(torch.float32)
    model, seen = SchNet(**ARGUMENTS), []
    expected = model(z, pos, batch, num_graphs=len(SIZES))
    model.interactions[0].mlp[0].register_forward_hook(lambda *_: seen.append(1))
    assert_close(model(z, pos, batch, num_graphs=len(SIZES)), expected, rtol=1e-4, atol=1e-5)
    assert seen == [1]


def test_pairs_that_are_listed_once_are_told_of_where_both_directions_are_meant():
    z, pos, pairs = torch.tensor([8, 1, 1]), torch.randn(3, 3), torch.tensor([[0, 0, 1], [1, 2, 2]])
    model = SchNet(8, 8, 1, num_gaussians=8)
    batch = torch.zeros(3, dtype=torch.long)
    with pytest.warns(UserWarning, match="No edge runs back. Pass half_list=True"):
        model(z, pos, batch, pairs, num_graphs=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        both = model(z, pos, batch, torch.cat([pairs, pairs.flip(0)], 1), num_graphs=1)
        assert_close(model(z, pos, batch, pairs, num_graphs=1, half_list=True), both)
