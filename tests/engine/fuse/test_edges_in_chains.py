"""Gathers of rows, operations on edges and sums at rows run as one chain, with eager PyTorch's results."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close
from torch_geometric import nn as pyg
from torch_geometric.utils import degree, scatter, softmax

import popgeo
from popgeo import ipu
from popgeo.capture.capture import bind, capture
from popgeo.engine.fuse.chain import EDGE_CHAIN
from popgeo.engine.graph_runner import GraphRunner
from popgeo.native import library

pytestmark = pytest.mark.skipif(not library.is_available(), reason="joined operations need the compiled library")
NODES, EDGES = 13, 70


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(params=[2, 1])
def newest(request: pytest.FixtureRequest) -> None:
    """Run with each instruction set that has fused multiply-adds."""
    choose = library.function("popgeo_chain_isa", "q", "q")
    assert choose is not None
    if not choose(request.param):
        pytest.skip("chains are not served with this instruction set")
    yield
    choose(2)


def edges(is_sorted: bool = False, num_edges: int = EDGES) -> tuple[Tensor, Tensor]:
    """Return senders and receivers; the last three nodes receive nothing, and the last node sends nothing."""
    src, dst = torch.randint(NODES - 1, (num_edges,)), torch.randint(NODES - 3, (num_edges,))
    return src, dst.sort().values if is_sorted else dst


def run(function: Callable[..., Tensor | tuple[Tensor, ...]], *inputs: Tensor) -> tuple[list[Tensor], GraphRunner]:
    runner = GraphRunner(capture(function, bind(function, *inputs)).graph, {})
    first = [made.clone() for made in runner.run(inputs) if made is not None]
    for made, again in zip(first, runner.run(inputs), strict=True):
        assert again is not None
        assert_close(made, again, rtol=0, atol=0, equal_nan=True)
    return first, runner


def count(runner: GraphRunner) -> int:
    return sum(op.target == EDGE_CHAIN for op in runner.runs.ops)


def moved(runner: GraphRunner) -> list[str]:
    """Return the gathers and scatters outside of chains."""
    names = "index_select", "gather", "index_add", "scatter"
    return [op.target for op in runner.runs.ops if any(name in op.target for name in names)]


@pytest.mark.parametrize("channels", [1, 3, 16, 128, 200])
@pytest.mark.parametrize("is_sorted", [False, True])
@pytest.mark.usefixtures("newest")
def test_sums_of_what_edges_take_have_eagers_bits(channels, is_sorted):
    def function(x: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        return x.new_zeros(NODES, channels).index_add(0, dst, x.index_select(0, src))

    inputs = torch.randn(NODES, channels), *edges(is_sorted)
    (result,), runner = run(function, *inputs)
    assert count(runner) == 1
    assert not moved(runner)
    assert torch.equal(result, function(*inputs))


@pytest.mark.parametrize("channels", [1, 16])
def test_gathers_and_small_sums_of_ours_run_in_a_chain_too(channels):
    def function(x: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        return popgeo.scatter(popgeo.gather(x, src) * 2, dst, 0, dim_size=NODES)

    inputs = torch.randn(NODES, channels), *edges()
    (result,), runner = run(function, *inputs)
    assert not moved(runner)
    assert torch.equal(result, function(*inputs))


@pytest.mark.parametrize("shape", [(), (5,), (4, 8), (3, 1), (1, 6), (2, 3, 4)])
@pytest.mark.usefixtures("newest")
def test_any_shape_of_messages(shape):
    def function(x: Tensor, weight: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        messages = (x.index_select(0, src) - x.index_select(0, dst)).relu()
        return scatter(messages * weight.view(-1, *[1] * len(shape)), dst, 0, NODES, "sum")

    inputs = torch.randn(NODES, *shape), torch.rand(EDGES), *edges()
    (result,), runner = run(function, *inputs)
    assert not moved(runner)
    assert_close(result, function(*inputs))


@pytest.mark.parametrize("reduce", ["min", "max"])
def test_extremes_know_nan_ties_and_rows_without_edges(reduce):
    def function(x: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        return scatter(x.index_select(0, src), dst, 0, NODES, reduce)

    x = torch.randint(-2, 2, (NODES, 9)).float()
    x[4, 3], x[5, 1] = float("nan"), float("inf")
    inputs = x, *edges()
    (result,), runner = run(function, *inputs)
    assert count(runner) == 1
    assert not moved(runner)
    assert_close(result, function(*inputs), rtol=0, atol=0, equal_nan=True)


def test_as_many_edges_as_nodes_do_not_write_over_what_others_read():
    def function(x: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        x = x.exp()
        y = x.index_select(0, src) * 2 + x
        return y.new_zeros(NODES, 8).index_add(0, dst, y) + y

    inputs = torch.randn(NODES, 8), *edges(num_edges=NODES)
    (result,), _ = run(function, *inputs)
    assert_close(result, function(*inputs))


def test_a_table_changed_between_its_uses_is_taken_as_it_was():
    def function(x: Tensor, src: Tensor, dst: Tensor) -> tuple[Tensor, Tensor]:
        x = x * 2
        before = x.index_select(0, src) + 1
        x.mul_(3)
        return before, x.index_select(0, src) + before

    inputs = torch.randn(NODES, 8), *edges()
    results, _ = run(function, *inputs)
    for result, expected in zip(results, function(*inputs), strict=True):
        assert_close(result, expected)


@pytest.mark.parametrize("wrong", [-1, NODES])
def test_an_edge_to_a_node_that_is_not_there_is_refused(wrong):
    def function(x: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        return x.new_zeros(NODES, 8).index_add(0, dst, x.index_select(0, src))

    inputs = torch.randn(NODES, 8), *edges()
    _, runner = run(function, *inputs)
    inputs[1][7] = wrong
    with pytest.raises(ValueError, match=rf"index\[7\] is {wrong}; allowed are 0 to {NODES - 1}"):
        runner.run(inputs)


def test_rows_are_taken_again_rather_than_kept_for_the_backward_pass():
    def function(x: Tensor, att: Tensor, src: Tensor, dst: Tensor) -> tuple[Tensor, ...]:
        x, att = x.detach().requires_grad_(), att.detach().requires_grad_()
        with torch.enable_grad():
            heads = x.view(NODES, 4, 8)
            scores = (
                torch.nn.functional.leaky_relu(heads.index_select(0, src) + heads.index_select(0, dst), 0.2) * att
            ).sum(-1)
            weights = softmax(scores, dst, num_nodes=NODES)
            out = scatter(heads.index_select(0, src) * weights.unsqueeze(-1), dst, 0, NODES, "sum")
            return out, *torch.autograd.grad(out.square().sum(), (x, att))

    inputs = torch.randn(NODES, 32), torch.randn(1, 4, 8), *edges()
    results, runner = run(function, *inputs)
    for result, expected in zip(results, function(*inputs), strict=True):
        assert_close(result, expected, rtol=1e-4, atol=1e-5)
    assert count(runner) >= 4
    assert not moved(runner)


CONVOLUTIONS = {
    "GIN": lambda deg: pyg.GINConv(nn.Linear(16, 16)),
    "SAGE": lambda deg: pyg.SAGEConv(16, 16),
    "Transformer": lambda deg: pyg.TransformerConv(16, 4, heads=4),
    "ResGated": lambda deg: pyg.ResGatedGraphConv(16, 16),
    "GEN": lambda deg: pyg.GENConv(16, 16),
    "PNA": lambda deg: pyg.PNAConv(16, 16, ["mean", "max", "std"], ["identity", "amplification"], deg=deg),
    "GCN": lambda deg: pyg.GCNConv(16, 16, add_self_loops=False),
    "GATv2": lambda deg: pyg.GATv2Conv(16, 4, heads=4, add_self_loops=False),
}


class Trained(nn.Module):
    """A convolution and a loss."""

    def __init__(self, convolution: nn.Module) -> None:
        super().__init__()
        self.convolution = convolution

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.convolution(x, edge_index).square().mean()


@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.filterwarnings("ignore:.*takes means over all rows")
def test_convolutions_train_as_eager(name):
    edge_index = torch.stack(edges(num_edges=200))
    histogram = torch.bincount(degree(edge_index[1], NODES, dtype=torch.long))
    x, eager = torch.randn(NODES, 16), Trained(CONVOLUTIONS[name](histogram))
    model = copy.deepcopy(eager)
    options = ipu.Options(num_threads=1, show_progress=False, strict=False)
    step = ipu.training_model(model, options, torch.optim.SGD(model.parameters(), lr=0.05))
    optimizer = torch.optim.SGD(eager.parameters(), lr=0.05)
    for _ in range(2):
        step(x, edge_index)
        optimizer.zero_grad()
        eager(x, edge_index).backward()
        optimizer.step()
    for ours, theirs in zip(model.parameters(), eager.parameters(), strict=True):
        assert_close(ours, theirs, rtol=2e-4, atol=2e-5)


@pytest.mark.usefixtures("newest")
def test_any_number_of_threads_gives_the_same_bits():
    num_nodes, num_edges = 300, 4000

    def function(x: Tensor, att: Tensor, src: Tensor, dst: Tensor) -> tuple[Tensor, ...]:
        both = (x.index_select(0, src) + x.index_select(0, dst)).sigmoid()
        scores = (both * att).sum(-1)
        return scores, x.new_zeros(num_nodes, 4, 16).index_add(0, dst, both * scores.unsqueeze(-1)), both.sum(0)

    inputs = torch.randn(num_nodes, 4, 16), torch.randn(1, 4, 16), *torch.randint(num_nodes, (2, num_edges))
    found, before = [], torch.get_num_threads()
    for num_threads in (1, 2, 3):
        torch.set_num_threads(num_threads)
        results, runner = run(function, *inputs)
        found.append(results)
    torch.set_num_threads(before)
    assert not moved(runner)
    for one, two, three, expected in zip(*found, function(*inputs), strict=True):
        assert_close(one, expected, rtol=1e-4, atol=1e-4)
        assert torch.equal(one, two)
        assert torch.equal(one, three)
