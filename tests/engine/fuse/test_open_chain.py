"""Which operations run as one chain, in small graphs, and that all give what torch gives."""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import popgeo.ops.shifted_softplus  # noqa: F401  makes its operations known to torch
from popgeo.capture.capture import bind, capture
from popgeo.capture.op_graph import Op, OpGraph, Ref, Value
from popgeo.engine.fuse import join_chains as joining
from popgeo.engine.fuse.chain import CHAIN, Chain
from popgeo.engine.fuse.fuse_graph import fuse
from popgeo.engine.fuse.join_chains import describe_joined, join_chains
from popgeo.engine.fuse.open_chain import summed_dimensions
from popgeo.engine.graph_runner import GraphRunner
from popgeo.native import library

native = pytest.mark.skipif(not library.is_available(), reason="joined operations need the compiled library")
SEED = torch.Generator().manual_seed(0)


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, generator=SEED)


def graph_of(function: Callable[..., Any], *inputs: Tensor) -> OpGraph:
    return capture(function, bind(function, *inputs)).graph


def chains(graph: OpGraph) -> list[int]:
    """How many operations each chain stands for, in order."""
    return [op.args[0].num_ops for op in join_chains(graph).ops if op.target == CHAIN]


def assert_runs(function: Callable[..., Any], *inputs: Tensor, joined: Sequence[int]) -> None:
    """The function has these chains, and gives and changes what it gives and changes in plain torch."""
    graph = graph_of(function, *(x.clone() for x in inputs))
    assert chains(graph) == list(joined)
    expected = function(*(own := [x.clone() for x in inputs]))
    expected = list(expected) if isinstance(expected, tuple) else [expected]
    given = [x.clone() for x in inputs]
    results = GraphRunner(graph, {}).run(given)
    for result, want in zip(results[: len(expected)], expected, strict=True):
        assert_close(result, want, rtol=1e-5, atol=1e-5)
    for result, want in zip(
        results[len(expected) :], [y for y, x in zip(own, inputs, strict=True) if not torch.equal(y, x)], strict=True
    ):
        assert_close(result, want, rtol=1e-5, atol=1e-5)


X, Y, Z, SQUARE, OTHER = draw(4, 6), draw(4, 6), draw(4, 6), draw(5, 5), draw(5, 5)
DEEP, DEEPER = draw(3, 4, 5), draw(3, 4, 5)


@native
def test_elements_go_in_the_order_of_memory():
    assert_runs(lambda x: x * 2 + 1, DEEP, joined=[2])
    assert_runs(lambda x: x.permute(2, 0, 1) * 2 + 1, DEEP, joined=[2])
    shapes = [
        [op.args[0].shape for op in join_chains(graph_of(f, X)).ops if op.target == CHAIN]
        for f in (lambda x: x * 2 + 1, lambda x: x.t() * 2 + 1, lambda x: x[None, :, None] * 2 + 1)
    ]
    assert shapes == [[(4, 6)]] * 3


@native
def test_what_would_need_three_dimensions_is_not_joined():
    assert_runs(
        lambda x, y: (x * y.permute(2, 0, 1)[:4, :3].permute(1, 0, 2) + 1, x.exp()), DEEP, draw(4, 5, 6), joined=[]
    )
    wide, high = draw(3, 4, 7), draw(3, 6, 5)
    assert_runs(lambda x, y: x[:, :, :5] * 2 + 1, wide, high, joined=[2])
    assert_runs(lambda x, y: y[:, :4] * 2 + 1, wide, high, joined=[2])
    # Each is rows and columns by itself, but not with the other.
    assert_runs(lambda x, y: (x[:, :, :5] * 2 + 1) + (y[:, :4] * 3 - 1), wide, high, joined=[2, 3])


@native
@pytest.mark.parametrize("first", [30, 47, 48, 50])
def test_a_chain_has_at_most_48_steps(first):
    def function(x):
        for _ in range(first):
            x = (x + 1) if _ % 2 else (x * 0.9)
        return x

    assert_runs(function, X, joined=[first] if first <= 48 else [48, 2])


@native
def test_two_chains_that_would_be_too_long_together_stay_two():
    def function(x, y):
        for _ in range(15):
            x, y = x * 0.9 + 1, y * 0.8 - 1
        return x + y

    assert_runs(function, X, Y, joined=[30, 31])


@native
def test_a_full_chain_ends_and_one_that_has_ended_takes_no_more():
    def long(x):
        for _ in range(24):
            x = x * 0.9 + 1
        return x

    def short_first(x, y):
        y = y * 0.8 - 1
        return long(x) + y, y.exp()

    def long_first(x, y):
        x, y = long(x), y * 0.8 - 1
        return x + y, y.exp()

    assert_runs(short_first, X, Y, joined=[48, 4])
    assert_runs(long_first, X, Y, joined=[2, 48, 2])


