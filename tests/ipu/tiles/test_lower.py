"""Each family, lowered in any division and run tile by tile, gives torch's results, and needs its whole program."""

import dataclasses
import itertools

import pytest
import torch
from torch import Tensor, nn

from popgeo import ops
from popgeo.capture.capture import bind, capture
from popgeo.capture.op_graph import OpGraph
from popgeo.ipu import IpuTarget
from popgeo.ipu.cost.graph_cost import cost
from popgeo.ipu.tiles.program import Program
from popgeo.ipu.tiles.run_program import run_program
from popgeo.ipu.tiles.steps import Exchange
from popgeo.ipu.tiles.tile_mapping import from_holders
from popgeo.ipu.tiles.tile_memory import TileMemory
from tests.support.schedule import schedule

NODES, EDGES, GRAPHS = 16, 40, 4
SMALL = IpuTarget(name="small", num_tiles=8, memory_per_tile=2**20, clock=1e9, float32_macs=16, float16_macs=64)


def captured(function, *inputs: Tensor) -> OpGraph:
    """Return a function as a graph."""
    return capture(function, bind(function, *inputs)).graph


def scheduled(graph: OpGraph, split: dict[str, int] | None = None) -> Program:
    """Return the program of a graph, with another division than the plan's if one is given."""
    costs = cost(graph, SMALL)
    if split is not None:
        family = "matmul" if "contraction" in split else "gather"
        costs = [dataclasses.replace(c, plan=dataclasses.replace(c.plan, family=family, split=split)) for c in costs]
    return schedule(graph, costs, SMALL)


def run(graph: OpGraph, program: Program, *inputs: Tensor) -> list[Tensor]:
    given = dict(zip(map(str, graph.inputs), inputs, strict=True))
    made: dict[str, Tensor] = {}

    def host_out(stream: str, replica: int, values: Tensor) -> None:
        made[stream] = values

    run_program(program, [TileMemory()], lambda stream, replica: given[stream].reshape(-1), host_out)
    outputs = [graph.values[v] for v in graph.outputs if v is not None]
    return [made[f"output:{k}"].as_strided(v.shape, v.stride, v.offset) for k, v in enumerate(outputs)]


X, Y = torch.randn(11, 9, dtype=torch.float64), torch.randn(9, 7, dtype=torch.float64)
BYTES = torch.randint(0, 200, (11, 9), dtype=torch.uint8)
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
    "maximum of segments": (lambda x, i, j, w: ops.segment_csr(w, torch.tensor([1, 4, 4, 20]), reduce="max"),),
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
    expected, graph = function(*inputs), captured(function, *inputs)
    for split in ROW_SPLITS:
        program = scheduled(graph, split)
        assert program.fallbacks == ()
        made = run(graph, program, *inputs)
        torch.testing.assert_close(tuple(made), expected if isinstance(expected, tuple) else (expected,))


@pytest.mark.parametrize(
    "function", [torch.mm, lambda x, y: torch.addmm(y[0], x, y, beta=2, alpha=3), lambda x, y: y.t() @ x.t()]
)
def test_matrix_products_are_alike_for_any_division(function):
    graph, expected = captured(function, X, Y), function(X, Y)
    for (rows, serial), contraction, columns in itertools.product([(1, 1), (5, 2)], [1, 3], [1, 4]):
        split = {"rows": rows, "contraction": contraction, "columns": columns, "serial": serial}
        torch.testing.assert_close(
            run(graph, scheduled(graph, split), X, Y), [expected], msg=lambda m, s=split: f"{s}: {m}"
        )


