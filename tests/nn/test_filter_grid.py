"""Filters on a grid: as exact as filters at each edge, checked when a model changes, and not used if inexact."""

import copy
from collections.abc import Callable

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
    """Return energies, forces and the gradients of all weights."""
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
    """Give absent edges the cutoff in float32, which may be smaller than Python's number."""
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


def in_networks(model: nn.Module, act: Callable[[nn.Sequential], object]) -> None:
    for block in model.interactions:
        act(block.mlp)


def scaled(model: nn.Module, factor: float) -> dict[str, Tensor]:
    return {name: factor * t if "mlp.0" in name or "nn.0" in name else t for name, t in model.state_dict().items()}


@torch.no_grad()
def steepen(network: nn.Sequential) -> None:
    network[0].weight *= 40


CHANGES: dict[str, Callable[[nn.Module], object]] = {
    "ReLU": lambda m: in_networks(m, lambda one: one.__setitem__(1, nn.ReLU())),
    "a steep Softplus": lambda m: in_networks(m, lambda one: one.__setitem__(1, nn.Softplus(50.0))),
    "weights in place": lambda m: in_networks(m, steepen),
    "weights behind torch's back": lambda m: in_networks(m, lambda one: one[0].weight.data.numpy().__imul__(40)),
    "weights in other memory": lambda m: in_networks(
        m, lambda one: setattr(one[0].weight, "data", 40 * one[0].weight.data)
    ),
    "a loaded state": lambda m: m.load_state_dict(scaled(m, 40.0)),
    "an assigned state": lambda m: m.load_state_dict(scaled(m, 40.0), assign=True),
    "a smaller cutoff": lambda m: setattr(m, "cutoff", 3.0),
    "steeper Gaussians": lambda m: setattr(m.distance_expansion, "coeff", 60 * m.distance_expansion.coeff),
    "an envelope in its place": lambda m: setattr(m.envelope, "cutoff", 2.5),
    "a forward of one network": lambda m: setattr(
        m.interactions[0].mlp, "forward", lambda rows: rows.new_full((len(rows), 128), len(rows) / 5000)
    ),
}


class Forces(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, z: Tensor, pos: Tensor, batch: Tensor) -> Tensor:
        return energy_and_forces(self.model, z, pos, batch, num_graphs=NUM_GRAPHS)[1]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("is_compiled", [False, True])
def test_the_grid_is_checked_in_the_call_after_a_change(change: str, is_compiled: bool):
    model, data = model_of(), molecules()
    run = popgeo.compile_forward(Forces(model)) if is_compiled else Forces(model)
    run(**data)
    CHANGES[change](model)
    on_grid = run(**data).detach()
    with filters_at_each_edge():
        assert error(on_grid, Forces(model)(**data).detach().double()) < 1e-5


@pytest.mark.parametrize("buffer", [torch.zeros(1).long(), torch.ones(2, dtype=torch.bool), torch.zeros(0)])
@pytest.mark.parametrize("is_compiled", [False, True])
def test_networks_may_have_buffers_of_every_type(buffer: Tensor, is_compiled: bool):
    model, data = model_of(), molecules()
    model.interactions[0].mlp.register_buffer("count", buffer)
    run = popgeo.compile_forward(Forces(model)) if is_compiled else Forces(model)
    assert torch.equal(run(**data), run(**data))
    assert model.filter_points


def test_networks_with_a_norm_over_edges_run_at_each_edge():
    model, data = model_of(), molecules()
    model.interactions[0].mlp.append(nn.BatchNorm1d(model.interactions[0].mlp[-1].out_features))
    for _ in range(2):
        assert model(**data, num_graphs=NUM_GRAPHS).isfinite().all()
    assert model.filter_points is None


def test_a_hook_on_all_modules_is_called_for_edges():
    model, rows = model_of(), []
    model(**molecules(), num_graphs=NUM_GRAPHS)
    hook = nn.modules.module.register_module_forward_hook(
        lambda module, args, _out: rows.append(len(args[0])) if module is model.interactions[0].mlp else None
    )
    try:
        model(**molecules(), num_graphs=NUM_GRAPHS)
    finally:
        hook.remove()
    assert rows
    assert rows[0] >= NUM_GRAPHS * SIZE * (SIZE - 1) // 2


def test_small_updates_do_not_check_the_grid_again(monkeypatch):
    model, checks = model_of(), []
    check = SchNet.refine_filters
    monkeypatch.setattr(SchNet, "refine_filters", lambda self: [checks.append(1), check(self)])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(4):
        model(**molecules(), num_graphs=NUM_GRAPHS).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert len(checks) == 1


@pytest.mark.parametrize("kind", [SchNet, PaiNN])
def test_torch_func_differentiates_a_model_whose_filters_were_on_a_grid(kind):
    model, data = model_of(kind), molecules()
    model(**data, num_graphs=NUM_GRAPHS)

    def energy(pos: Tensor) -> Tensor:
        return model(data["z"], pos, data["batch"], num_graphs=NUM_GRAPHS).sum()

    expected = torch.autograd.functional.jacobian(energy, data["pos"])
    by_hand, backward = torch.func.grad(energy)(data["pos"]), torch.func.vjp(energy, data["pos"])[1]
    for made in (by_hand, backward(torch.ones(()))[0], torch.func.vmap(torch.func.grad(energy))(data["pos"][None])[0]):
        assert error(made.detach(), expected.double()) < 1e-5
    with pytest.raises(ValueError, match=r"torch.func.jacrev\(torch.func.jacrev\(f\)\)"):
        torch.func.hessian(energy)(data["pos"])