@native
def test_one_number_for_several_elements_is_not_changed_by_a_chain():
    def function(x):
        x.as_strided(sizes, (0, 1)).mul_(2).add_(1)
        return x.exp()

    sizes = (2, 4)
    with pytest.raises(RuntimeError, match="single memory location"):
        GraphRunner(graph_of(function, draw(4)), {}).run([draw(4)])
    sizes = (1, 4)
    assert_runs(function, draw(4), joined=[3])


@native
def test_an_operation_without_steps_ends_a_chain():
    assert_runs(lambda x: (x * 2 + 1) ** 4 * 3 + 1, X, joined=[2, 2])


@native
def test_two_chains_in_different_orders_stay_two():
    assert_runs(lambda x, y: (x * 2 + 1) + (y.t() * 3 - 1), X, Y.t().contiguous(), joined=[2, 3])


@native
def test_two_chains_become_one_with_all_that_they_hold():
    def function(x, y, z, row):
        a = x * 2 + row
        b = y * 3 - 0.5
        s = b.sum(0)
        z.mul_(b)
        t = (b * 4).sum()
        c = a + b
        return a, s, c * 7, z.exp(), t

    assert_runs(function, X, Y, Z, draw(6), joined=[11])


@native
def test_chains_share_what_they_read():
    assert_runs(lambda x, y: (x * 2 + 1, x * 3 - 1), X, Y, joined=[4])
    assert_runs(lambda x, y: (x * 2 + 1, y * 3 - 1), X, Y, joined=[2, 2])
    assert_runs(lambda x, y: (x * 2 + 1, x[:2] * 3 - 1), X, Y, joined=[2, 2])


@native
def test_four_chains_wait_at_most():
    def function(num_chains):
        def run(*inputs):
            started = [x * 2 + 1 for x in inputs[:num_chains]]
            return (*started[1:], started[0] * 3 - 1, started[1].exp())

        return run

    inputs = [draw(4, 6) for _ in range(5)]
    assert_runs(function(4), *inputs, joined=[4, 3, 2, 2])
    assert_runs(function(5), *inputs, joined=[2, 2, 2, 2, 2, 2])


@native
def test_a_change_waits_for_what_either_of_two_joined_chains_reads():
    def function(x, y):
        a, b = x * 2 + 1, y * 3 - 0.5
        c = a + b
        y[:, 1:].mul_(2)
        k = y.cumsum(0)
        return c * 2, k, y * 1

    assert_runs(function, X, Y, joined=[5])


@native
def test_a_change_of_what_a_joined_chain_changed_waits_for_it():
    def function(x, y):
        a = x * 2 + 1
        y.mul_(3)
        b = y + 1
        c = a + b
        k = y.cumsum(0)
        return c, k

    assert_runs(function, X, Y, joined=[5])


@native
def test_memory_seen_in_two_orders_is_changed_in_one():
    def made_then_turned(x, y):
        a = x * 2 + 1
        a.t().mul_(y)
        return a

    def changed_then_turned(x, y):
        x.add_(1).mul_(2)
        x.t().mul_(y).add_(1)
        return x * 1

    def read_then_changed(x, y):
        c = x.t() * y + 1
        x.add_(1).mul_(2)
        return c, x * 1

    def changed_then_read(x, y):
        x.add_(1).mul_(2)
        return x.t() * y + x

    for function, joined in (
        (made_then_turned, [2]),
        (changed_then_turned, [2, 2]),
        (read_then_changed, [2, 3]),
        (changed_then_read, [2, 2]),
    ):
        assert_runs(function, SQUARE, OTHER, joined=joined)


@native
def test_views_are_taken_in_where_they_show_the_same_elements():
    assert_runs(lambda x: ((x * 2 + 1).unsqueeze(1) * 3).view(4, 6, 1).exp(), X, joined=[6])
    graph = join_chains(graph_of(lambda x: (x * 2 + 1).unsqueeze(1).exp() * 2, X))
    assert [op.target for op in graph.ops] == [CHAIN]  # nobody else needs the view
    assert len(graph.ops[0].outputs) == 1

    def view_used(x):
        a = (x * 2 + 1).unsqueeze(0)
        return a.exp() * 2, a.cumsum(1)

    assert_runs(view_used, X, joined=[5])
    assert [op.target for op in join_chains(graph_of(view_used, X)).ops] == [
        CHAIN, "aten.unsqueeze.default", "aten.cumsum.default",
    ]  # fmt: skip


