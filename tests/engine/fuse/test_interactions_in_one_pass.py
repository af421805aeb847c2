"""Interactions of a captured graph run in one pass where they are of the kind that is served, else as before."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import popgeo
from popgeo import ipu
from popgeo.engine.fuse.plan_interactions import BACKWARD, FORWARD, PLAN
from popgeo.native import library
from popgeo.nn import KNNInteractionGraph, SchNet, energy_and_forces
from popgeo.ops import cfconv, interaction_call

pytestmark = pytest.mark.skipif(not interaction_call.is_served(), reason="no kernels for this processor")

NUM_GRAPHS = 3


class Step(nn.Module):
    """SchNet with its loss, on pairs listed once or on nearest neighbours."""

    def __init__(self, half_list: bool = True, mlp: nn.Module | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = SchNet(16, 12, 2, num_gaussians=8, cutoff=5.0, interaction_graph=KNNInteractionGraph(4, 5.0))
        self.half_list = half_list
        if mlp is not None:
            for block in self.model.interactions:
                block.mlp = block.conv.nn = copy.deepcopy(mlp)

    def forward(self, z: Tensor, pos: Tensor, batch: Tensor, edge_index: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        edges = edge_index if self.half_list else None
        out = self.model(z, pos, batch, edges, num_graphs=NUM_GRAPHS, half_list=self.half_list)
        return out, (out.squeeze(1) - y).square().mean()


def batch_of(num_pairs: int = 9) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    z, batch = torch.tensor([8, 1, 1, 6, 1, 7, 0, 0]), torch.tensor([0, 0, 0, 1, 1, 1, 2, 2])
    pairs = torch.tensor([[1, 2, 2, 4, 5, 5, 6, 7, 7], [0, 0, 1, 3, 3, 4, 6, 6, 7]])[:, :num_pairs]
    return z, 2 * torch.randn(8, 3, generator=generator), batch, pairs, torch.randn(3, generator=generator)


def train(model: nn.Module, **options) -> ipu.CompiledStep:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return popgeo.training_model(model, ipu.Options(**options), optimizer=optimizer)


def count(step: ipu.CompiledStep, target: str) -> int:
    return sum(op.target == target for op in step.bound.runner.usual.runs.ops)


def assert_trains_as_eager(compiled: nn.Module, eager: nn.Module, batch: tuple[Tensor, ...]) -> ipu.CompiledStep:
    """Several steps of both give the same losses and weights."""
    step, optimizer = train(compiled), torch.optim.Adam(eager.parameters(), lr=0.01)
    for _ in range(4):
        _, loss = step(*batch)
        optimizer.zero_grad()
        _, expected = eager(*batch)
        expected.backward()
        optimizer.step()
        assert_close(loss, expected.detach(), rtol=1e-4, atol=1e-5)
    for one, two in zip(compiled.parameters(), eager.parameters(), strict=True):
        assert_close(one, two, rtol=1e-3, atol=1e-4)
    return step


@pytest.mark.parametrize("half_list", [True, False])
def test_a_compiled_step_joins_its_interactions_and_trains_as_eager(half_list):
    step = assert_trains_as_eager(Step(half_list), Step(half_list), batch_of())
    assert [count(step, target) for target in (PLAN, FORWARD, BACKWARD)] == [1, 2, 2]
    assert "2 of 2 interactions in one pass" in repr(step)


@pytest.mark.parametrize(
    "mlp",
    [
        lambda: nn.Sequential(nn.Linear(8, 12, bias=False)),
        lambda: nn.Sequential(nn.Linear(8, 5), nn.SiLU(), nn.Linear(5, 6, bias=False), nn.SiLU(), nn.Linear(6, 12)),
        lambda: nn.Sequential(nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 12)),
        lambda: nn.Sequential(nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 12)),
        lambda: nn.Sequential(nn.Linear(8, 5), nn.Sigmoid(), nn.Linear(5, 12)),
        lambda: nn.Sequential(nn.Linear(8, 5), nn.Softplus(), nn.Linear(5, 12)),
    ],
)
def test_filter_networks_of_several_kinds_are_joined(mlp):
    network = mlp()
    step = assert_trains_as_eager(Step(mlp=network), Step(mlp=network), batch_of())
    assert count(step, FORWARD) == count(step, BACKWARD) == 2


def test_the_captured_graph_holds_each_interaction_whole():
    step = train(Step())
    step(*batch_of())
    targets = [op.target for op in step.graph.ops]
    assert [targets.count(target) for target in (FORWARD, BACKWARD, PLAN, "popgeo.cfconv.default")] == [2, 2, 1, 0]


def test_a_kept_step_runs_as_the_one_that_was_captured(tmp_path):
    results = []
    for _ in range(2):
        step = train(Step(), cache_dir=tmp_path)
        results.append([step(*batch_of())[1] for _ in range(3)])
        assert count(step, FORWARD) == 2
    assert results[0] == results[1]


@pytest.mark.parametrize("half_list", [True, False])
def test_without_the_library_the_definition_runs(half_list):
    with library.without_native():
        step = assert_trains_as_eager(Step(half_list), Step(half_list), batch_of())
        assert count(step, FORWARD) == 0


def test_inference_is_joined_without_a_backward_pass():
    step = popgeo.inference_model(Step())
    expected, _ = Step()(*batch_of())
    assert_close(step(*batch_of())[0], expected.detach(), rtol=1e-5, atol=1e-5)
    assert (count(step, FORWARD), count(step, BACKWARD)) == (2, 0)


def test_checked_arithmetic_runs_every_operation_by_itself():
    step = train(Step(), floating_point_exceptions=True)
    step(*batch_of())
    assert count(step, FORWARD) == 0


class ShowsFilters(nn.Module):
    """An interaction whose filters, or what they are made of, are results too."""

    def __init__(self, shown: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.third, self.shown = nn.Linear(4, 6), nn.Linear(6, 5), nn.Linear(5, 5), shown

    def forward(self, x: Tensor, rows: Tensor, src: Tensor, dst: Tensor) -> tuple[Tensor, Tensor]:
        hidden = torch.tanh(self.first(rows))
        w = self.second(hidden)
        out = cfconv(self.third(x), w, src, dst, 3)
        return {"filters": w, "hidden": hidden, "nothing": out * 2}[self.shown], out.square().sum()


class BellsWithoutCentres(ShowsFilters):
    """Filters of exp(-d^2 / 2), which has the form of a Gaussian but for the difference."""

    def forward(self, x: Tensor, rows: Tensor, src: Tensor, dst: Tensor) -> tuple[Tensor, Tensor]:
        return super().forward(x, torch.exp(-0.5 * rows.pow(2)), src, dst)


@pytest.mark.parametrize(("shown", "joined"), [("filters", 0), ("hidden", 0), ("nothing", 1)])
def test_what_is_used_elsewhere_is_not_joined(shown, joined):
    generator = torch.Generator().manual_seed(0)
    src, dst = torch.randint(3, (2, 10), generator=generator)
    batch = torch.randn(3, 5, generator=generator), torch.randn(10, 4, generator=generator), src, dst
    step = assert_trains_as_eager(ShowsFilters(shown), ShowsFilters(shown), batch)
    assert count(step, FORWARD) == joined
    assert f"{joined} of 1 interactions in one pass" in repr(step)
    assert ("used elsewhere" in repr(step)) == (not joined)


def test_filters_of_what_is_no_gaussian_are_joined_without_it():
    generator = torch.Generator().manual_seed(0)
    src, dst = torch.randint(3, (2, 10), generator=generator)
    batch = torch.randn(3, 5, generator=generator), torch.randn(10, 4, generator=generator), src, dst
    step = assert_trains_as_eager(BellsWithoutCentres("nothing"), BellsWithoutCentres("nothing"), batch)
    assert count(step, FORWARD) == 1


def test_forces_are_right_though_their_graph_is_not_joined():
    class Forces(Step):
        def forward(self, z, pos, batch, edge_index, y):
            edges = {"edge_index": edge_index, "num_graphs": NUM_GRAPHS, "half_list": True}
            energy, forces = energy_and_forces(self.model, z, pos, batch, **edges)
            return energy, energy.squeeze(1).sub(y).square().mean() + forces.square().mean()

    assert_trains_as_eager(Forces(), Forces(), batch_of())


def test_no_edges_and_bad_indices():
    step = popgeo.inference_model(Step())
    z, pos, batch, edges, y = batch_of()
    step(z, pos, batch, edges, y)
    edges = edges.clone()
    edges[0, 2] = 99
    with pytest.raises((ValueError, IndexError)):
        step(z, pos, batch, edges, y)
    empty = popgeo.inference_model(Step())
    expected, _ = Step()(*batch_of(0))
    assert_close(empty(*batch_of(0))[0], expected.detach())


def test_frozen_weights_get_no_gradient_and_the_others_their_own():
    def frozen() -> Step:
        step = Step()
        for block in step.model.interactions:
            block.mlp[0].weight.requires_grad_(False)
            block.mlp[2].bias.requires_grad_(False)
        return step

    step = assert_trains_as_eager(frozen(), frozen(), batch_of())
    assert count(step, BACKWARD) == 2


def test_any_number_of_threads_gives_the_same_bits():
    results = []
    for num_threads in (1, 2, 4):
        torch.set_num_threads(num_threads)
        step = train(Step())
        results.append([step(*batch_of())[1] for _ in range(3)])
    assert results[0] == results[1] == results[2]
