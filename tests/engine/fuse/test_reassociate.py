"""Products run in the cheaper order, and training continues as in eager PyTorch."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg

from popgeo import compile_forward, compile_step
from popgeo.capture.capture import bind, capture
from popgeo.engine.graph_runner import fuse

NODES, EDGES, WIDTH = 60, 300, 32


class OfEdges(nn.Module):
    """A convolution with features of the edges; `layer(x, edge_index, e)`."""

    def __init__(self, layer: nn.Module, width: int = 4) -> None:
        super().__init__()
        self.features, self.layer = nn.Linear(3, width), layer

    def forward(self, x: Tensor, edge_index: Tensor, e: Tensor) -> Tensor:
        return self.layer(x, edge_index, self.features(e)).tanh()


class Messages(nn.Module):
    """Messages of both ends and the edge, as MetaLayer's models have them."""

    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2 * WIDTH + 3, WIDTH, bias), nn.Linear(2 * WIDTH, WIDTH, bias)

    def forward(self, x: Tensor, edge_index: Tensor, e: Tensor) -> Tensor:
        source, target = edge_index
        x = x * 1.5  # what has a gradient
        messages = self.first(torch.cat([x[target], x[source], e], 1)).relu()
        messages = (
            messages
            + self.second(torch.cat([x[source], x[target] * 1.0], -1))
            + x[source] @ self.second.weight[:, :WIDTH]
        )
        return torch.zeros_like(x).index_add(0, target, messages)


class KeepsItsMatrices(nn.Module):
    """A layer whose matrices are also read by an operation that is not a product."""

    def __init__(self) -> None:
        super().__init__()
        self.matrices = nn.Linear(3, WIDTH * WIDTH)

    def forward(self, x: Tensor, edge_index: Tensor, e: Tensor) -> Tensor:
        made = self.matrices(e).view(-1, WIDTH, WIDTH)
        return torch.bmm(x[edge_index[0]].unsqueeze(1), made).squeeze(1) + made.abs().sum(1)


def edge_network(hidden: int) -> nn.Module:
    return nn.Sequential(nn.Linear(4, hidden), nn.ReLU(), nn.Linear(hidden, WIDTH * WIDTH))


MODELS = {
    "NNConv": lambda: OfEdges(pyg.NNConv(WIDTH, WIDTH, nn.Linear(4, WIDTH * WIDTH))),
    "NNConv without bias": lambda: OfEdges(pyg.NNConv(WIDTH, WIDTH, nn.Linear(4, WIDTH * WIDTH, bias=False))),
    "NNConv with a network": lambda: OfEdges(pyg.NNConv(WIDTH, WIDTH, edge_network(8))),
    "NNConv with a wide network": lambda: OfEdges(pyg.NNConv(WIDTH, WIDTH, edge_network(64))),
    "NNConv to fewer channels": lambda: OfEdges(pyg.NNConv(WIDTH, 16, nn.Linear(4, WIDTH * 16))),
    "CGConv": lambda: OfEdges(pyg.CGConv(WIDTH, 4)),
    "messages": Messages,
    "messages without bias": lambda: Messages(bias=False),
    "matrices that are needed": KeepsItsMatrices,
}


def example(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(NODES, WIDTH, dtype=dtype), torch.randint(NODES, (2, EDGES)), torch.rand(EDGES, 3, dtype=dtype)


class Squared(nn.Module):
    """A loss of a model's results."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *tensors: Tensor) -> Tensor:
        return self.model(*tensors).square().mean()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS.keys())
def test_training_follows_eager(make, dtype):
    model = Squared(make()).to(dtype)
    other = copy.deepcopy(model)
    inputs = example(dtype)
    step = compile_step(model, torch.optim.SGD(model.parameters(), lr=0.1), inputs)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    close = {"rtol": 2e-4, "atol": 2e-6} if dtype is torch.float32 else {"rtol": 1e-10, "atol": 1e-12}
    for _ in range(3):
        optimizer.zero_grad()
        expected = other(*inputs)
        expected.backward()
        optimizer.step()
        torch.testing.assert_close(step(*inputs), expected.detach(), **close)
    for ours, theirs in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, **close)


def largest(model: nn.Module) -> int:
    """Return the number of elements of the largest value in a forward pass."""
    inputs = example()
    runs = fuse(capture(model, bind(model, *inputs)).graph)
    return max(runs.values[v].numel for op in runs.ops if not runs.is_view(op) for v in op.makes())


@pytest.mark.parametrize("name", ["NNConv", "NNConv without bias", "NNConv with a network", "NNConv to fewer channels"])
def test_no_matrix_is_made_for_each_edge(name):
    assert largest(MODELS[name]()) <= EDGES * WIDTH * 9


def test_matrices_that_something_else_needs_are_made():
    assert largest(KeepsItsMatrices()) == EDGES * WIDTH * WIDTH


def test_rows_of_a_table_larger_than_its_use_are_taken_first():
    layer = nn.Linear(WIDTH, WIDTH)

    def first_rows(x: Tensor, index: Tensor) -> Tensor:
        return layer(x.index_select(0, index))

    x, index = torch.randn(10_000, WIDTH), torch.arange(3000)
    runs = fuse(capture(first_rows, bind(first_rows, x, index)).graph)
    assert [runs.values[op.makes()[0]].shape for op in runs.ops if "mm" in op.target] == [(3000, WIDTH)]


def gradients(model: nn.Module, inputs: tuple[Tensor, ...], is_compiled: bool) -> Tensor:
    """Return the gradients of all weights after one update."""
    model = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    if is_compiled:
        compile_step(model, optimizer, inputs)(*inputs)
    else:
        model(*inputs).backward()
        optimizer.step()
    pairs = zip(before, model.parameters(), strict=True)
    return torch.cat([(old - new.detach()).double().flatten() for old, new in pairs])


class LinearMessages(nn.Module):
    """Linear messages of both ends, summed at each node; with one node, all messages go to one row."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        source, target = edge_index
        return torch.zeros_like(x).index_add(0, target, self.layer(torch.cat([x[source], x[target]], 1)))


def test_many_equal_messages_are_summed_as_eager_code_sums_them():
    model, inputs = LinearMessages(), (torch.randn(1, WIDTH), torch.zeros(2, 4000, dtype=torch.long))
    right = copy.deepcopy(model).double()(inputs[0].double(), inputs[1])
    eager, ours = (((found - right) / right).abs().max() for found in (model(*inputs), compile_forward(model)(*inputs)))
    assert ours <= 2 * eager


def test_gradients_of_one_number_are_left_alone():
    class Total(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1))

        def forward(self, x: Tensor) -> Tensor:
            return self.layers(x).sum()

    model, inputs = Total(), (torch.randn(1, WIDTH),)
    torch.testing.assert_close(gradients(model, inputs, True), gradients(model, inputs, False), rtol=1e-4, atol=1e-6)


def test_a_sum_that_is_one_number_is_left_alone():
    class Corner(nn.Module):
        def forward(self, x: Tensor, index: Tensor) -> Tensor:
            return torch.zeros(()).scatter_add(0, index, (x @ x.t())[0, 0])

    inputs = torch.randn(NODES, WIDTH), torch.tensor(0)
    torch.testing.assert_close(compile_forward(Corner(), inputs)(*inputs), inputs[0][0].square().sum())