@native
def test_views_of_other_elements_or_as_another_type_end_a_chain():
    assert_runs(lambda x: (x * 2 + 1)[:, :3].exp() * 2, X, joined=[2, 2])
    assert_runs(lambda x: (x * 2 + 1).t().exp() * 2, SQUARE, joined=[2, 2])
    assert_runs(lambda x: (x * 2 + 1).view(6, 4).exp() * 2, X, joined=[2, 2])
    assert_runs(lambda x: ((x * 2 + 1).view(torch.int32) >> 1).sum(0), X, joined=[2])
    assert_runs(lambda x: (x * 2 + 1).split([4, 0])[0].exp() * 2, X, joined=[5])
    assert_runs(lambda x: (x * 2 + 1).split([3, 1])[0].exp() * 2, X, joined=[2, 2])
    assert_runs(lambda x: (x * 2 + 1).cumsum_(0).exp() * 2, X, joined=[2, 2])
    assert_runs(lambda x: torch.stack((x * 2 + 1).unbind(0)), X, joined=[2])


@native
@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("dims", [(0,), (1,), (0, 1), (-1,), (-2, 1), None])
def test_sums_over_any_dimensions_are_taken_in(dims, keepdim):
    def function(x):
        a = x * 2 + 1
        return (a.sum(dims, keepdim=keepdim) if dims else a.sum()), a.exp()

    assert_runs(function, X, joined=[4])


@native
def test_sums_that_are_no_end_of_a_chain_run_by_themselves():
    assert_runs(lambda x: (x * 2 + 1).sum((0, 2)), DEEP, joined=[2])
    assert_runs(lambda x: (x * 2 + 1).sum((1, 2)), DEEP, joined=[3])
    assert_runs(lambda x: (x * 2 + 1).sum((0, 1)), DEEP, joined=[3])
    assert_runs(lambda x: (x * 2 + 1).sum(1), draw(5, 1), joined=[2])
    assert_runs(lambda x: (x * 2 + 1).sum(1, keepdim=True) * 2, draw(5, 1), joined=[2])
    assert_runs(lambda x: (x * 2 + 1).sum((0, 1)), draw(5, 1), joined=[3])
    assert_runs(lambda x: (x * 2 + 1).sum(0, dtype=torch.float64), X, joined=[2])
    assert_runs(lambda x: (x * 2 + 1)[:, :3].sum(0), X, joined=[2])
    assert_runs(lambda x: (x * 2 + 1).t().sum(0), SQUARE, joined=[2])
    assert_runs(lambda x: (x > 0).sum(0), X, joined=[])
    assert_runs(lambda x: x.sum(0), X, joined=[])
    assert_runs(lambda x: ((x * 2).sum() + 1) * 3, X, joined=[2, 2])


@native
def test_a_late_sum_is_of_what_the_chain_made():
    def changed_by_another_operation(x, y):
        z = (x + y) * 2
        product = z @ z.t()
        z.cumsum_(0)
        return z.sum(0), product

    def changed_by_a_later_chain(x, y):
        z = (x + y) * 2
        product = z @ z.t()
        z.add_(1).mul_(2)
        return z.sum(0), product

    def of_a_part(x, y):
        z = (x + y) * 2
        product = z @ z.t()
        return z[:, :3].sum(0), product

    def of_what_was_read(x, y):
        z = (x + y) * 2
        return z @ z.t(), x.sum(0)

    def of_a_chain_that_was_taken_over(x, y):
        a, b = x * 2, y * 3 + 1
        c = a + b
        return c @ c.t(), b.sum(0)

    def of_a_chain_that_changed_it_and_was_taken_over(x, y):
        a, b = x * 2, y * 3
        b.add_(1)
        c = a + b
        return c @ c.t(), b.sum(0)

    for function, joined in (
        (changed_by_another_operation, [2]),
        (changed_by_a_later_chain, [2, 3]),
        (of_a_part, [2]),
        (of_what_was_read, [2]),
        (of_a_chain_that_was_taken_over, [5]),
        (of_a_chain_that_changed_it_and_was_taken_over, [5]),
    ):
        assert_runs(function, X, Y, joined=joined)


@native
def test_empty_tensors_and_numbers_beyond_single_precision_are_left():
    assert_runs(lambda x: (x * 2 + 1).sum(0), draw(0, 3), joined=[])
    assert_runs(lambda x: (x * 2 + 1) * 1e39, X, joined=[2])


@native
def test_an_operation_of_torch_alone_stays_but_one_of_ours_does_not():
    assert_runs(lambda x: x * 2, X, joined=[])
    assert_runs(lambda x: torch.ops.popgeo.shifted_softplus(x), X, joined=[1])
    assert_runs(lambda x: (x * 2).view(-1).cumsum(0), X, joined=[])


