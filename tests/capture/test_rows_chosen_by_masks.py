"""Rows chosen by a mask give the results of eager PyTorch; operations that would combine free slots are refused."""

from collections.abc import Callable

import pytest
import torch
import torch_geometric.nn as pyg_nn
from torch import Tensor, nn
from torch_geometric.utils import (
    add_remaining_self_loops,
    add_self_loops,
    degree,
    get_laplacian,
    remove_self_loops,
    scatter,
    softmax,
)

import popgeo
from popgeo.ipu import DynamicShapeError, check_static, compile

NODES = 6
SOME = torch.tensor([[0, 1, 1, 2, 2, 4, 4, 5, 2], [1, 0, 1, 3, 2, 4, 2, 5, 2]])  # two loops at node 2
NONE = torch.tensor([[0, 1, 1, 2, 2, 4, 4, 5, 2], [1, 0, 2, 3, 4, 5, 2, 0, 1]])
ALL = torch.tensor([[0, 1, 1, 2, 2, 4, 4, 5, 2]]).expand(2, 9).contiguous()
FIRST = torch.tensor([[3, 3, 1, 2, 2, 4, 4, 5, 3], [3, 3, 2, 3, 4, 5, 2, 0, 3]])
GRAPHS = {"some loops": SOME, "none": NONE, "nothing but loops": ALL, "loops first and last": FIRST}
X = torch.randn(NODES, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
WEIGHTS = torch.arange(1.0, 10.0, dtype=torch.float64)


class Calls(nn.Module):
    """A function of features with a gradient, edges, and weights of edges with a gradient."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function, self.lin = function, nn.Linear(4, 4)
        self.weight = nn.Parameter(WEIGHTS.clone())
        self.double()

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        out = self.function(self.lin(x), edges, self.weight)
        return (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)).sum()


def assert_equals_eager(function: Callable[..., Tensor]):
    """Check losses and gradients of a step that is compiled for one graph and called with each."""
    eager, compiled = Calls(function), Calls(function)
    compiled.load_state_dict(eager.state_dict())
    step = popgeo.compile_step(compiled, torch.optim.SGD(compiled.parameters(), lr=0.1))
    optimizer = torch.optim.SGD(eager.parameters(), lr=0.1)
    for edges in GRAPHS.values():
        optimizer.zero_grad()
        expected = eager(X, edges)
        expected.backward()
        optimizer.step()
        torch.testing.assert_close(step(X, edges), expected.detach(), equal_nan=True)
        torch.testing.assert_close(dict(compiled.state_dict()), dict(eager.state_dict()), equal_nan=True)


def summed(x: Tensor, edges: Tensor, weight: Tensor, reduce: str = "sum") -> Tensor:
    return scatter(weight.view(-1, 1) * x[edges[0]], edges[1], 0, NODES, reduce)


@pytest.mark.parametrize("fill", [None, 2.0, torch.tensor(3.0), "add", "mean"], ids=str)
def test_remaining_loops_keep_their_weight_and_others_are_filled(fill):
    assert_equals_eager(lambda x, e, w: summed(x, *add_remaining_self_loops(e, w, fill, NODES)))


@pytest.mark.parametrize("fill", [None, 2.0, torch.ones(3), "add", "mean"], ids=str)
def test_attributes_of_loops_are_those_of_pyg(fill):
    def function(x: Tensor, edges: Tensor, weight: Tensor) -> Tensor:
        edges, attributes = remove_self_loops(edges, torch.stack([weight, weight**2, weight + 1], 1))
        edges, attributes = add_self_loops(edges, attributes, fill, NODES)
        row, col = edges
        alpha = softmax((x[row] * x[col]).sum(-1) + attributes.sum(-1) / 10, col, num_nodes=NODES)
        return summed(x, edges, alpha)

    assert_equals_eager(function)


@pytest.mark.parametrize("reduce", ["sum", "mean", "min", "max", "mul"])
def test_a_reduction_passes_free_slots_by(reduce):
    assert_equals_eager(lambda x, e, w: summed(x, *remove_self_loops(e, w), reduce))


def two_sides(x: Tensor, edges: Tensor, weight: Tensor) -> Tensor:
    edges, weight = add_self_loops(*remove_self_loops(edges, weight), num_nodes=(NODES, NODES - 2))
    return scatter(weight.view(-1, 1) * x[edges[0]], edges[1], 0, NODES)


def written_to(x: Tensor, edges: Tensor, weight: Tensor) -> Tensor:
    heavy = x[:, 0] > 0
    out = x.clone()
    out[heavy] = x[heavy] @ x.T[:, :4].abs()
    return out


def counted(x: Tensor, edges: Tensor, weight: Tensor) -> Tensor:
    edges, _ = remove_self_loops(edges)
    ones = torch.ones(edges.size(1), dtype=x.dtype)
    own = degree(edges[1], NODES, x.dtype) + scatter(ones, edges[0], 0, NODES)
    return x / (own + 1).sqrt().view(-1, 1)


def chosen_twice(x: Tensor, edges: Tensor, weight: Tensor) -> Tensor:
    edges, weight = remove_self_loops(edges, weight)
    up = edges[0] < edges[1]
    return summed(x, edges[:, up], weight[up]) + summed(x, edges.flip(0)[:, ~up], weight[~up])


def messages_in_heads(x: Tensor, edges: Tensor, weight: Tensor) -> Tensor:
    edges, weight = remove_self_loops(edges, weight)
    h = x[edges[0]].view(-1, 2, 2) * weight.view(-1, 1, 1)
    share = torch.softmax(h, dim=1).amax(-1)
    return scatter((h * share.unsqueeze(-1)).reshape(-1, 4), edges[1], 0, NODES)


def with_forces(x: Tensor, edges: Tensor, weight: Tensor) -> Tensor:
    edges, weight = remove_self_loops(edges, weight)
    length = ((x[edges[0]] - x[edges[1]]).square().sum(-1) + 0.01).sqrt()
    energy = scatter(weight * length, edges[1], 0, NODES).sum()
    return torch.autograd.grad(energy, x, create_graph=True)[0]


WAYS = [
    two_sides, written_to, counted, chosen_twice, messages_in_heads, with_forces,
    lambda x, e, w: summed(x, *get_laplacian(*remove_self_loops(e, w), normalization="rw", num_nodes=NODES)),
]  # fmt: skip


@pytest.mark.parametrize("function", WAYS, ids=lambda f: f.__name__)
def test_a_way_of_using_chosen_rows_equals_eager(function):
    assert_equals_eager(function)


def leaks(x: Tensor, edges: Tensor) -> dict[str, Callable[[], Tensor]]:
    row, col = (edges := remove_self_loops(edges)[0])
    messages = x[row]
    return {
        "is handed out": lambda: messages,
        "sum": lambda: messages.sum(0),
        "mean": lambda: messages.mean(),
        "batch norm": lambda: nn.functional.batch_norm(messages, None, None, training=True),
        "softmax over edges": lambda: scatter(messages.softmax(0), col, 0, NODES),
        "running sum": lambda: scatter(messages.cumsum(0), col, 0, NODES),
        "sort": lambda: scatter(messages[row.argsort()], col, 0, NODES),
        "cut": lambda: messages[:3],
        "product of matrices": lambda: messages.T @ messages,
        "another reduction": lambda: x.index_add(0, col, messages),
        "write": lambda: torch.zeros(NODES, NODES).index_put((row, col), messages[:, 0]),
        "number of edges": lambda: x / edges.size(1),
        "shape": lambda: x * edges.shape[1],
        "length": lambda: x * len(row),
        "numel": lambda: x * float(row.numel()),
        "ones": lambda: x * torch.ones(edges.size(1)).sum(),
        "positions": lambda: scatter(torch.arange(row.size(0)), col, 0, NODES) * x[:, 0],
        "branch": lambda: x if row.size(0) > 3 else -x,
        "largest weight, which others share": lambda: x * messages.max(),
        "into another tensor": lambda: x.new_zeros(9, 4).copy_(messages),
    }


@pytest.mark.parametrize("name", leaks(X.float(), NONE))
def test_what_lets_chosen_rows_meet_is_refused_where_they_were_chosen(name):
    def function(x: Tensor, edges: Tensor) -> Tensor:
        return leaks(x.requires_grad_(), edges)[name]()

    with pytest.raises(
        DynamicShapeError, match=r"remove_self_loops\(edges\).*only with .*scatter, or apply .*RemoveSelfLoops"
    ):
        compile(function, [X.float(), NONE])
    assert len(check_static(function, X.float(), NONE)) == 1


def test_a_mask_that_is_written_to_later_chooses_what_it_chose():
    def function(x: Tensor, edges: Tensor) -> Tensor:
        up = edges[0] < edges[1]
        chosen = edges[:, up]
        up &= edges[0] == 1
        return scatter(x[chosen[0]], chosen[1], 0, NODES) + scatter(x[edges[:, up][0]], edges[:, up][1], 0, NODES)

    step = compile(function, [X, NONE])
    for edges in GRAPHS.values():
        torch.testing.assert_close(step(X, edges), function(X, edges))


def test_masks_that_are_drawn_alike_are_not_the_same():
    def function(x: Tensor, edges: Tensor) -> Tensor:
        rows = x[edges[0][torch.rand(9) > 0.5]]
        return scatter(rows, edges[1][torch.rand(9) > 0.5], 0, NODES)

    with pytest.raises(DynamicShapeError, match=r"torch\.where\(mask"):
        compile(function, [X, NONE])


def test_rows_chosen_in_a_backward_pass_are_refused():
    class Recomputes(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, edges):
            ctx.save_for_backward(x, edges)
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            _, edges = ctx.saved_tensors
            return summed(grad, *remove_self_loops(edges, WEIGHTS)), None

    model = Calls(lambda x, e, w: Recomputes.apply(x, e))
    with pytest.raises(DynamicShapeError, match="index depends on the data"):
        popgeo.compile_step(model, torch.optim.SGD(model.parameters(), lr=0.1))(X, SOME)


def test_numbers_for_numpy_are_refused():
    with pytest.raises(DynamicShapeError, match=r"x\.numpy\(\).*compute with torch"):
        compile(lambda x: x + float(x.numpy().sum()), [X])


def test_no_edges_at_all_are_all_kept():
    empty = torch.zeros(2, 0, dtype=torch.long)
    made = compile(lambda e: remove_self_loops(e)[0], [empty])(empty)
    assert made.shape == (2, 0)


@pytest.mark.parametrize(
    ("call", "remedy"),
    [
        (lambda x, b: pyg_nn.global_mean_pool(x, b), "pass size="),
        (lambda x, b: scatter(x, b), "pass dim_size="),
        (lambda x, b: softmax(x, b), "pass num_nodes="),
        (lambda x, b: degree(b), "pass num_nodes="),
        (lambda x, b: pyg_nn.SumAggregation()(x, b), r"pass dim_size=.*to_fixed_size"),
        (lambda x, b: pyg_nn.HypergraphConv(4, 2)(x, torch.stack([b, b])), "pass num_edges="),
        (lambda x, b: add_remaining_self_loops(torch.stack([b, b]))[0], "pass num_nodes="),
        (lambda x, b: pyg_nn.GPSConv(4, None, attn_type="performer")(x, None, b), "multihead"),
    ],
)
def test_a_size_that_is_left_out_is_asked_for_by_the_name_of_the_argument(call, remedy):
    with pytest.raises(DynamicShapeError, match=remedy):
        compile(call, [X.float(), torch.tensor([0, 0, 1, 1, 2, 2])])
