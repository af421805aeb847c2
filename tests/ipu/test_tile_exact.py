"""The program of a step gives the engine's results with separate memories of tiles, so it is complete."""

import pytest
import torch
from torch import Tensor, nn, optim

from popgeo import ops
from popgeo.ipu import IpuTarget, Options, TileExact, compile, inference_model, training_model
from popgeo.nn import GIN, SchNet
from tests.support.check_program import check

NODES, EDGES, GRAPHS = 16, 40, 4
SMALL = IpuTarget(name="small", num_tiles=8, memory_per_tile=2**20, clock=1e9, float32_macs=16, float16_macs=64)


class Energies(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = SchNet(hidden_channels=8, num_filters=8, num_interactions=1, num_gaussians=6, max_num_neighbors=3)

    def forward(self, z, pos, edge_index, batch, y):
        energy = self.net(z, pos, batch, num_graphs=GRAPHS).squeeze(-1)
        return energy, (energy - y).abs().mean()


class Classes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = GIN(3, 8, num_layers=1, out_channels=1, jk="last", norm="batch_norm", train_eps=True)

    def forward(self, z, pos, edge_index, batch, y):
        mask = torch.arange(NODES) < NODES - 3
        out = self.net(pos, edge_index, nodes_mask=mask)
        out = ops.global_mean_pool(out, batch, GRAPHS).squeeze(-1)
        return out, (out - y).square().mean()


def make_batch(seed: int, dtype: torch.dtype = torch.float64, copies: int = 1) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    many = {
        "z": torch.randint(1, 9, (NODES * copies,), generator=generator),
        "pos": 2 * torch.randn(NODES * copies, 3, generator=generator, dtype=dtype),
        "edge_index": torch.randint(0, NODES, (2 * copies, EDGES), generator=generator),
        "batch": (torch.arange(NODES) * GRAPHS // NODES).repeat(copies),
        "y": torch.randn(GRAPHS * copies, generator=generator, dtype=dtype),
    }
    return many


def make_step(kind: type[nn.Module], dtype: torch.dtype):
    torch.manual_seed(0)
    model = kind().to(dtype)
    step = training_model(model, optimizer=optim.Adam(model.parameters(), lr=1e-2))
    return step.compile(**make_batch(0, dtype))


def assert_same_state(exact: TileExact, model: nn.Module, **tolerance: float) -> None:
    held = exact.state_dict()
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        torch.testing.assert_close(held[name], tensor.detach(), **tolerance)


def test_two_steps_of_adam_on_tiles_equal_those_of_the_fast_engine():
    step = make_step(Classes, torch.float64)
    exact = TileExact(step, SMALL)
    for seed in range(2):
        torch.testing.assert_close(exact(**make_batch(seed)), step(**make_batch(seed)), rtol=1e-9, atol=1e-9)
    assert_same_state(exact, step.model, rtol=1e-9, atol=1e-9)
    assert exact.program.fallbacks == ()
    check(exact.program)


NORMS = {"batch norm": nn.BatchNorm1d(4), "group norm": nn.GroupNorm(2, 4), "layer norm": nn.LayerNorm(4)}


@pytest.mark.parametrize("layer", NORMS.values(), ids=NORMS)
def test_a_norm_of_an_argument_trains_on_tiles(layer):
    model = Squares(nn.Sequential(layer, nn.Tanh())).double()
    x = torch.randn(6, 4, dtype=torch.float64)
    step = training_model(model, optimizer=optim.SGD(model.parameters(), lr=0.1)).compile(x)
    exact = TileExact(step, SMALL)
    torch.testing.assert_close(exact(x), step(x), rtol=1e-9, atol=1e-9)
    assert_same_state(exact, model, rtol=1e-9, atol=1e-9)


def test_single_precision_is_as_close_as_adding_in_another_order_allows():
    step = make_step(Energies, torch.float32)
    exact = TileExact(step, SMALL)
    batch = make_batch(1, torch.float32)
    torch.testing.assert_close(exact(**batch), step(**batch), rtol=1e-4, atol=1e-5)
    assert_same_state(exact, step.model, rtol=1e-3, atol=1e-4)


OPTIONS = {
    "sum and scaling": Options(
        device_iterations=2, gradient_accumulation=2, output_mode="all", reduction="sum", loss_scaling=8.0
    ),
    "replicas": Options(replication_factor=2, gradient_accumulation=2, device_iterations=2, output_mode="all"),
    "clipped": Options(max_grad_norm=0.01, output_mode="every_n"),
}


class Squares(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x).square().mean()


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_repeats_accumulation_and_clipping_equal_the_fast_engine(options):
    torch.manual_seed(0)
    model = Squares(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))).double()
    step = training_model(model, options, optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True))
    batches = torch.randn(2, options.batch_factor * 6, 4, dtype=torch.float64)
    exact = TileExact(step.compile(batches[0]), SMALL)
    for x in batches:
        torch.testing.assert_close(exact(x), step(x), rtol=1e-9, atol=1e-9)
    assert_same_state(exact, model, rtol=1e-9, atol=1e-9)


