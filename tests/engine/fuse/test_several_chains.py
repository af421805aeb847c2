"""Several open chains: chains that wait, end, merge or stay apart, and their description."""

import operator
from collections.abc import Callable

from torch import Tensor, nn

import popgeo.ops.shifted_softplus  # noqa: F401  makes its operations known to torch
from popgeo.capture.op_graph import Op, OpGraph, Ref
from popgeo.engine.fuse import join_chains as joining
from popgeo.engine.fuse.chain import CHAIN, Chain
from popgeo.engine.fuse.join_chains import describe_joined, join_chains
from popgeo.engine.graph_runner import fuse
from popgeo.native import library
from tests.support.chains import X, Y, Z, assert_runs, draw, graph_of, native


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
    assert_runs(long_first, X, Y, joined=[2, 48])


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
def test_chains_that_only_read_the_same_stay_two():
    assert_runs(lambda x, y: (x * 2 + 1, x * 3 - 1), X, Y, joined=[2, 2])


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


def test_without_the_library_nothing_is_joined():
    graph = graph_of(lambda x: x * 2 + 1, X)
    with library.without_native():
        assert fuse(graph) is graph
    if library.is_available():
        assert operator.countOf((op.target for op in fuse(graph).ops), CHAIN) == 1