def layer_norm(x: Tensor, y: Tensor, *shape: int) -> tuple[Tensor, ...]:
    x, w, b = x.view(11, *shape), y[:, 0].reshape(shape), y[:, 1].reshape(shape)
    made = torch.ops.aten.native_layer_norm(x, shape, w, b, 1e-5)
    back = torch.ops.aten.native_layer_norm_backward(x + 1, x, shape, made[1], made[2], w, b, [True] * 3)
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
    "layer norm": lambda x, y: layer_norm(x, y, 9),
    "layer norm of matrices": lambda x, y: layer_norm(x, y, 3, 3),
    "batch norm": batch_norm,
    "softmax": lambda x, y: x.softmax(0) + x.log_softmax(1),
    "norms": lambda x, y: torch.stack([x.std(1), x.var(1), x.norm(dim=1), x.logsumexp(1)]),
    "order": lambda x, y: (x.sort(0).values, x.topk(3, 1).indices, x.argmax(), x.max(1).indices, x.cumsum(0)),
    "reductions": lambda x, y: (x.mean(0), x.amax(), x.prod(1), (x > 0).any(0), (x > 9).all(), x.sum((0, 1))),
    "bytes": lambda x, y: (BYTES.all(0), BYTES.any(), BYTES.amax(1), BYTES.sum(0), BYTES.prod(0)),
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
    "nothing to reduce": lambda x, y: (
        x[:0].mean(0).isnan(),
        (x[:0] > 0).any(0),
        x[:, :0].all(1),
        x[:0].prod(0),
        x[:, :0].norm(dim=1),
        nn.functional.layer_norm(x[:0], (9,)),
        x.gather(0, INDEX[:0].reshape(3, 0)),
        x.index_add(0, INDEX[:0], x[:0]),
    ),
    "rows of a scalar": lambda x, y: (
        x[0, 0].index_select(0, INDEX[:1] * 0),
        x[0, 0].gather(0, INDEX[:1] * 0),
        x[0, 0].index_add(0, INDEX[:1] * 0, x[0, 1]),
        x[0, 0].scatter_add(0, INDEX[0] * 0, x[0, 1]),
    ),
    "whole numbers": lambda x, y: torch.baddbmm(
        INDEX[:4].reshape(1, 4, 1), INDEX[:8].reshape(1, 4, 2), INDEX[:6].reshape(1, 2, 3), beta=2.0, alpha=3.0
    ),
    "truth values": lambda x, y: tuple(
        (x > 0).index_add(0, INDEX[:4] % 11, x[:4] > 0, alpha=alpha) for alpha in (True, False)
    ),
    "strides": lambda x, y: ((x.t() * x[:, 0])[1:].t()[::2] + x[0, 1:], x.expand(3, 11, 9).transpose(0, 2) - x[0, 0]),
    "changed in place": lambda x, y: x.clone().t().mul_(x.t()).add_(1).t()[2:].clamp_(max=1.5),
    "picked": lambda x, y: x.gather(1, x.argsort(1)[:, :4]),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_families_equal_torch(name):
    function = OTHERS[name]
    expected = function(X, Y)
    graph = captured(function, X, Y)
    program = scheduled(graph)
    made = run(graph, program, X, Y)
    torch.testing.assert_close(tuple(made), expected if isinstance(expected, tuple) else (expected,))


def network(x: Tensor, index: Tensor, w: Tensor) -> Tensor:
    return ops.scatter(x[index] * w, index, dim=0, dim_size=11).sum(1) @ x


def test_every_dropped_transfer_is_noticed():
    inputs = (X, INDEX, W)
    graph = captured(network, *inputs)
    program = scheduled(graph)
    torch.testing.assert_close(run(graph, program, *inputs), [network(*inputs)])
    dropped = 0
    for place, step in enumerate(program.steps):
        if isinstance(step, Exchange):
            for number in range(len(step.transfers)):
                left = (*step.transfers[:number], *step.transfers[number + 1 :])
                steps = list(program.steps)
                steps[place] = dataclasses.replace(step, transfers=left)
                with pytest.raises(ValueError, match="neither holds nor received"):
                    run(graph, dataclasses.replace(program, steps=tuple(steps)), *inputs)
                dropped += 1
    assert dropped > 20


def test_every_element_on_a_wrong_tile_is_noticed():
    inputs = (X, INDEX, W)
    graph = captured(network, *inputs)
    program = scheduled(graph)
    for name, variable in program.variables.items():
        holders = variable.mapping.holders()
        for element in {0, len(holders) // 2, len(holders) - 1}:
            moved = holders.copy()
            moved[element] = (moved[element] + 1) % program.num_tiles
            wrong = dataclasses.replace(variable, mapping=from_holders(moved))
            with pytest.raises(ValueError, match=r"does not hold|neither holds|another tile|never wrote"):
                run(graph, dataclasses.replace(program, variables={**program.variables, name: wrong}), *inputs)
