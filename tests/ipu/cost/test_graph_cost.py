"""Operations with a cost; it does not depend on the way in which a program writes them."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.utils import scatter

from popgeo import ipu, ops
from popgeo.capture.control_flow import cond, for_loop
from popgeo.ipu import IpuTarget
from popgeo.ipu.cost.calibration import BOW_SDK3, Machine
from popgeo.ipu.cost.graph_cost import cost, plan_unknown
from popgeo.ipu.cost.plan import Profile
from tests.support import training_steps
from tests.support.cost_graphs import graph_of

BOW = IpuTarget.bow()
NUM_NODES, CHANNELS, NUM_EDGES = 1024, 128, 8192
X, INDEX, EDGES = torch.empty(NUM_NODES, CHANNELS), torch.zeros(NUM_EDGES).long(), torch.empty(NUM_EDGES, CHANNELS)


def cycles_of(function: Callable[..., Tensor], *inputs: Tensor) -> float:
    executable = ipu.compile(function, inputs, target=BOW)
    return sum(op.plan.cycles(Profile.CALIBRATED) for op in cost(executable.graph, BOW))


@pytest.mark.parametrize(
    "function",
    [
        lambda x, index: x[index],
        lambda x, index: nn.functional.embedding(index, x),
        lambda x, index: ops.gather(x, index),
        lambda x, index: x.gather(0, index.unsqueeze(1).expand(-1, CHANNELS)),
        lambda x, index: torch.index_select(x.T, 1, index),
    ],
    ids=["brackets", "embedding", "popgeo", "gather", "columns"],
)
def test_every_way_to_gather_costs_the_same(function):
    assert cycles_of(function, X, INDEX) == pytest.approx(
        cycles_of(lambda x, i: x.index_select(0, i), X, INDEX), rel=0.1
    )


@pytest.mark.parametrize(
    "function",
    [
        lambda x, index: torch.zeros(NUM_NODES, CHANNELS).index_add(0, index, x),
        lambda x, index: torch.zeros(NUM_NODES, CHANNELS).scatter_add(0, index.unsqueeze(1).expand(-1, CHANNELS), x),
        lambda x, index: torch.zeros(NUM_NODES, CHANNELS).index_put((index,), x, accumulate=True),
        lambda x, index: ops.scatter(x, index, dim=0, dim_size=NUM_NODES),
    ],
    ids=["index_add", "scatter_add", "index_put", "popgeo"],
)
def test_every_way_to_add_rows_costs_the_same(function):
    pyg = cycles_of(lambda x, index: scatter(x, index, 0, dim_size=NUM_NODES, reduce="sum"), EDGES, INDEX)
    assert cycles_of(function, EDGES, INDEX) == pytest.approx(pyg, rel=0.1)


def test_a_fused_convolution_costs_what_poplar_would_run_for_it():
    nodes, src = torch.empty(576, 100), torch.zeros(16128).long()
    filters = torch.empty(16128, 100)
    fused = cycles_of(lambda x, w, i, j: ops.cfconv(x, w, i, j, 576), nodes, filters, src, src)
    apart = cycles_of(
        lambda x, w, i, j: ops.scatter(ops.gather(x, i) * w, j, dim=0, dim_size=576), nodes, filters, src, src
    )
    assert fused == apart


def test_what_no_rule_knows_gets_a_conservative_cost():
    (op,) = cost(ipu.compile(lambda x: torch.special.bessel_j0(x), [X], target=BOW).graph, BOW)
    assert not op.known
    assert "no rule knows aten.special_bessel_j0" in op.plan.why
    assert op.plan.cycles(Profile.CALIBRATED) > cycles_of(lambda x: x.exp(), X)


SQUARE = torch.empty(40, 40)


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [
        *((name, torch.optim.AdamW) for name in ("schnet", *training_steps.MODELS)),
        *(("gcn", optimizer) for optimizer in (torch.optim.Adam, torch.optim.SGD)),  # they do not depend on the model
    ],
)
def test_every_operation_of_a_training_step_has_a_rule(name, optimizer):
    made = training_steps.schnet() if name == "schnet" else training_steps.graph_network(name)
    step = [op for graph in training_steps.captured(*made, optimizer) for op in cost(graph, BOW)]
    assert {op.phase for op in step} == {"forward", "backward", "update"}
    assert [op.target for op in step if not op.known] == []


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.cdist(x, x),
        lambda x: x.topk(5).values,
        lambda x: x.sort(dim=0).values,
        lambda x: x.cumsum(0),
        lambda x: x.softmax(1).log_softmax(0),
        lambda x: nn.functional.layer_norm(x, (40,)),
        lambda x: nn.functional.batch_norm(x, None, None, training=True),
        lambda x: nn.functional.dropout(x, 0.5, training=True),
        lambda x: x.reshape(4, 10, 40) @ x.reshape(4, 40, 10),
        lambda x: x.mean(0).norm() + x.std(1).amax() + x.argmax(1).sum() + x.var(),
        lambda x: nn.functional.gelu(nn.functional.silu(nn.functional.elu(nn.functional.leaky_relu(x)))),
        lambda x: torch.cat([x.flip(0), x.roll(1, 0), x.repeat(2, 1), x.tril()]).clone(),
        lambda x: nn.functional.pad(x, (1, 1)).clamp(0, 1).atan2(x.sum()) % 3 // 2,
        lambda x: x.scatter_reduce(0, x.long(), x, "mean") + x.scatter_reduce(0, x.long(), x, "amax"),
        lambda x: ops.scatter(x, torch.zeros(40).long(), dim=0, dim_size=7, reduce="max"),
        lambda x: ops.scatter_softmax(x, torch.zeros(40).long(), dim=0, dim_size=7),
        lambda x: nn.functional.cross_entropy(x, x[0].long()) + nn.functional.huber_loss(x, x + 1),
        lambda x: nn.functional.binary_cross_entropy_with_logits(x, x) + nn.functional.mse_loss(x, -x),
        lambda x: torch.where(x > 0, x.double().float(), x.pow(1.5)).masked_fill(x.isnan(), 0.0).logsumexp(0),
        lambda x: nn.functional.softplus(torch.addmv(x[0], torch.einsum("ij,jk->ik", x, x), x[1]).outer(x[2]).tanh()),
    ],
)  # fmt: skip
def test_what_graph_networks_are_made_of_has_a_rule(function):
    costs = cost(ipu.compile(function, [SQUARE], target=BOW).graph, BOW)
    assert [op.target for op in costs if not op.known] == []
    assert all(step.calibrated >= 0 and step.ideal >= 0 for op in costs for step in op.plan.supersteps)


def test_no_elements_at_all_can_be_costed():
    none, index = torch.empty(0, 8), torch.zeros(0).long()
    functions = [
        lambda x, i: x.index_select(0, i),
        lambda x, i: ops.scatter(x, i, dim=0, dim_size=3),
        lambda x, i: ops.cfconv(x, x, i, i, 3),
        lambda x, i: (x @ x.T).exp() + x.sum(),
        lambda x, i: torch.cat([x, x]).sum(0),
    ]
    assert all(cycles_of(function, none, index) > 0 for function in functions)


def test_what_no_rule_knows_is_brought_once_and_worked_on_by_one_worker_at_a_time():
    # 40 x 40 floats in and out are 12,800 bytes, 9 of each of 1,472 tiles, at 4 a cycle; two elements, 42 cycles each.
    (op,) = cost(ipu.compile(torch.special.bessel_j0, [SQUARE], target=BOW).graph, BOW)
    bring, compute = op.plan.supersteps
    assert (bring.ideal, bring.calibrated, bring.mean) == (240 + 9 / 4,) * 3
    assert (bring.bytes_in, bring.bytes_out, bring.bytes_total, bring.fragments) == (9, 9, 9 * 1472, 2)
    assert (compute.ideal, compute.calibrated, compute.mean) == (82 + 2 * 42,) * 3
    assert (bring.tiles, compute.tiles, compute.workers) == (1472, 1472, 6)
    assert (op.plan.family, op.plan.split, op.plan.temporary_bytes) == ("unknown", {"tiles": 1472}, 9)
    assert op.bytes == 12_800


def test_what_no_rule_knows_and_touches_nothing_only_starts():
    graph = graph_of("any.nothing.default", makes=[None])
    assert [step.ideal for step in plan_unknown(graph, graph.ops[0], Machine(target=BOW)).supersteps] == [240, 82]


def test_a_share_of_memory_and_constants_of_ones_own_reach_products_also_within_loops():
    x = torch.zeros(2000, 2000)
    for function in (lambda x: x @ x, lambda x: for_loop(2, lambda y: [y @ y], [x])):
        graph = ipu.compile(function, [x], target=BOW).graph
        plain, tight = (cost(graph, BOW, matmul_proportion=share)[-1].plan for share in (0.6, 0.05))
        assert tight.temporary_bytes < plain.temporary_bytes
        quick = cost(graph, BOW, replace(BOW_SDK3, matmul_fixed=0.0))[-1].plan
        assert quick.cycles(Profile.CALIBRATED) < plain.cycles(Profile.CALIBRATED)
        assert quick.cycles(Profile.IDEAL) == plain.cycles(Profile.IDEAL)


def test_bytes_are_those_read_and_written_and_of_a_broadcast_dimension_once():
    def bytes_of(function: Callable[..., Tensor], *inputs: Tensor) -> list[int]:
        return [op.bytes for op in cost(ipu.compile(function, inputs, target=BOW).graph, BOW)]

    x = torch.zeros(6, 5)
    assert bytes_of(lambda x: x.exp(), x) == [2 * 120]
    assert bytes_of(lambda x: x.T.exp(), x) == [0, 2 * 120]
    assert bytes_of(lambda x, y: x + y.expand(6, 5), x, torch.zeros(5)) == [0, 120 + 20 + 120]
    assert bytes_of(lambda x: x.clone().add_(x), x) == [2 * 120, 3 * 120]
    # Three turns of 240 bytes; then the branch with more bytes, after a sum and a comparison.
    assert bytes_of(lambda x: for_loop(3, lambda y: [y.exp()], [x]), x) == [3 * 240]
    branches = (lambda y: [y.exp()], [x]), (lambda y: [y.exp().exp()], [x])
    for first, second in (branches, branches[::-1]):
        touched = bytes_of(lambda x, a=first, b=second: cond(x.sum() > 0, a[0], [x], b[0], [x]), x)
        assert touched[-1] == 2 * 240
