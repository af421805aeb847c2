"""Claims about PaiNN: against its equations one pair at a time, under rotation, and about its forces."""

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close
from torch_geometric.data import Data

from popgeo.nn import (
    KNNInteractionGraph,
    PaiNN,
    PairInteractionGraph,
    PrecomputeInteractionGraph,
    energy_and_forces,
    mse_loss,
)
from popgeo.nn.atom_edges import directions
from popgeo.testing import check_static_capture

SIZES, CUTOFF = (5, 7, 1, 3), 5.0
GRAPHS = {
    "knn": lambda: KNNInteractionGraph(6, CUTOFF, max_num_nodes=7),
    "pairs": lambda: PairInteractionGraph(CUTOFF, max_num_nodes=7),
}


def make_model(graph: str = "pairs") -> PaiNN:
    torch.manual_seed(0)
    return PaiNN(6, num_interactions=2, num_radial=5, cutoff=CUTOFF, interaction_graph=GRAPHS[graph]()).double()


def make_molecules() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    batch = torch.repeat_interleave(torch.arange(len(SIZES)), torch.tensor(SIZES))
    z = torch.randint(1, 9, batch.shape, generator=generator)
    return z, 2.0 * torch.randn(len(batch), 3, generator=generator, dtype=torch.float64), batch


def plain_energy(model: PaiNN, z: Tensor, pos: Tensor) -> Tensor:
    """Compute equations 7 to 10 of arXiv:2102.03150 for one molecule, pair after pair of atoms."""
    s = list(model.embedding(z))
    v = [torch.zeros(3, s[0].numel(), dtype=pos.dtype) for _ in s]
    for message, update in zip(model.messages, model.updates, strict=True):
        phi = [message.phi(row).chunk(3) for row in s]
        sums = [[row, vector] for row, vector in zip(s, v, strict=True)]
        for i in range(len(z)):
            for j in range(len(z)):
                r = pos[j] - pos[i]
                if i != j and r.norm() < CUTOFF:
                    n = torch.arange(1, 6, dtype=pos.dtype)
                    rbf = torch.sin(n * torch.pi * r.norm() / CUTOFF) / r.norm()
                    w = message.filter(rbf) * 0.5 * (torch.cos(torch.pi * r.norm() / CUTOFF) + 1)
                    w_s, w_vv, w_vs = w.chunk(3)
                    sums[i][0] = sums[i][0] + phi[j][0] * w_s
                    sums[i][1] = sums[i][1] + v[j] * (phi[j][1] * w_vv) + torch.outer(r / r.norm(), phi[j][2] * w_vs)
        for i, (row, vector) in enumerate(sums):
            u_v, v_v = vector @ update.u.weight.T, vector @ update.v.weight.T
            length = (v_v.square().sum(0) + 1e-8).sqrt()
            a_vv, a_sv, a_ss = update.a(torch.cat([row, length])).chunk(3)
            s[i], v[i] = row + a_ss + a_sv * (u_v * v_v).sum(0), vector + a_vv * u_v
    return sum(model.lin2(model.act(model.lin1(row))) for row in s)


@pytest.mark.parametrize("graph", GRAPHS)
def test_energies_are_those_of_the_paper_one_pair_after_the_other(graph: str):
    model, (z, pos, batch) = make_model(graph), make_molecules()
    expected = torch.stack([plain_energy(model, z[batch == i], pos[batch == i]) for i in range(len(SIZES))])
    assert_close(model(z, pos, batch, num_graphs=len(SIZES)), expected)


@pytest.mark.parametrize("half_list", [False, True])
def test_precomputed_edges_give_the_same(half_list: bool):
    model, (z, pos, _) = make_model(), make_molecules()
    found = PrecomputeInteractionGraph(CUTOFF, half_list=half_list)(Data(z=z[:5], pos=pos[:5]))
    out = model(found.z, found.pos, None, found.edge_index, num_graphs=1, half_list=half_list)
    assert_close(out, model(z[:5], pos[:5], num_graphs=1))


