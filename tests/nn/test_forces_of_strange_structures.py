"""Energies and forces are correct and finite for atoms that coincide, are alone, lie at the cutoff, or are padding."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from popgeo import compile_forward, compile_step
from popgeo.nn import PaiNN, PrecomputeInteractionGraph, SchNet, energy_and_forces

CUTOFF, DTYPES = 3.0, (torch.float32, torch.float64)
STRUCTURES = {
    "coinciding": [[0.0, 0, 0], [0, 0, 0], [1, 0, 0]],
    "alone": [[0.5, 0, 0]],
    "far apart": [[0.0, 0, 0], [9, 0, 0]],
    "on the cutoff": [[0.0, 0, 0], [3, 0, 0], [0, 1, 0]],
    "padding only": [],
}


def model_of(name: str, dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    model = PaiNN(8, 2, 6, CUTOFF) if name == "painn" else SchNet(8, 8, 2, 8, CUTOFF)
    return model.to(dtype)


def batch_of(names: list[str], half_list: bool, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Return the structures and a padding graph of two atoms, at the place of a real atom, with two edges."""
    z, pos, batch, edges = [], [], [], []
    for graph, name in enumerate(names):
        placed = torch.tensor(STRUCTURES[name], dtype=dtype).view(-1, 3)
        near = (placed.unsqueeze(0) - placed.unsqueeze(1)).square().sum(2) <= CUTOFF * CUTOFF
        near = near.triu(1) if half_list else near & ~torch.eye(len(placed), dtype=torch.bool)
        centre, neighbor = near.nonzero().unbind(1)
        edges.append(torch.stack([neighbor, centre]) + len(z))
        pos.append(placed)
        z += [6] * len(placed)
        batch += [graph] * len(placed)
    edges.append(torch.full((2, 2), len(z) + 1))
    places = torch.cat([*pos, torch.zeros(2, 3, dtype=dtype)])
    return torch.tensor([*z, 0, 0]), places, torch.tensor([*batch, len(names), len(names)]), torch.cat(edges, 1)


class Step(nn.Module):
    def __init__(self, model: nn.Module, half_list: bool, num_graphs: int) -> None:
        super().__init__()
        self.model, self.known = model, {"half_list": half_list, "num_graphs": num_graphs}

    def forward(self, z: Tensor, pos: Tensor, batch: Tensor, edges: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        energy, forces = energy_and_forces(self.model, z, pos, batch, edges, **self.known)
        return energy, forces, (forces - 0.1).square().sum() + energy[:-1].square().sum()


def slopes_of(step: Step) -> list[Tensor]:
    """Return the gradients of a step's weights in double precision."""
    return [torch.zeros_like(p).double() if p.grad is None else p.grad.double() for p in step.parameters()]


def assert_slopes_close(found: list[Tensor], expected: list[Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert ((one - other).abs() <= 2e-4 * other.abs().max().clamp(min=1)).all()


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("half_list", [False, True])
@pytest.mark.parametrize("name", ["schnet", "painn"])
def test_forces_are_finite_and_right_and_so_are_gradients_of_training(name: str, half_list: bool, structure: str):
    steps = [Step(model_of(name, dtype), half_list, 2) for dtype in DTYPES]
    results = [step(*batch_of([structure], half_list, dtype)) for step, dtype in zip(steps, DTYPES, strict=True)]
    for energy, forces, loss in results:
        loss.backward()
        assert energy.isfinite().all()
        assert (forces[-2:] == 0).all()
        assert (forces == 0).all() or structure in ("coinciding", "on the cutoff")
    for one, other in zip(*results, strict=True):
        assert_close(one.double(), other, rtol=1e-3, atol=1e-4)
    assert_slopes_close(*map(slopes_of, steps))


@pytest.mark.parametrize("name", ["schnet", "painn"])
def test_compiled_they_are_as_right_all_in_one_batch(name: str):
    names = list(STRUCTURES)
    exact = Step(model_of(name, torch.float64), True, len(names) + 1)
    energy, forces, loss = exact(*batch_of(names, True, torch.float64))
    loss.backward()
    given = batch_of(names, True, torch.float32)
    trained = Step(model_of(name, torch.float32), True, len(names) + 1)
    before = [p.detach().clone() for p in trained.parameters()]
    evaluated = compile_forward(copy.deepcopy(trained).eval())(*given)
    stepped = compile_step(trained, torch.optim.SGD(trained.parameters(), lr=1.0))(*given)
    for one in (evaluated, stepped):
        assert_close(one[0].double(), energy, rtol=1e-4, atol=1e-4)
        assert_close(one[1].double(), forces, rtol=1e-3, atol=1e-4)
    taken = [(p - q).detach().double() for p, q in zip(before, trained.parameters(), strict=True)]
    assert_slopes_close(taken, slopes_of(exact))


def test_edges_that_a_transform_finds_at_the_cutoff_have_no_force():
    from torch_geometric.data import Data

    data = PrecomputeInteractionGraph(CUTOFF)(Data(z=torch.tensor([6, 6]), pos=torch.tensor([[0.0, 0, 0], [3, 0, 0]])))
    assert data.edge_index.shape == (2, 2)
    for name in ("schnet", "painn"):
        _, forces = energy_and_forces(
            model_of(name, torch.float32), data.z, data.pos, None, data.edge_index, num_graphs=1
        )
        assert (forces == 0).all()
