"""Filters on a grid: as exact as filters at each edge, checked while a model changes, given up where they fail."""

import copy

import pytest
import torch
from torch import Tensor, nn

import popgeo
from popgeo.filter_choice import filters_at_each_edge
from popgeo.native import library
from popgeo.nn import PaiNN, PairInteractionGraph, SchNet, energy_and_forces
from popgeo.nn.radial import PolynomialEnvelope
from popgeo.ops import interaction, interaction_call

pytestmark = pytest.mark.skipif(not interaction_call.is_served(), reason="no kernels for this processor")

NUM_GRAPHS, SIZE = 12, 16


def molecules() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    num_atoms = NUM_GRAPHS * SIZE
    return {
        "z": torch.randint(1, 9, (num_atoms,), generator=generator),
        "pos": 5 * torch.rand(num_atoms, 3, generator=generator),
        "batch": torch.arange(NUM_GRAPHS).repeat_interleave(SIZE),
    }


def model_of(kind: type = SchNet, **options) -> nn.Module:
    torch.manual_seed(0)
    graph = PairInteractionGraph(5.0, max_num_nodes=SIZE)
    return kind(24, num_interactions=2, cutoff=5.0, interaction_graph=graph, **options)


def trained_once(model: nn.Module, filters: str, dtype: torch.dtype) -> list[Tensor]:
    """Energies, forces and the gradients of all weights."""
    model = copy.deepcopy(model).to(dtype)
    model.filters = filters
    data = molecules()
    energy, forces = energy_and_forces(model, data["z"], data["pos"].to(dtype), data["batch"], num_graphs=NUM_GRAPHS)
    (energy.square().mean() + forces.square().mean()).backward()
    assert bool(model.filter_points) == (filters == "grid")
    return [energy.detach(), forces.detach(), torch.cat([p.grad.flatten() for p in model.parameters()])]


