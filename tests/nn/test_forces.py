"""Claims about forces and stress in a periodic cell."""

from itertools import combinations_with_replacement, product

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close
from torch_geometric.data import Data

from popgeo import FixedSizeDataLoader
from popgeo.ipu import inference_model
from popgeo.nn import SchNet, energy_and_forces, energy_forces_and_stress

CUTOFF = 4.0
CELL = torch.tensor([[3.1, 0.2, 0.0], [0.3, 3.4, -0.1], [0.0, 0.5, 2.9]], dtype=torch.float64)


@pytest.fixture
def model() -> SchNet:
    torch.manual_seed(0)
    return SchNet(8, 8, num_interactions=2, num_gaussians=8, cutoff=CUTOFF).double()


def crystal() -> tuple[Tensor, Tensor]:
    """Return three atoms in a cell shorter than the cutoff, so that each interacts with its own images."""
    generator = torch.Generator().manual_seed(1)
    inside = torch.rand(3, 3, generator=generator, dtype=torch.float64)
    return torch.tensor([8, 14, 8]), inside @ CELL


def neighbors(pos: Tensor, cell: Tensor, reach: int = 3) -> tuple[Tensor, Tensor]:
    """Find edges (neighbor, center) and shifts by a loop over all images."""
    edges, shifts = [], []
    for steps in product(range(-reach, reach + 1), repeat=3):
        shift = torch.tensor(steps, dtype=pos.dtype) @ cell
        for i, j in product(range(len(pos)), repeat=2):
            r = float((pos[j] + shift - pos[i]).norm())
            if 0 < r < CUTOFF:
                edges.append([j, i])
                shifts.append(shift)
    return torch.tensor(edges).T.contiguous(), torch.stack(shifts)


def energy(model: nn.Module, z: Tensor, pos: Tensor, cell: Tensor) -> Tensor:
    edge_index, edge_shift = neighbors(pos, cell)
    return model(z, pos, torch.zeros_like(z), edge_index, edge_shift=edge_shift, num_graphs=1).sum()