class Scaled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2 + 1


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scaled = Scaled()

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return self.scaled(x).exp().cumsum(0), self.scaled(y).cumsum(0)


@native
def test_what_a_chain_says_of_itself():
    graph = graph_of(Two(), X, draw(3, 2))
    joined = join_chains(graph)
    first, second = (op for op in joined.ops if op.target == CHAIN)
    inputs = list(graph.inputs.values())
    assert [(op.args[0].num_ops, op.module, op.phase) for op in (first, second)] == [
        (3, "", "forward"), (2, "scaled", "forward"),
    ]  # fmt: skip
    assert first.source == graph.ops[0].source
    assert (first.args[1], first.args[2], first.writes) == ([Ref(inputs[0])], [], ())
    exp = next(op for op in graph.ops if op.target == "aten.exp.default")
    assert first.outputs == exp.outputs  # and nothing of what nobody else reads
    changed = join_chains(graph_of(lambda x, y: x.add_(y).mul_(2), X, Y))
    assert [(op.args[1], op.outputs, op.writes) for op in changed.ops] == [([Ref(0), Ref(1)], (0,), (0,))]


def test_how_many_operations_are_joined():
    def joined(*sizes: int) -> OpGraph:
        made = [Chain(shape=(2,), steps=(), operands=(), numbers=(), results=(), num_ops=num_ops) for num_ops in sizes]
        ops = [Op(target=CHAIN, args=(chain, [], []), outputs=()) for chain in made]
        return OpGraph(ops=(*ops, Op(target="aten.sym.default", args=(), outputs=())), values=(), inputs={}, outputs=())

    assert describe_joined(joined()) == ""
    assert describe_joined(joined(3)) == "3 operations in 1 chain"
    assert describe_joined(joined(1200, 30)) == "1,230 operations in 2 chains"


def test_nothing_is_joined_on_processors_without_multiply_and_add(monkeypatch):
    asked = []

    def chooses(level: int) -> Callable[..., Callable[[int], int]]:
        return lambda *names: lambda newest: asked.append((names[0], newest)) or level

    for function, expected in (
        (chooses(2), True),
        (chooses(1), True),
        (chooses(0), False),
        (lambda *names: None, False),
    ):
        monkeypatch.setattr(joining.library, "function", function)
        assert joining._is_fast.__wrapped__() is expected
    assert set(asked) == {("popgeo_chain_isa", 2)}
    graph = graph_of(lambda x: x * 2 + 1, X)
    monkeypatch.setattr(joining, "_is_fast", lambda: False)
    assert join_chains(graph) is graph


F32, F64, I64 = torch.float32, torch.float64, torch.int64


@pytest.mark.parametrize(
    ("target", "args", "kwargs", "operand", "types", "expected"),
    [
        ("dim_IntList", ([0],), {}, (2, 3), (F32, F32), [0]),
        ("dim_IntList", ([-1],), {}, (2, 3), (F32, F32), [1]),
        ("dim_IntList", ([1, -2], True), {}, (2, 3), (F32, F32), [0, 1]),
        ("dim_IntList", ([],), {}, (2, 3), (F32, F32), [0, 1]),
        ("dim_IntList", (None,), {}, (2, 3), (F32, F32), [0, 1]),
        ("default", (), {}, (2, 3), (F32, F32), [0, 1]),
        ("default", (), {}, (), (F32, F32), None),
        ("default", (), {}, (0, 3), (F32, F32), None),
        ("default", (), {}, (2, 3), (F64, F64), None),
        ("default", (), {}, (2, 3), (I64, F32), None),
        ("default", (), {}, (2, 3), (F32, F64), None),
        ("default", (), {"dtype": F32}, (2, 3), (F32, F32), None),
        ("IntList_out", ([0],), {}, (2, 3), (F32, F32), None),
    ],
)
def test_dimensions_that_a_chain_can_sum(target, args, kwargs, operand, types, expected):
    values = [
        Value(shape=shape, stride=(1,) * len(shape), offset=0, dtype=dtype, storage=v, producer=None)
        for v, (shape, dtype) in enumerate(zip((operand, ()), types, strict=True))
    ]
    op = Op(target=f"aten.sum.{target}", args=(Ref(0), *args), kwargs=kwargs, outputs=(1,))
    assert summed_dimensions(op, values) == expected


def test_without_the_library_nothing_is_joined():
    graph = graph_of(lambda x: x * 2 + 1, X)
    with library.without_native():
        assert fuse(graph) is graph
    if library.is_available():
        assert operator.countOf((op.target for op in fuse(graph).ops), CHAIN) == 1