def test_turning_mirroring_and_moving_keeps_an_energy_and_turns_its_forces():
    model, (z, pos, batch) = make_model(), make_molecules()
    rotation, _ = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64))
    energy, forces = energy_and_forces(model, z, pos, batch, num_graphs=4)
    for turn in (rotation, -rotation):
        turned_energy, turned_forces = energy_and_forces(model, z, pos @ turn + 7.0, batch, num_graphs=4)
        assert_close(turned_energy, energy)
        assert_close(turned_forces, forces @ turn)
    assert forces.abs().max() > 1e-3


def test_angles_matter_where_all_distances_to_the_centre_are_alike():
    model, z = make_model(), torch.tensor([8, 1, 1])
    model.messages, model.updates = model.messages[:1], model.updates[:1]  # one round: pairs alone see no angle
    apart = torch.tensor([[0.0, 0, 0], [4, 0, 0], [-4, 0, 0]], dtype=torch.float64)
    bent = torch.tensor([[0.0, 0, 0], [4, 0, 0], [0, 4, 0]], dtype=torch.float64)
    assert (bent[1] - bent[2]).norm() > CUTOFF  # so the outer two do not meet
    assert (model(z, apart) - model(z, bent)).abs() > 1e-6


@pytest.mark.parametrize("graph", GRAPHS)
def test_forces_are_the_slope_of_the_energy_and_can_be_learned_from(graph: str):
    model, (z, pos, batch) = make_model(graph), make_molecules()
    _, forces = energy_and_forces(model, z, pos, batch, num_graphs=4)
    step = torch.zeros_like(pos)
    step[3, 1] = 1e-5
    up, down = (model(z, p, batch, num_graphs=4).sum() for p in (pos + step, pos - step))
    assert_close(forces[3, 1], (down - up) / 2e-5, rtol=1e-5, atol=1e-8)

    weight = model.messages[0].filter.weight
    (slope,) = torch.autograd.grad(forces.square().sum(), weight)
    losses = []
    for change in (1e-5, -1e-5):
        with torch.no_grad():
            weight[2, 1] += change
        losses.append(energy_and_forces(model, z, pos, batch, num_graphs=4)[1].square().sum())
        with torch.no_grad():
            weight[2, 1] -= change
    assert_close(slope[2, 1], (losses[0] - losses[1]) / 2e-5, rtol=1e-4, atol=1e-7)


def test_padding_changes_neither_a_force_nor_what_training_on_forces_learns():
    model, (z, pos, batch) = make_model(), make_molecules()
    padding = (z.new_zeros(9), pos.new_zeros(9, 3), batch.new_full((9,), 4))
    padded = [torch.cat(parts) for parts in zip((z, pos, batch), padding, strict=True)]
    results = []
    for arguments, num_graphs in (((z, pos, batch), 4), (padded, 5)):
        _, forces = energy_and_forces(model, *arguments, num_graphs=num_graphs)
        loss = mse_loss(forces, torch.ones_like(forces), arguments[0] > 0)
        results.append([forces[: len(z)], loss, *torch.autograd.grad(loss, list(model.parameters())[:-1])])
    assert_close(*results)


def test_a_compiled_step_that_learns_from_forces_is_static_and_equals_eager():
    model, (z, pos, batch) = make_model(), make_molecules()
    model.messages, model.updates = model.messages[:1], model.updates[:1]

    class Forces(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model.train()

        def forward(self, z: Tensor, pos: Tensor, batch: Tensor) -> Tensor:
            energy, forces = energy_and_forces(self.model, z, pos, batch, num_graphs=4)
            return forces.square().mean() + energy.square().mean()

    check_static_capture(Forces(), z, pos, batch, other_inputs=(z, 1.1 * pos, batch))


def test_atoms_in_one_place_have_finite_forces_and_no_direction():
    model, z, pos = make_model(), torch.tensor([6, 1, 1]), torch.zeros(3, 3, dtype=torch.float64)
    pos[2, 0] = 1.0
    energy, forces = energy_and_forces(model, z, pos, num_graphs=1)
    assert energy.isfinite().all()
    assert forces.isfinite().all()
    assert (directions(pos, torch.tensor([[0], [1]]), torch.zeros(1), CUTOFF) == 0).all()


def test_an_unknown_readout_is_refused():
    with pytest.raises(ValueError, match="readout is 'median'"):
        PaiNN(readout="median")
