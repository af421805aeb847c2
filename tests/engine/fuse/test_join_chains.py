"""Chains compute the same as their operations one by one, on any memory."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from popgeo import compile_forward
from popgeo.capture.capture import bind, capture
from popgeo.engine.fuse.chain import CHAIN
from popgeo.engine.graph_runner import GraphRunner, fuse
from popgeo.native import library

pytestmark = pytest.mark.skipif(not library.is_available(), reason="joined operations need the compiled library")

NAN, INF = float("nan"), float("inf")
SPECIAL = torch.tensor(
    [0.0, NAN, INF, -INF, 1.0, -1.0, 1e-40, -1e-40, 1e38, 88.7, 88.8, -87.4, -103.9, -104.1, 20.1, 3e22]
)


def chains_of(runner: GraphRunner) -> list[int]:
    """Return the number of operations in each chain."""
    return [op.args[0].num_ops for op in runner.runs.ops if op.target == CHAIN]


def run_joined(function: Callable[..., Any], *inputs: Tensor) -> tuple[list[Tensor], list[int]]:
    """Return the results of a run, which a second run repeats, and the chains of the graph."""
    captured = capture(function, bind(function, *(x.clone() for x in inputs)))
    runner = GraphRunner(captured.graph, {})
    returned = len(captured.graph.outputs) - len(captured.written)  # what is written back comes last
    first = [result.clone() for result in runner.run(inputs)[:returned] if result is not None]
    again = [result for result in runner.run(inputs)[:returned] if result is not None]
    assert all(torch.equal(a.nan_to_num(7), b.nan_to_num(7)) for a, b in zip(first, again, strict=True))
    return first, chains_of(runner)


def assert_joined(function: Callable[..., Any], *inputs: Tensor, chains: list[int], rtol: float = 1e-6) -> None:
    results, found = run_joined(function, *inputs)
    expected = function(*(x.clone() for x in inputs))
    assert found == chains
    for result, want in zip(results, expected if isinstance(expected, tuple) else (expected,), strict=True):
        assert_close(result, want, rtol=rtol, atol=10 * rtol, equal_nan=True)


EXACT = {
    "neg": Tensor.neg, "abs": Tensor.abs, "sign": Tensor.sign, "reciprocal": Tensor.reciprocal, "square": Tensor.square,
    "cube": lambda x: x**3, "inverse square": lambda x: x**-2, "relu": F.relu, "leaky": lambda x: F.leaky_relu(x, 0.1),
    "plus": lambda x: x + 0.3, "from": lambda x: 1 - x, "times": lambda x: 0.3 * x, "over": lambda x: x / 3,
    "bounded": lambda x: x.clamp(-0.3, 0.7), "below": lambda x: x.clamp_max(2), "at most": lambda x: x.clamp(max=2),
    "compared": lambda x: (x > 0.5).float(), "masks": lambda x: (~(x > 0.5) & (x != 1)).float(),
    "where": lambda x: torch.where(x > 0, x, 1.5), "filled": lambda x: x.masked_fill(x > 0, -INF),
    "scaled sum": lambda x: torch.add(x, x.flip(0), alpha=0.3),
    "scaled difference": lambda x: torch.sub(x, x.flip(0), alpha=3),
    "addcmul": lambda x: torch.addcmul(x, x.flip(0), x, value=0.1), "lerp": lambda x: torch.lerp(x, x.flip(0), 0.7),
    "addcdiv": lambda x: torch.addcdiv(x, x.flip(0), x, value=0.1), "max": lambda x: torch.maximum(x, x.flip(0)),
    "min": lambda x: torch.minimum(x, x.flip(0)),
    "threshold": lambda x: torch.ops.aten.threshold_backward(x.flip(0), x, 0),
}  # fmt: skip
ROUNDED = {
    "exp": Tensor.exp, "expm1": Tensor.expm1, "log": Tensor.log, "log1p": Tensor.log1p, "sqrt": Tensor.sqrt,
    "rsqrt": Tensor.rsqrt, "root": lambda x: x**0.5, "tanh": Tensor.tanh, "sigmoid": Tensor.sigmoid, "silu": F.silu,
    "sin": Tensor.sin, "cos": Tensor.cos, "softplus": F.softplus, "steep softplus": lambda x: F.softplus(x, 2, 5),
    "silu'": lambda x: torch.ops.aten.silu_backward(x.flip(0), x),
    "sigmoid'": lambda x: torch.ops.aten.sigmoid_backward(x.flip(0), x),
    "tanh'": lambda x: torch.ops.aten.tanh_backward(x.flip(0), x),
    "softplus'": lambda x: torch.ops.aten.softplus_backward(x.flip(0), x, 2, 20),
    "shifted softplus": torch.ops.popgeo.shifted_softplus,
    "shifted softplus'": lambda x: torch.ops.popgeo.shifted_softplus_backward(x.flip(0), x),
}  # fmt: skip


def operands() -> Tensor:
    torch.manual_seed(0)
    return torch.cat([torch.randn(1500), 20 * torch.randn(300), 1e-4 * torch.randn(300), SPECIAL, SPECIAL.flip(0)])


@pytest.mark.parametrize("name", EXACT)
def test_arithmetic_has_the_bits_of_torch_for_all_numbers_and_for_nan(name):
    x = operands()
    (result,), chains = run_joined(lambda x: -EXACT[name](x), x)
    assert len(chains) == 1
    assert_close(result, -EXACT[name](x), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", ROUNDED)
def test_functions_are_those_of_torch_to_rounding(name):
    x = operands()
    (result,), chains = run_joined(lambda x: -ROUNDED[name](x), x)
    assert len(chains) == 1
    assert_close(result, -ROUNDED[name](x), rtol=1e-6, atol=1e-37 if "softplus" not in name else 1e-7, equal_nan=True)


SEED = torch.Generator().manual_seed(0)
X, Y, ROW, COLUMN = (torch.randn(shape, generator=SEED) for shape in [(37, 100), (37, 100), (100,), (37, 1)])


def test_rows_columns_and_single_numbers_are_stretched():
    assert_joined(lambda x, r, c, s: ((x * r + c) * s - 2).exp(), X, ROW, COLUMN, torch.tensor(0.5), chains=[5])


def test_transposed_operands_and_parts_of_rows_are_read_where_they_lie():
    assert_joined(lambda x, y: x[:, :50] * 2 + y.t()[:37, 3:53], X, torch.randn(60, 40), chains=[2])
    assert_joined(lambda x, y: (x.t() * 2 + y.t(), x[::2, ::3] * 3 + 1), X, Y, chains=[2, 2])


@pytest.mark.parametrize("shape", [(37, 100), (3, 5000), (40000, 3), (70000,)])
def test_a_chain_ends_in_sums_over_rows_columns_or_all(shape):
    def function(x):
        y = x.abs() + 1
        dims = list(range(x.dim()))
        return (*(y.sum(d, keepdim=True) for d in dims), *(y.sum(d) for d in dims), y.sum(), y)

    assert_joined(function, torch.randn(shape), chains=[3 + 2 * len(shape)])


def test_single_columns_of_wider_rows_are_read_where_they_lie():
    assert_joined(lambda x: (x[:, :1] + x[:, 2:3]) * 3, torch.randn(40, 5), chains=[2])


def test_a_sum_that_is_asked_for_after_another_use_runs_by_itself():
    def function(x, y):
        z = (x + y) * 2
        product = z @ z.t()
        return product, z.sum(0), z

    assert_joined(function, X, Y, chains=[2], rtol=1e-5)


def test_what_an_operation_between_them_needs_is_made_before_it():
    def function(x, y):
        a = x * 2
        b = a.exp()
        gathered = b[torch.tensor([1, 0])]
        c = b + y
        return gathered.cumsum(0), c * 3

    assert_joined(function, X, Y, chains=[2, 2])


def test_memory_that_is_changed_in_place_is_read_before_or_after_as_in_torch():
    def function(x, y):
        old = x * 2
        x.add_(y).mul_(old)
        again = x - old
        part = x[0]
        x.mul_(0.5)
        return old, again, part + 1, x

    results, _ = run_joined(function, X, Y)
    for result, want in zip(results, function(X.clone(), Y), strict=True):
        assert torch.equal(result, want)


def test_another_look_at_memory_that_a_chain_changes_is_no_part_of_it():
    def shifted(x):
        x[:, 1:].add_(1).mul_(2)
        y = x[:, :-1] * 3 + 1
        return y, x

    def its_own_row(x):
        before = x[0] * 2 + 1
        x.mul_(2).add_(1)
        return x * x[0] + before, x

    for function in (shifted, its_own_row):
        results, _ = run_joined(function, X)
        for result, want in zip(results, function(X.clone()), strict=True):
            assert torch.equal(result, want)


def test_a_result_may_take_the_place_of_an_operand_that_is_read_later_in_the_chain():
    def function(x, y):
        a, b = x.cos().cumsum(0), y.cos().cumsum(0)  # operands that the engine places and then needs no more
        c = a + b
        d = c * a
        return c, d - b

    results, chains = run_joined(function, X, Y)
    assert max(chains) == 3
    for result, want in zip(results, function(X, Y), strict=True):
        assert_close(result, want, rtol=1e-5, atol=1e-5)


def test_single_inexact_operations_other_types_and_empty_tensors_stay_as_they_are():
    assert_joined(lambda x: x.cos(), X, chains=[])
    assert_joined(lambda x: x * 2, X, chains=[1])  # rounded as in torch
    assert_joined(lambda x: (x * 2 + 1).exp(), X.double(), chains=[])
    assert_joined(lambda x: x * 2 + 1, torch.randn(0, 3), chains=[])
    assert_joined(lambda x: (x * 2 + 1).half().float() * 2, X, chains=[2, 1])
    assert_joined(lambda x: (x * 2 + 1) * 1e300, X[:1], chains=[2])  # the number is none in single precision


def test_the_captured_graph_and_checked_runs_know_nothing_of_chains():
    def function(x):
        return (x * 2).exp()

    graph = capture(function, bind(function, X)).graph
    runner = GraphRunner(graph, {}, floating_point_exceptions=True)
    assert chains_of(runner) == []
    assert [op.target for op in GraphRunner(graph, {}).graph.ops] == [op.target for op in graph.ops]
    with library.without_native():
        assert fuse(graph) is graph


UNARY = [Tensor.neg, Tensor.exp, Tensor.tanh, Tensor.relu, torch.ops.popgeo.shifted_softplus, lambda x: x.clamp(-1, 1)]
BINARY = [torch.add, torch.mul, torch.sub, torch.maximum, lambda x, y: torch.where(x > y, y, x * 0.5)]
SHAPES = [(5, 7), (7,), (5, 1), (1, 7), (), (5, 7)]


def random_program(choices: list[tuple[int, int, int]]) -> Callable[..., tuple[Tensor, ...]]:
    """Return a function of tensors with `SHAPES`; each choice makes one value, and may change an argument."""

    def function(*inputs: Tensor) -> tuple[Tensor, ...]:
        pool = list(inputs)
        for kind, first, second in choices:
            x, y = pool[first % len(pool)], pool[second % len(pool)]
            if kind < 6:
                pool.append(UNARY[kind](x).clamp(-3, 3))
            elif kind < 11:
                pool.append(BINARY[kind - 6](x, y).clamp(-3, 3))
            elif kind == 11 and torch.broadcast_shapes(x.shape, y.shape) == x.shape:
                x.mul_(0.5).add_(y)
            elif kind == 12:
                pool.append(x.sum(-1, keepdim=True) * 0.1 if x.dim() else x * 2)
            elif kind == 13 and x.dim() == 2:
                pool.append((x.t() * 2).t())
            elif kind == 14:
                pool.append(x.reshape(-1, 1) if x.dim() == 1 and len(x) == 5 else x.unsqueeze(0).squeeze(0))
            elif kind == 15 and x.dim() == 2:
                pool.append(x.sum(0).cumsum(0))
            pool[len(SHAPES) :] = [t for t in pool[len(SHAPES) :] if t.dim() <= 2]
        return tuple(t.clone() if index < len(SHAPES) else t for index, t in enumerate(pool))

    return function


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(0, 15), st.integers(0, 40), st.integers(0, 40)), min_size=2, max_size=14))
def test_random_programs_give_what_they_give_in_plain_torch(choices):
    generator = torch.Generator().manual_seed(len(choices))
    inputs = [torch.randn(shape, generator=generator) for shape in SHAPES]
    function = random_program(choices)
    results, _ = run_joined(function, *inputs)
    for result, want in zip(results, function(*(x.clone() for x in inputs)), strict=True):
        assert_close(result, want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("size", [(700, 100), (100, 700), (90000,), (3, 40000)])
def test_results_are_the_same_bits_for_any_number_of_threads_and_any_instruction_set(size):
    choose = library.function("popgeo_chain_isa", "q", "q")
    assert choose is not None

    def function(x):
        y = (F.softplus(x) * x.tanh()).exp() + torch.log(x.abs() + 1).cos() / 3
        z = torch.ops.popgeo.shifted_softplus(y) + F.silu(y)
        return z, z.sum(0), z.sum(-1), z.sum()

    x = torch.randn(size)
    before, found = torch.get_num_threads(), []
    try:
        for newest, threads in ((2, 1), (2, 2), (2, 4), (1, 3)):
            torch.set_num_threads(threads)
            if choose(newest):
                found.append(run_joined(function, x)[0])
    finally:
        choose(2)
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))


def test_operands_without_a_place_of_their_own_are_taken_from_where_each_run_has_them():
    def function(x, index):
        rows = torch.ops.popgeo.gather(x, index)  # allocates its result
        rows.mul_(2).add_(1)
        return rows, rows.exp() * rows

    assert_joined(function, X, torch.randint(37, (80,)), chains=[4])


def test_results_that_share_memory_with_a_narrower_operand_are_written_after_it_is_read():
    def function(x, y):
        column = x.cumsum(1)[:, :1].clone().cumsum(0)  # dies in the chain, which makes a sum of the same shape
        product = y * column
        total = product.sum(1, keepdim=True)
        return total, (product - column).tanh()

    assert_joined(function, X, Y, chains=[1, 4], rtol=1e-4)


def test_what_a_chain_makes_is_no_operand_of_it_where_it_is_read_in_another_order():
    def turned(x: Tensor) -> Tensor:
        a = x * 2 + 1
        return torch.exp(a.t()) + a

    x = torch.linspace(-1, 1, 25).view(5, 5)
    for function in (turned, lambda x: (x + 1) * (x + 1).t() - x):
        (result,), _ = run_joined(function, x)
        assert_close(result, function(x), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["tanh", "sin", "expm1", "neg", "sqrt", "silu"])
def test_a_zero_keeps_its_sign(name):
    class Chain(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return 1 / getattr(F if name == "silu" else torch, name)(x * 0.5)

    x = torch.tensor([0.0, -0.0, 1e6] * 8 + [0.0, -0.0, 0.25] * 8)
    torch.testing.assert_close(compile_forward(Chain(), (x,))(x), Chain()(x))


def test_layers_with_an_activation_between_them_allocate_nothing_in_a_run():
    """Torch's relu cannot write into given memory, so only a chain avoids the allocation."""
    layers = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 8))
    step = compile_forward(layers)
    x = torch.randn(40, 32)
    assert_close(step(x), layers(x))
    runner = step.bound.on_processor.usual
    assert isinstance(runner, GraphRunner)
    assert runner.peak_bytes == runner.buffer_bytes
