"""Loops and branches whose bodies read, change and return values in memory or arguments of the call."""

import pytest
import torch
from torch import Tensor, nn

from popgeo.capture.capture import bind
from popgeo.capture.capture_step import capture_step
from popgeo.capture.control_flow import COND, FOR_LOOP, cond, for_loop
from popgeo.capture.held_state import module_state
from popgeo.capture.op_graph import OpGraph, Role
from popgeo.engine import graph_runner
from popgeo.engine.graph_runner import GraphRunner, call_cond, call_for_loop

X, Y = torch.randn(2, 3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def looped(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    first, second = x.exp(), y * 2
    a, b = for_loop(4, lambda a, b: (b * second, a + first[0]), [first, second])
    return a, b, first, *for_loop(1, lambda a: a * y, [x])


def branched(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    first = x.exp()
    left = cond(x.sum() > 0, lambda a, b: (a * y + b, b * 2), [first, x], lambda a: (a - y, a + first), [y])
    right = cond(y.sum() > x.sum(), lambda a: a.add_(1), [first], lambda: first * 3, [])
    return *left, *right, first


@pytest.mark.parametrize("function", [looped, branched])
def test_a_graph_with_bodies_gives_what_eager_torch_gives_at_each_run(function):
    step = capture_step(function, bind(function, X, Y))
    runner = GraphRunner(step.graph, {})
    for x, y in ((X, Y), (-X, Y), (X, -Y), (-X, -Y), (Y, Y)):
        expected = function(x.clone(), y.clone())
        torch.testing.assert_close(runner.run([x, y]), list(expected), rtol=1e-12, atol=1e-12)


class Summed(nn.Module):
    """A loop that reads a buffer in the model's memory."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("add", torch.ones(3, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return for_loop(3, lambda a: a + self.add, [x])[0]


def test_state_that_a_body_reads_is_read_where_it_lies():
    model = Summed()
    runner = GraphRunner(capture_step(model, bind(model, X)).graph, module_state(model))
    for value in (1.0, 5.0):
        model.add.fill_(value)
        torch.testing.assert_close(runner.run([X]), [X + 3 * value])


def only_op(function, target: str) -> tuple[OpGraph, object]:
    graph = capture_step(function, bind(function, X, Y)).graph
    (op,) = (op for op in graph.ops if op.target == target)
    return graph, op


def test_what_a_body_only_reads_stays_where_it_is(monkeypatch):
    made = []

    def make(graph: OpGraph, state) -> GraphRunner:
        made.append(state)
        return GraphRunner(graph, state)

    graph, op = only_op(lambda x, y: for_loop(3, lambda a: a * y + a[0] @ y, [x])[0], FOR_LOOP)
    x, y = graph.inputs_of(Role.ARGUMENT).values()
    place, tensors = torch.empty_like(X), {x: X.clone(), y: Y.clone()}
    monkeypatch.setattr(graph_runner, "GraphRunner", make)
    call = call_for_loop(graph, op, {**tensors, op.makes()[0]: place})
    for _ in range(2):
        call()
        expected = X
        for _ in range(3):
            expected = expected * Y + expected[0] @ Y
        torch.testing.assert_close(place, expected)
        place.zero_()
    assert torch.equal(tensors[x], X)
    assert [tensor is tensors[y] for tensor in made[0].values()] == [True]


@pytest.mark.parametrize("holds", [True, False])
def test_the_condition_is_read_at_each_call(holds: bool):
    function = lambda x, y: cond(x.sum() > 0, lambda a: a * y, [x], lambda a, b: a - b, [y, x])[0]  # noqa: E731
    graph, op = only_op(function, COND)
    x, y = graph.inputs_of(Role.ARGUMENT).values()
    place, flag = torch.empty_like(X), torch.tensor(not holds)
    call = call_cond(graph, op, {x: X, y: Y, op.args[0].value: flag, op.makes()[0]: place})
    flag.fill_(holds)
    call()
    assert torch.equal(place, X * Y if holds else Y - X)