def error(made: Tensor, exact: Tensor) -> float:
    return float((made.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("kind", [SchNet, PaiNN])
def test_a_grid_is_as_near_to_float64_as_filters_at_each_edge(kind):
    model = model_of(kind)
    exact = trained_once(model, "edges", torch.float64)
    by_edge, on_grid = (trained_once(model, filters, torch.float32) for filters in ("edges", "grid"))
    for one, other, right in zip(on_grid, by_edge, exact, strict=True):
        assert error(one, right) < 2 * error(other, right) + 1e-7
    for one, right in zip(trained_once(model, "grid", torch.float64), exact, strict=True):
        assert error(one, right) < 1e-9


@pytest.mark.parametrize("kind", [SchNet, PaiNN])
def test_a_compiled_step_trains_as_the_eager_one(kind):
    class Step(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model_of(kind)

        def forward(self, z: Tensor, pos: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
            energy, forces = energy_and_forces(self.model, z, pos, batch, num_graphs=NUM_GRAPHS)
            return energy, energy.square().mean() + forces.square().mean()

    losses = []
    for compiles in (False, True):
        step, data = Step(), molecules()
        optimizer = torch.optim.Adam(step.parameters(), lr=1e-3)
        run = popgeo.compile_step(step, optimizer) if compiles else step
        made = []
        for _ in range(4):
            loss = run(**data)[1]
            if not compiles:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            made.append(float(loss.detach()))
        losses.append(made)
    assert losses[0] == pytest.approx(losses[1], rel=2e-5)
    assert "2 of 2 interactions with filters on a grid" in repr(run)


def test_networks_that_are_not_smooth_run_at_each_edge_and_say_so():
    model = model_of()
    for block in model.interactions:
        block.mlp[1] = nn.ReLU()
    model(**molecules(), num_graphs=NUM_GRAPHS)
    assert model.filter_points is None
    assert "filters at each edge" in repr(model)


@pytest.mark.parametrize("part", [nn.Dropout(0.5), nn.BatchNorm1d(24)])
def test_networks_that_see_all_edges_run_at_each_edge(part):
    model = model_of(SchNet, num_filters=24)
    model.interactions[0].mlp.append(part)
    model(**molecules(), num_graphs=NUM_GRAPHS)
    assert model.filter_points is None


def test_hooks_on_a_filter_network_are_called_for_edges():
    model, seen = model_of(), []
    model.interactions[0].mlp.register_forward_hook(lambda _module, args, _out: seen.append(len(args[0])))
    model(**molecules(), num_graphs=NUM_GRAPHS)
    assert len(seen) == 1
    assert seen[0] >= NUM_GRAPHS * SIZE * (SIZE - 1) // 2


def test_a_grid_is_refined_as_filters_become_steep():
    model, data = model_of(), molecules()
    model(**data, num_graphs=NUM_GRAPHS)
    coarse = model.filter_points
    with torch.no_grad():
        for block in model.interactions:
            block.mlp[0].weight *= 12
    model.refine_filters()
    assert model.filter_points is None or model.filter_points > coarse
    on_grid = model(**data, num_graphs=NUM_GRAPHS)
    with filters_at_each_edge():
        assert torch.allclose(on_grid, model(**data, num_graphs=NUM_GRAPHS), rtol=1e-5)


def test_a_compiled_step_refines_its_grid_and_is_compiled_again():
    model, data = model_of(), molecules()
    predict = popgeo.compile_forward(model.eval())
    predict(**data, num_graphs=NUM_GRAPHS)
    coarse = model.filter_points
    with torch.no_grad():
        for block in model.interactions:
            block.mlp[0].weight *= 12
    for _ in range(201):
        made = predict(**data, num_graphs=NUM_GRAPHS)
    assert model.filter_points is None or model.filter_points > coarse
    with filters_at_each_edge():
        assert torch.allclose(made, model(**data, num_graphs=NUM_GRAPHS), rtol=1e-5)


def test_a_few_edges_do_not_use_a_grid():
    model, data = model_of(), molecules()
    few = {name: t[:SIZE] for name, t in data.items()}
    with filters_at_each_edge():
        expected = model(**few, num_graphs=1)
    assert torch.equal(model(**few, num_graphs=1), expected)


def test_a_cutoff_that_changes_and_learnable_gaussians_are_followed():
    model, data = model_of(SchNet, envelope=PolynomialEnvelope(4.0)), molecules()
    centres = model.distance_expansion.offset
    del model.distance_expansion.offset
    model.distance_expansion.offset = nn.Parameter(centres)
    gradients = []
    for filters in ("grid", "edges"):
        model.filters = filters
        model.zero_grad()
        model(**data, num_graphs=NUM_GRAPHS).sum().backward()
        gradients.append(model.distance_expansion.offset.grad.clone())
    assert error(*gradients) < 1e-4
    model.cutoff, model.filters = 4.0, "grid"
    shorter = model(**data, num_graphs=NUM_GRAPHS)
    with filters_at_each_edge():
        assert torch.allclose(shorter, model(**data, num_graphs=NUM_GRAPHS), rtol=1e-5)


def test_autocast_checkpoints_and_functional_calls_give_what_edges_give():
    model, data = model_of(), molecules()
    with filters_at_each_edge():
        expected = model(**data, num_graphs=NUM_GRAPHS)
    again = torch.utils.checkpoint.checkpoint(lambda: model(**data, num_graphs=NUM_GRAPHS), use_reentrant=False)
    assert torch.allclose(again, expected, rtol=1e-5)
    called = torch.func.functional_call(
        model, dict(model.named_parameters()), kwargs={**data, "num_graphs": NUM_GRAPHS}
    )
    assert torch.allclose(called, expected, rtol=1e-5)
    with torch.autocast("cpu", torch.bfloat16):
        made = model(**data, num_graphs=NUM_GRAPHS)
        with filters_at_each_edge():
            assert torch.equal(made, model(**data, num_graphs=NUM_GRAPHS))


def test_without_kernels_networks_run_at_each_edge():
    model, data = model_of(), molecules()
    on_grid = model(**data, num_graphs=NUM_GRAPHS)
    with library.without_native():
        assert torch.allclose(model(**data, num_graphs=NUM_GRAPHS), on_grid, rtol=1e-5)


def test_an_unknown_choice_is_refused():
    with pytest.raises(ValueError, match="filters is 'table'; it must be one of 'grid', 'edges'"):
        model_of(filters="table")


def test_a_machine_accounts_for_filters_at_each_edge():
    model, data = model_of(), molecules()
    predict = popgeo.inference_model(model.eval())
    made = predict(**data, num_graphs=NUM_GRAPHS)
    assert torch.allclose(made, model(**data, num_graphs=NUM_GRAPHS), rtol=1e-5)
    assert "on a grid" in repr(predict)
    other = popgeo.inference_model(model_of(filters="edges").eval())
    other(**data, num_graphs=NUM_GRAPHS)
    assert predict.report.total_cycles == other.report.total_cycles


@pytest.mark.parametrize("cutoff", [4.7, 5.1, 3.3])
def test_absent_edges_carry_nothing_whatever_the_cutoff_rounds_to(cutoff):
    """Their distance is the cutoff in float32, which may be less than the number that Python has."""
    table = torch.ones(33, 4, dtype=torch.float64)
    x = torch.tensor([[torch.nan] * 4, [1.0] * 4])
    src, dst = torch.tensor([0, 1]), torch.tensor([1, 0])
    r = torch.where(torch.tensor([False, True]), 1.0, torch.tensor(cutoff, dtype=torch.float32))
    torch.testing.assert_close(interaction(x, table, r, src, dst, 2, cutoff), torch.tensor([[1.0] * 4, [0.0] * 4]))


def test_calling_a_model_does_not_make_it_a_different_one_for_its_compiled_step(tmp_path):
    model, data = model_of().eval(), molecules()
    predict = popgeo.compile_forward(model, options=popgeo.StepOptions(cache_dir=tmp_path))
    predict(**data, num_graphs=NUM_GRAPHS)
    bound = predict.bound
    for _ in range(3):
        model(**data, num_graphs=NUM_GRAPHS)
        predict(**data, num_graphs=NUM_GRAPHS)
    assert predict.bound is bound
    again = popgeo.compile_forward(model, options=popgeo.StepOptions(cache_dir=tmp_path))
    again(**data, num_graphs=NUM_GRAPHS)
    assert len(list(tmp_path.iterdir())) == 1


def test_a_model_of_atoms_without_filter_networks_is_compiled():
    class Counts(SchNet):
        def filter_networks(self) -> None:
            return None

    model, data = Counts(24, 24, 1, cutoff=5.0), molecules()
    assert torch.allclose(
        popgeo.compile_forward(model.eval())(**data, num_graphs=NUM_GRAPHS), model(**data, num_graphs=NUM_GRAPHS)
    )
