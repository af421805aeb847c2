"""Filters on a grid in steps captured as CUDA graphs: the same choice as on a processor, and no wait for the device."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import popgeo
from popgeo.engine.backend import Backend
from popgeo.engine.compiled_step import CompiledStep
from popgeo.engine.replicas import Replicas
from popgeo.engine.step_recipe import Recipe
from popgeo.filter_choice import filters_at_each_edge
from popgeo.nn import PaiNN, PairInteractionGraph, SchNet, energy_and_forces
from popgeo.ops import interaction_on_device, sum_on_device
from popgeo.ops.interaction_call import InteractionCall
from tests.support.fake_cuda import FakeCuda, FakeGraph, NoWaits

NUM_GRAPHS, SIZE = 12, 16


@pytest.fixture
def triton(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """Choose for tensors in memory as for those of a GPU with Triton; the definition computes interactions."""
    monkeypatch.setattr(sum_on_device, "serves", torch.Tensor.is_floating_point)
    monkeypatch.setattr(sum_on_device, "triton_kernels", SimpleNamespace)
    monkeypatch.setattr(interaction_on_device, "serves", lambda call: False)
    monkeypatch.setattr(InteractionCall, "is_served", lambda call: False)
    return cuda


class Step(nn.Module):
    """The loss of energies and forces."""

    def __init__(self, kind: type = SchNet) -> None:
        super().__init__()
        torch.manual_seed(0)
        graph = PairInteractionGraph(5.0, max_num_nodes=SIZE)
        self.model = kind(8, num_interactions=1, cutoff=5.0, interaction_graph=graph)

    def forward(self, z: Tensor, pos: Tensor, batch: Tensor) -> Tensor:
        energy, forces = energy_and_forces(self.model, z, pos, batch, num_graphs=NUM_GRAPHS)
        return energy.square().mean() + forces.square().mean()


def molecules(num_graphs: int = NUM_GRAPHS) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    num_atoms = num_graphs * SIZE
    return {
        "z": torch.randint(1, 9, (num_atoms,), generator=generator),
        "pos": 5 * torch.rand(num_atoms, 3, generator=generator),
        "batch": torch.arange(num_graphs).repeat_interleave(SIZE),
    }


def interactions(graph: FakeGraph) -> int:
    return sum(func._schema.name.startswith("popgeo::interaction") for func, *_ in graph.ops)


def compiled(step: Step):
    return popgeo.compile_step(step, torch.optim.SGD(step.parameters(), lr=1e-4), backend="cuda")


@pytest.mark.parametrize("kind", [SchNet, PaiNN])
def test_a_captured_step_trains_with_filters_on_a_grid_and_later_calls_wait_for_nothing(triton: FakeCuda, kind: type):
    step, twin, data = Step(kind), Step(kind), molecules()
    run, optimizer = compiled(step), torch.optim.SGD(twin.parameters(), lr=1e-4)
    for number in range(7):
        optimizer.zero_grad()
        with filters_at_each_edge():
            expected = twin(**data)
        expected.backward()
        optimizer.step()
        if number < 5:  # the first call after the capture makes the place for answers
            loss = run(**data)
        else:
            with NoWaits():
                loss = run(**data)
        torch.testing.assert_close(loss, expected.detach(), rtol=2e-5, atol=0)
    assert step.model.filter_points
    assert [interactions(graph) > 3 for graph in triton.graphs] == [True]


def test_few_edges_run_their_networks_at_each_edge(triton: FakeCuda):
    step, data = Step(), molecules(num_graphs=2)
    run = compiled(step)
    for _ in range(5):
        run(**data)
    assert [interactions(graph) for graph in triton.graphs] == [0]


def test_weights_that_others_change_are_checked_at_once_and_steps_own_changes_later(triton: FakeCuda):
    step, data = Step(), molecules()
    run = compiled(step)
    for _ in range(5):
        run(**data)
    weight, points = step.model.interactions[0].mlp[0].weight, step.model.filter_points
    weight.data.numpy().__imul__(40)  # as a replay changes it: unseen by torch
    for _ in range(2):
        with NoWaits():
            run(**data)
    assert (step.model.filter_points, len(triton.graphs)) == (points, 1)
    run(**data)  # reads the answer of the call before the last one
    assert step.model.filter_points != points
    with torch.no_grad():
        weight /= 40
    step.model.filter_points, run = 0, compiled(step)
    for _ in range(5):
        run(**data)
    assert step.model.filter_points == points
    with torch.no_grad():
        weight *= 40
    run(**data)
    assert step.model.filter_points != points


def test_calls_of_several_processes_wait_for_nothing_either(triton: FakeCuda, tmp_path: Path):
    # A group of one process, whose sum is its own gradient; the step takes it for one of two processes.
    dist.init_process_group("gloo", f"file://{tmp_path / 'meeting'}", world_size=1, rank=0)
    try:
        step, data, options = Step(), molecules(), popgeo.StepOptions(replication_factor=2)
        optimizer = torch.optim.SGD(step.parameters(), lr=1e-4)
        recipe = Recipe(function=step, optimizer=optimizer, options=options, backend=Backend.CUDA)
        run = CompiledStep(recipe, Replicas((0,), 2))
        for number in range(7):
            with torch.no_grad():
                step.model.lin1.weight.mul_(1)  # as one process alone may do for an evaluation with other weights
            with NoWaits() if number > 4 else nullcontext():
                run(**data)
    finally:
        dist.destroy_process_group()
    assert step.model.filter_points


def test_the_graph_of_somebody_else_runs_networks_at_each_edge_because_nobody_checks_its_grid(triton: FakeCuda):
    model, data, graph = Step().model, molecules(), triton.CUDAGraph()
    model(**data, num_graphs=NUM_GRAPHS)
    assert model.filter_points
    with torch.no_grad(), triton.graph(graph, triton.Stream("cuda:0"), "thread_local"):
        model(**data, num_graphs=NUM_GRAPHS)
    assert interactions(graph) == 0


def test_a_wait_in_a_capture_is_an_error_that_names_the_line(cuda: FakeCuda):
    class Waits(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            if cuda.is_capturing:
                x = x[x > 0].view(1, -1)
            return super().forward(x).sum()

    model = Waits(2, 1)
    run = popgeo.compile_step(model, torch.optim.SGD(model.parameters(), lr=0.1), backend="cuda")
    for _ in range(3):
        run(torch.ones(1, 2))
    with pytest.raises(ValueError, match=r"x\[x > 0\].*cannot be part of a captured step"):
        run(torch.ones(1, 2))