VIEWS = {
    "conjugates": lambda x: x.conj() * 2,
    "a conjugated product": lambda x: x @ x.mH,
    "changed in place": lambda x: x.clone().conj().add_(1j),
    "negatives": lambda x: x.conj().imag + 1,
    "an inverse transform": lambda x: torch.fft.ifft(x.abs()),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_a_view_of_conjugates_or_negatives_is_refused(view):
    x = torch.randn(4, 4, dtype=torch.complex64)
    step = compile(view, [x])
    torch.testing.assert_close(step(x), view(x))
    with pytest.raises(ValueError, match=r"conj_physical\(\)"):
        TileExact(step, SMALL)(x)


DRAWS = {
    "dropout": lambda x, w: torch.dropout(x * w, 0.5, True),
    "like a transposed tensor": lambda x, w: torch.rand_like(w.t()) + x.t(),
    "in place": lambda x, w: (x * w).exponential_(),
    "in place on a view": lambda x, w: (x * w).t()[1:].normal_(),
    "probabilities": lambda x, w: torch.bernoulli((x * w).sigmoid()),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_random_numbers_are_drawn_in_the_order_of_memory(draw):
    x, w = torch.randn(6, 4).t(), torch.randn(4, 6)
    step = compile(draw, [x, w])
    torch.manual_seed(3)
    exact = TileExact(step, SMALL)(x, w)
    torch.manual_seed(3)
    expected = draw(x, w)
    torch.manual_seed(3)
    torch.testing.assert_close([exact, step(x, w)], [expected] * 2)


def test_a_change_of_an_expanded_argument_is_refused():
    step = compile(lambda x: x.add_(1) + 0, [torch.zeros(3, 2)])
    with pytest.raises(ValueError, match="share their place in memory"):
        TileExact(step, SMALL)(torch.zeros(1, 2).expand(3, 2))


def test_the_program_reads_like_the_machine_runs_it():
    options = Options(device_iterations=2, gradient_accumulation=3)
    model = nn.Linear(4, 1)
    step = training_model(Squares(model), options, optim.SGD(model.parameters(), lr=0.1))
    step.compile(torch.ones(6 * 5, 4))
    exact = TileExact(step, SMALL)
    exact(torch.randn(6 * 5, 4))
    lines = str(exact.program).splitlines()
    heads = [line for line in lines if "repeat" in line or "host" in line]
    assert heads == [
        "repeat 2 (device iterations):",
        "  repeat 3 (gradient accumulation):",
        "    host in: input:x",
        "    host out: result:s5",
        "  host in: numbers",
    ]


def test_training_goes_on_from_the_state_that_the_model_has():
    model = Squares(nn.Linear(4, 2)).double()
    step = training_model(model, optimizer=optim.RAdam(model.parameters(), lr=0.1))
    batches = torch.randn(9, 6, 4, dtype=torch.float64)
    for x in batches[:3]:
        step(x)
    exact = TileExact(step, SMALL)
    losses = [step(x) for x in batches[3:]]  # RAdam changes its rule with the sixth update
    for x, loss in zip(batches[3:], losses, strict=True):
        torch.testing.assert_close(exact(x), loss, rtol=1e-9, atol=1e-9)
    assert_same_state(exact, model, rtol=1e-9, atol=1e-9)


def test_numbers_that_fill_a_tensor_are_those_of_each_update():
    torch.manual_seed(0)
    model = Squares(nn.Linear(4, 2)).double()
    step = training_model(model, optimizer=optim.Rprop(model.parameters(), lr=0.1))
    batches = torch.randn(4, 6, 4, dtype=torch.float64)
    exact = TileExact(step.compile(batches[0]), SMALL)
    for x in batches:
        torch.testing.assert_close(exact(x), step(x), rtol=1e-9, atol=1e-9)
    assert_same_state(exact, model, rtol=1e-9, atol=1e-9)
    check(exact.program)


def test_weights_may_lie_in_any_order_in_memory():
    torch.manual_seed(0)
    linear = nn.Linear(4, 8)
    linear.weight = nn.Parameter(torch.randn(4, 8).t())
    model = Squares(linear).double()
    assert not linear.weight.is_contiguous()
    step = training_model(model, optimizer=optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    batches = torch.randn(3, 6, 4, dtype=torch.float64)
    exact = TileExact(step.compile(batches[0]), SMALL)
    for x in batches:
        torch.testing.assert_close(exact(x), step(x), rtol=1e-9, atol=1e-9)
    assert_same_state(exact, model, rtol=1e-9, atol=1e-9)


class ReturnsItsWeight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.linear(x).square().mean(), self.linear.weight


def test_a_weight_may_be_among_the_results():
    torch.manual_seed(0)
    model = ReturnsItsWeight().double()
    step = training_model(model, optimizer=optim.SGD(model.parameters(), lr=0.1))
    x = torch.randn(6, 4, dtype=torch.float64)
    exact = TileExact(step.compile(x), SMALL)
    for _ in range(2):
        torch.testing.assert_close(exact(x), step(x), rtol=1e-9, atol=1e-9)


def test_dropout_draws_the_same_numbers():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1)).double()
    step = inference_model(model.train(), Options(replication_factor=2))
    x = torch.randn(10, 4, dtype=torch.float64)
    step.compile(x)
    exact = TileExact(step, SMALL)
    torch.testing.assert_close(exact(x), step(x))


def test_an_operation_that_no_lowering_knows_runs_on_one_tile_and_is_listed():
    x = torch.randn(6, 6, dtype=torch.float64)
    inverse = compile(lambda x: torch.linalg.inv(x), [x])
    exact = TileExact(inverse, SMALL)
    torch.testing.assert_close(exact(x), inverse(x))
    assert exact.program.fallbacks == ("aten.linalg_inv_ex.default", "aten._linalg_check_errors.default")


def test_what_cannot_run_on_tiles_is_refused():
    model = nn.Linear(4, 1)
    with pytest.raises(ValueError, match="not been compiled"):
        TileExact(inference_model(model))
    step = training_model(Squares(model), optimizer=optim.Adafactor(model.parameters())).compile(torch.ones(5, 4))
    with pytest.raises(ValueError, match="Adafactor looks at whole rows"):
        TileExact(step)
