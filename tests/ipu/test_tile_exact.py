"""A program is complete: run with the memory of each tile apart, it gives what the fast engine gives."""

import dataclasses
import functools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn, optim

from popgeo import ops
from popgeo.capture.capture import bind, capture
from popgeo.capture.op_graph import OpGraph
from popgeo.ipu import IpuTarget, Options, TileExact, compile, inference_model, training_model
from popgeo.ipu.cost.graph_cost import cost
from popgeo.ipu.tiles.graph_program import schedule
from popgeo.ipu.tiles.program import ComputeSet, Exchange, Program
from popgeo.ipu.tiles.run_program import run_program
from popgeo.ipu.tiles.tile_mapping import from_holders
from popgeo.ipu.tiles.tile_memory import TileMemory
from popgeo.nn import GCN, GIN, SchNet
from tests.support.program_rules import (
    assert_each_element_is_on_one_tile,
    assert_nobody_reads_what_another_writes,
    assert_vertices_touch_only_their_tile,
)

NODES, EDGES, GRAPHS = 16, 40, 4
SMALL = IpuTarget(name="small", num_tiles=8, memory_per_tile=2**20, clock=1e9, float32_macs=16, float16_macs=64)


class Energies(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = SchNet(hidden_channels=8, num_filters=8, num_interactions=2, num_gaussians=6, max_num_neighbors=3)

    def forward(self, z, pos, edge_index, batch, y):
        energy = self.net(z, pos, batch, num_graphs=GRAPHS).squeeze(-1)
        return energy, (energy - y).abs().mean()


class Classes(nn.Module):
    def __init__(self, kind: type[nn.Module], **settings) -> None:
        super().__init__()
        self.net = kind(3, 8, num_layers=2, out_channels=1, norm="batch_norm", **settings)

    def forward(self, z, pos, edge_index, batch, y):
        mask = torch.arange(NODES) < NODES - 3
        out = self.net(pos, edge_index, nodes_mask=mask)
        out = ops.global_mean_pool(out, batch, GRAPHS).squeeze(-1)
        return out, (out - y).square().mean()


MODELS: dict[str, Callable[[], nn.Module]] = {
    "schnet": Energies,
    "gcn": lambda: Classes(GCN),
    "gin": lambda: Classes(GIN, train_eps=True),
}


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


def make_step(name: str, dtype: torch.dtype = torch.float64):
    torch.manual_seed(0)
    model = MODELS[name]().to(dtype)
    step = training_model(model, optimizer=optim.Adam(model.parameters(), lr=1e-2))
    return step.compile(**make_batch(0, dtype))


def assert_same_state(exact: TileExact, model: nn.Module, **tolerance: float) -> None:
    held = exact.state_dict()
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        torch.testing.assert_close(held[name], tensor.detach(), **tolerance)


@functools.cache
def trained(name: str) -> tuple[TileExact, nn.Module, list[tuple[object, object]]]:
    """Three steps on tiles and by the fast engine: the former, the latter's model, and what each step returned."""
    step = make_step(name)
    exact = TileExact(step, SMALL)
    results = [(exact(**make_batch(seed)), step(**make_batch(seed))) for seed in range(3)]
    return exact, step.model, results


@pytest.mark.parametrize("name", MODELS)
def test_training_on_tiles_equals_the_fast_engine(name):
    exact, model, results = trained(name)
    for on_tiles, expected in results:
        torch.testing.assert_close(on_tiles, expected, rtol=1e-9, atol=1e-9)
    assert_same_state(exact, model, rtol=1e-9, atol=1e-9)
    assert exact.program.fallbacks == ()


@pytest.mark.parametrize("name", MODELS)
def test_programs_obey_the_machine(name):
    program = trained(name)[0].program
    assert_each_element_is_on_one_tile(program)
    assert_vertices_touch_only_their_tile(program)
    assert_nobody_reads_what_another_writes(program)


def test_single_precision_is_as_close_as_adding_in_another_order_allows():
    step = make_step("schnet", torch.float32)
    exact = TileExact(step, SMALL)
    batch = make_batch(1, torch.float32)
    torch.testing.assert_close(exact(**batch), step(**batch), rtol=1e-4, atol=1e-5)
    assert_same_state(exact, step.model, rtol=1e-3, atol=1e-4)


OPTIONS = {
    "iterations": Options(device_iterations=2, gradient_accumulation=2, output_mode="all"),
    "sum and scaling": Options(gradient_accumulation=2, reduction="sum", loss_scaling=8.0),
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
    batches = torch.randn(3, options.batch_factor * 6, 4, dtype=torch.float64)
    exact = TileExact(step.compile(batches[0]), SMALL)
    for x in batches:
        torch.testing.assert_close(exact(x), step(x), rtol=1e-9, atol=1e-9)
    assert_same_state(exact, model, rtol=1e-9, atol=1e-9)


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
    losses = [step(x) for x in batches[3:]]  # RAdam takes another path from its sixth update on
    for x, loss in zip(batches[3:], losses, strict=True):
        torch.testing.assert_close(exact(x), loss, rtol=1e-9, atol=1e-9)
    assert_same_state(exact, model, rtol=1e-9, atol=1e-9)


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
    assert exact.program.fallbacks == ("aten.linalg_inv_ex.default",)


def test_what_cannot_run_on_tiles_is_refused():
    model = nn.Linear(4, 1)
    with pytest.raises(ValueError, match="not been compiled"):
        TileExact(inference_model(model))
    step = training_model(Squares(model), optimizer=optim.Adafactor(model.parameters())).compile(torch.ones(5, 4))
    with pytest.raises(ValueError, match="Adafactor looks at whole rows"):
        TileExact(step)


def scheduled(function, *inputs: Tensor, split: dict[str, int] | None = None) -> tuple[OpGraph, Program]:
    """The program of a function, with another division of each operation than its plan's if one is given."""
    graph = capture(function, bind(function, *inputs)).graph
    costs = cost(graph, SMALL)
    if split is not None:
        family = "matmul" if "contraction" in split else "gather"
        costs = [dataclasses.replace(c, plan=dataclasses.replace(c.plan, family=family, split=split)) for c in costs]
    return graph, schedule(graph, costs, SMALL)


def run(graph: OpGraph, program: Program, *inputs: Tensor) -> list[Tensor]:
    given = dict(zip(map(str, graph.inputs), inputs, strict=True))
    made: dict[str, Tensor] = {}

    def host_out(stream: str, replica: int, values: Tensor) -> None:
        made[stream] = values

    run_program(program, [TileMemory(program.num_tiles)], lambda stream, replica: given[stream].reshape(-1), host_out)
    outputs = [graph.values[v] for v in graph.outputs if v is not None]
    return [made[f"output:{k}"].as_strided(v.shape, v.stride, v.offset) for k, v in enumerate(outputs)]


X, Y = torch.randn(11, 9, dtype=torch.float64), torch.randn(9, 7, dtype=torch.float64)
INDEX, INTO = torch.randint(0, 11, (23,)), torch.randint(0, 13, (23,))
W = torch.randn(23, 9, dtype=torch.float64)
ROWS = {
    "index_select": (lambda x, i, j, w: x.index_select(0, i),),
    "columns": (lambda x, i, j, w: x.t().index_select(1, i),),
    "gather": (lambda x, i, j, w: ops.gather(x, i),),
    "index_add": (lambda x, i, j, w: x.index_add(0, i, w, alpha=0.5),),
    "in place": (lambda x, i, j, w: x.clone().index_add_(0, i, w),),
    "scatter": (lambda x, i, j, w: ops.scatter(w, j, dim=0, dim_size=13),),
    "scatter product": (lambda x, i, j, w: ops.scatter(w, j, dim=0, dim_size=13, reduce="mul"),),
    "scatter maximum": (lambda x, i, j, w: ops.scatter(w, j, dim=0, dim_size=13, reduce="max"),),
    "vector": (lambda x, i, j, w: torch.zeros(13, dtype=w.dtype).scatter_add(0, j, w[:, 0]),),
    "expanded gather": (lambda x, i, j, w: x.gather(0, i.unsqueeze(1).expand(-1, 9)),),
    "expanded scatter": (
        lambda x, i, j, w: torch.zeros(13, 9, dtype=w.dtype).scatter_add_(0, j.unsqueeze(1).expand(-1, 9), w),
    ),
    "an index for each element": (
        lambda x, i, j, w: torch.zeros(13, 9, dtype=w.dtype).scatter_add_(
            0, (j.unsqueeze(1) + torch.arange(9)) % 13, w
        ),
    ),
    "maximum by torch": (lambda x, i, j, w: x.scatter_reduce(0, i.unsqueeze(1).expand(-1, 9), w, "amax"),),
    "negative": (lambda x, i, j, w: x[i - 11],),
    "cfconv": (lambda x, i, j, w: ops.cfconv(x, w, i, j, 13),),
    "cfconv backward": (
        lambda x, i, j, w: torch.ops.popgeo.cfconv_backward(torch.ones(13, 9, dtype=x.dtype) * 2, x, w, i, j),
    ),
    "segments": (lambda x, i, j, w: ops.segment_csr(w, torch.tensor([1, 4, 4, 20])),),
}
ROW_SPLITS = [
    {"rows": 1, "columns": 1, "lookups": 1},
    {"rows": 3, "columns": 2, "lookups": 1},
    {"rows": 1, "columns": 1, "lookups": 8},
    {"rows": 2, "columns": 3, "lookups": 5},
]


@pytest.mark.parametrize("name", ROWS)
def test_rows_are_gathered_and_scattered_alike_for_any_division(name):
    (function,) = ROWS[name]
    inputs = (X, INDEX, INTO, W)
    expected = function(*inputs)
    for split in ROW_SPLITS:
        graph, program = scheduled(function, *inputs, split=split)
        assert program.fallbacks == ()
        made = run(graph, program, *inputs)
        torch.testing.assert_close(tuple(made), expected if isinstance(expected, tuple) else (expected,))


@pytest.mark.parametrize("columns", [1, 4])
@pytest.mark.parametrize("contraction", [1, 3])
@pytest.mark.parametrize(("rows", "serial"), [(1, 1), (5, 2)])
def test_matrix_products_are_alike_for_any_division(rows, contraction, columns, serial):
    split = {"rows": rows, "contraction": contraction, "columns": columns, "serial": serial}
    for function in (torch.mm, lambda x, y: torch.addmm(y[0], x, y, beta=2, alpha=3), lambda x, y: y.t() @ x.t()):
        graph, program = scheduled(function, X, Y, split=split)
        torch.testing.assert_close(run(graph, program, X, Y), [function(X, Y)])


def layer_norm(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    made = torch.ops.aten.native_layer_norm(x, [9], y[:, 0], y[:, 1], 1e-5)
    back = torch.ops.aten.native_layer_norm_backward(x + 1, x, [9], made[1], made[2], y[:, 0], y[:, 1], [True] * 3)
    return *made, *back


def batch_norm(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    mean, variance = torch.zeros(9, dtype=x.dtype), torch.ones(9, dtype=x.dtype)
    w, b = y[:, 0].contiguous(), y[:, 1].contiguous()
    made = torch.ops.aten.native_batch_norm(x, w, b, mean, variance, True, 0.1, 1e-5)
    back = torch.ops.aten.native_batch_norm_backward(
        x + 1, x, w, mean, variance, made[1], made[2], True, 1e-5, [True] * 3
    )
    return *made, mean, variance, *back


OTHERS = {
    "layer norm": layer_norm,
    "batch norm": batch_norm,
    "softmax": lambda x, y: x.softmax(0) + x.log_softmax(1),
    "norms": lambda x, y: torch.stack([x.std(1), x.var(1), x.norm(dim=1), x.logsumexp(1)]),
    "order": lambda x, y: (x.sort(0).values, x.topk(3, 1).indices, x.argmax(), x.max(1).indices, x.cumsum(0)),
    "reductions": lambda x, y: (x.mean(0), x.amax(), x.prod(1), (x > 0).any(0), (x > 9).all(), x.sum((0, 1))),
    "moves": lambda x, y: (
        torch.cat([x, x.flip(0)]),
        x.repeat(2, 1),
        torch.tril(x),
        nn.functional.pad(x, (1, 2), value=3.0),
    ),
    "constants": lambda x, y: (torch.full((3, 50), 2.5), torch.arange(3, 70, 2), x.new_zeros(5), torch.eye(4)[0] * 2),
    "batched": lambda x, y: torch.bmm(x[:, :8].reshape(11, 2, 4), x[:, 1:].reshape(11, 4, 2)),
    "distances": lambda x, y: (torch.cdist(x, x + 1), torch.cdist(x, y.t()[:, :9], p=1.0)),
    "activations": lambda x, y: torch.func.grad(lambda x: (nn.functional.leaky_relu(x) * nn.functional.elu(x)).sum())(
        x
    ),
    "vectors": lambda x, y: (x @ y[:, 0], x[0].dot(x[1]), torch.outer(x[0], y[0])),
    "nothing": lambda x, y: (
        x[:0] @ y,
        x[:, :0] @ y[:0],
        x[:0].sum(0),
        torch.cat([x[:0], x]),
        x[:0].exp(),
        x[INDEX[:0]],
    ),
    "strides": lambda x, y: ((x.t() * x[:, 0])[1:].t()[::2] + x[0, 1:], x.expand(3, 11, 9).transpose(0, 2) - x[0, 0]),
    "changed in place": lambda x, y: x.clone().t().mul_(x.t()).add_(1).t()[2:].clamp_(max=1.5),
    "picked": lambda x, y: x.gather(1, x.argsort(1)[:, :4]),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_families_equal_torch(name):
    function = OTHERS[name]
    expected = function(X, Y)
    graph, program = scheduled(function, X, Y)
    made = run(graph, program, X, Y)
    torch.testing.assert_close(tuple(made), expected if isinstance(expected, tuple) else (expected,))
    assert_vertices_touch_only_their_tile(program)
    assert_nobody_reads_what_another_writes(program)


def test_two_vertices_that_share_an_element_are_found_out():
    _, program = scheduled(lambda x: x.cos(), X)
    (place,) = (k for k, step in enumerate(program.steps) if isinstance(step, ComputeSet))
    step = program.steps[place]
    twice = dataclasses.replace(step, vertices=(*step.vertices, step.vertices[0]))
    elsewhere = dataclasses.replace(step, vertices=(dataclasses.replace(step.vertices[0], tile=7),))
    for wrong, check in (
        (twice, assert_nobody_reads_what_another_writes),
        (elsewhere, assert_vertices_touch_only_their_tile),
    ):
        steps = (*program.steps[:place], wrong, *program.steps[place + 1 :])
        with pytest.raises(AssertionError):
            check(dataclasses.replace(program, steps=steps))


def network(x: Tensor, index: Tensor, w: Tensor) -> Tensor:
    return ops.scatter(x[index] * w, index, dim=0, dim_size=11).sum(1) @ x


def test_every_dropped_transfer_is_noticed():
    inputs = (X, INDEX, W)
    graph, program = scheduled(network, *inputs)
    torch.testing.assert_close(run(graph, program, *inputs), [network(*inputs)])
    dropped = 0
    for place, step in enumerate(program.steps):
        if isinstance(step, Exchange):
            for number in range(len(step.transfers)):
                left = (*step.transfers[:number], *step.transfers[number + 1 :])
                steps = list(program.steps)
                steps[place] = dataclasses.replace(step, transfers=left)
                with pytest.raises(ValueError, match="neither holds nor was sent"):
                    run(graph, dataclasses.replace(program, steps=tuple(steps)), *inputs)
                dropped += 1
    assert dropped > 20


def test_every_element_on_a_wrong_tile_is_noticed():
    inputs = (X, INDEX, W)
    graph, program = scheduled(network, *inputs)
    for name, variable in program.variables.items():
        holders = variable.mapping.holders()
        for element in {0, len(holders) // 2, len(holders) - 1}:
            moved = holders.copy()
            moved[element] = (moved[element] + 1) % program.num_tiles
            wrong = dataclasses.replace(variable, mapping=from_holders(moved))
            with pytest.raises(ValueError, match=r"does not hold|neither holds|another tile|never wrote"):
                run(graph, dataclasses.replace(program, variables={**program.variables, name: wrong}), *inputs)
