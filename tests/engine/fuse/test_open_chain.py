"""Small graphs show the operations that a chain takes; results are those of torch."""

import pytest
import torch

import popgeo.ops.shifted_softplus  # noqa: F401  makes its operations known to torch
from popgeo.capture.op_graph import Op, Ref, Value
from popgeo.engine.fuse.chain import CHAIN
from popgeo.engine.fuse.join_chains import join_chains
from popgeo.engine.fuse.open_chain import summed_dimensions
from popgeo.engine.graph_runner import GraphRunner
from tests.support.chains import DEEP, OTHER, SQUARE, X, Y, assert_runs, draw, graph_of, native


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
def test_views_of_what_a_chain_makes_end_it():
    assert_runs(lambda x: ((x * 2 + 1).unsqueeze(1) * 3 - 1).view(4, 6, 1).exp() * 2, X, joined=[2, 2, 2])
    assert_runs(lambda x: (x * 2 + 1)[:, :3].exp() * 2, X, joined=[2, 2])
    assert_runs(lambda x: (x * 2 + 1).t().exp() * 2, SQUARE, joined=[2, 2])
    assert_runs(lambda x: (x * 2 + 1).view(6, 4).exp() * 2, X, joined=[2, 2])
    assert_runs(lambda x: ((x * 2 + 1).view(torch.int32) >> 1).sum(0), X, joined=[2])
    assert_runs(lambda x: (x * 2 + 1).split([4, 0])[0].exp() * 2, X, joined=[2, 2])
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
def test_a_sum_after_the_end_of_a_chain_runs_by_itself():
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
        (of_a_chain_that_was_taken_over, [4]),
        (of_a_chain_that_changed_it_and_was_taken_over, [4]),
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