def of_cell(model: nn.Module, z: Tensor, pos: Tensor, cell: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    edge_index, edge_shift = neighbors(pos, cell)
    found = energy_forces_and_stress(
        model, z, pos, torch.zeros_like(z), edge_index, edge_shift=edge_shift, cell=cell[None], num_graphs=1
    )
    return found


def test_an_atom_meets_the_images_of_its_own(model: SchNet):
    z, edges = torch.tensor([29]), torch.zeros(2, 1, dtype=torch.long)
    chain = torch.tensor([[2.0, 0, 0]], dtype=torch.float64)
    pair = torch.tensor([[0.0, 0, 0], [2, 0, 0]], dtype=torch.float64)
    alone = model(z, pair[:1], None, edges, edge_shift=0 * chain, num_graphs=1)
    with_image = model(z, pair[:1], None, edges, edge_shift=chain, num_graphs=1)
    dimer = model(z.repeat(2), pair, None, torch.tensor([[1, 0], [0, 1]]), num_graphs=1)
    assert_close(with_image, dimer / 2)
    assert (with_image - alone).abs().max() > 1e-4


def test_forces_in_a_cell_are_the_slope_of_the_energy(model: SchNet):
    z, pos = crystal()
    _, forces, _ = of_cell(model, z, pos, CELL)
    for atom, axis in product(range(3), repeat=2):
        step = torch.zeros_like(pos)
        step[atom, axis] = 1e-5
        slope = (energy(model, z, pos + step, CELL) - energy(model, z, pos - step, CELL)) / 2e-5
        assert_close(forces[atom, axis], -slope, rtol=1e-5, atol=1e-8)
    assert forces.abs().max() > 1e-3


def test_stress_is_the_slope_of_the_energy_under_strain_over_the_volume(model: SchNet):
    z, pos = crystal()
    _, _, stress = of_cell(model, z, pos, CELL)
    volume = torch.linalg.det(CELL)
    for i, j in combinations_with_replacement(range(3), 2):
        strain = torch.zeros(3, 3, dtype=torch.float64)
        strain[i, j] += 0.5e-5
        strain[j, i] += 0.5e-5
        up, down = (torch.eye(3, dtype=torch.float64) + sign * strain for sign in (1, -1))
        slope = (energy(model, z, pos @ up, CELL @ up) - energy(model, z, pos @ down, CELL @ down)) / 2e-5
        for found in (stress[0, i, j], stress[0, j, i]):
            assert_close(found, slope / volume, rtol=1e-5, atol=1e-8)
    assert stress.abs().max() > 1e-5


def test_a_supercell_has_the_same_forces_and_stress_and_its_share_of_energy(model: SchNet):
    z, pos = crystal()
    small = of_cell(model, z, pos, CELL)
    doubled = CELL * torch.tensor([[2.0], [1.0], [1.0]], dtype=torch.float64)
    large = of_cell(model, z.repeat(2), torch.cat([pos, pos + CELL[0]]), doubled)
    assert_close(large[0], 2 * small[0])
    assert_close(large[1], small[1].repeat(2, 1))
    assert_close(large[2], small[2])


def test_padding_changes_no_force_and_no_stress_and_has_none(model: SchNet):
    z, pos = crystal()
    edge_index, edge_shift = neighbors(pos, CELL)
    expected = of_cell(model, z, pos, CELL)
    found = energy_forces_and_stress(
        model,
        torch.cat([z, torch.zeros(2, dtype=torch.long)]),
        torch.cat([pos, torch.full((2, 3), 7.0, dtype=torch.float64)]),
        torch.tensor([0, 0, 0, 1, 1]),
        torch.cat([edge_index, torch.full((2, 5), 4)], dim=1),
        edge_shift=torch.cat([edge_shift, torch.zeros(5, 3, dtype=torch.float64)]),
        cell=torch.stack([CELL, torch.zeros_like(CELL)]),
        num_graphs=2,
    )
    assert_close(found[0][:1], expected[0])
    assert_close(found[1], torch.cat([expected[1], torch.zeros(2, 3, dtype=torch.float64)]))
    assert_close(found[2], torch.cat([expected[2], torch.zeros(1, 3, 3, dtype=torch.float64)]))


def test_compiled_forces_and_stress_are_those_of_the_model(model: SchNet):
    class Potential(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model.eval()

        def forward(self, z: Tensor, pos: Tensor, batch: Tensor, edges: Tensor, shift: Tensor, cell: Tensor):
            return energy_forces_and_stress(self.model, z, pos, batch, edges, edge_shift=shift, cell=cell, num_graphs=1)

    z, pos = crystal()
    edge_index, edge_shift = neighbors(pos, CELL)
    found = inference_model(Potential().eval())(z, pos, torch.zeros_like(z), edge_index, edge_shift, CELL[None])
    for mine, expected in zip(found, of_cell(model, z, pos, CELL), strict=True):
        assert_close(mine, expected.detach())


def test_learning_from_stress_reaches_the_parameters(model: SchNet):
    z, pos = crystal()
    _, forces, stress = of_cell(model.train(), z, pos, CELL)
    (forces.square().sum() + stress.square().sum()).backward()
    assert all(p.grad is not None for name, p in model.named_parameters() if name != "lin2.bias")


def test_wrong_cells_and_shifts_without_edges_are_refused(model: SchNet):
    z, pos = crystal()
    edge_index, edge_shift = neighbors(pos, CELL)
    with pytest.raises(ValueError, match=r"cell has shape \(3, 3\); it must be \(1, 3, 3\)"):
        energy_forces_and_stress(
            model, z, pos, torch.zeros_like(z), edge_index, edge_shift=edge_shift, cell=CELL, num_graphs=1
        )
    with pytest.raises(ValueError, match="edge_shift is given without edge_index"):
        energy_and_forces(model, z, pos, edge_shift=edge_shift, num_graphs=1)


def test_a_potential_written_without_a_thought_of_padding_has_finite_gradients_where_edges_carry_shifts():
    class Springs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stiff = nn.Parameter(torch.tensor(1.0))

        def forward(self, batch: Data) -> Tensor:
            pos = batch.pos.requires_grad_()
            source, target = batch.edge_index
            vector = pos[source] + batch.edge_shift - pos[target]
            r = vector.square().sum(-1).sqrt()
            energy = (self.stiff * (r - 1).square() * (r < CUTOFF)).sum()
            force = torch.autograd.grad(energy, pos, create_graph=True)[0]
            return force[batch.nodes_mask].square().mean()

    frames = []
    for length in (1.2, 1.4, 1.7):
        chain = torch.tensor([[length, 0, 0], [-length, 0, 0]])
        frames.append(Data(pos=torch.zeros(1, 3), edge_index=torch.zeros(2, 2, dtype=torch.long), edge_shift=chain))
    batch = next(iter(FixedSizeDataLoader(frames, batch_size=3, num_nodes=6, num_edges=12)))
    model = Springs()
    model(batch).backward()
    assert not batch.edges_mask.all()
    assert torch.isfinite(model.stiff.grad)
