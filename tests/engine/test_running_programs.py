"""Each way of running a captured program gives the results of eager PyTorch."""

import itertools

import hypothesis
import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from popgeo.capture.capture import bind, capture
from popgeo.capture.held_state import module_state
from popgeo.capture.op_graph import OpGraph
from popgeo.engine import inductor
from popgeo.engine.graph_runner import GraphRunner
from popgeo.engine.inductor import InductorRunner, as_module
from popgeo.engine.memory_plan import place_values
from popgeo.engine.program.bound_program import BoundProgram
from tests.engine.test_memory_plan import graph_of

INDEX = torch.tensor([2, 0, 0, 3])


def _written(x: Tensor, y: Tensor) -> Tensor:
    z = x.clone()
    z[1:3] = y[:2]
    z.t()[0].add_(1)
    return z


STEPS = {
    "add": lambda x, y: x + y,
    "scaled": lambda x, y: x.add(y, alpha=0.5),
    "matmul": lambda x, y: x @ y,
    "cos": lambda x, y: x.cos(),
    "transposed": lambda x, y: x.t(),
    "cat": lambda x, y: torch.cat([x[:3], y[3:]]),
    "stack": lambda x, y: torch.stack([x[0], y[1], x[2], y[3]], dim=1),
    "row": lambda x, y: x[2] + y,
    "column": lambda x, y: y * x.mean(1, keepdim=True),
    "written": _written,
    "top": lambda x, y: x.topk(4, dim=1).values,
    "both of top": lambda x, y: (lambda top: top.values + top.indices)(y.topk(4, dim=0)),
    "median": lambda x, y: x.median(1, keepdim=True).values - y,
    "wide": lambda x, y: (x.double() * 2).float(),
    "clamped": lambda x, y: x.clamp(min=-0.5, max=float("inf")),
    "where": lambda x, y: torch.where(x > 0.1, y, -1.5),
    "rolled": lambda x, y: x.roll(1, 0),
    "parts": lambda x, y: x.split(2)[1].repeat(2, 1) + y.unbind(1)[2],
    "one part": lambda x, y: y.roll(1, 1).split(4)[0] + x,
    "indexed": lambda x, y: x[INDEX],
    "summed": lambda x, y: torch.zeros_like(x).index_add(0, INDEX, y),
    "ones": lambda x, y: torch.ones_like(x) * y,
    "full": lambda x, y: torch.full((4, 4), 0.1, dtype=torch.float64).float() + x,
    "emptied": lambda x, y: x.new_empty(4, 4).copy_(y),
    "normed": lambda x, y: torch.nn.functional.layer_norm(x, [4]) + y,
}
PROGRAMS = st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 3), st.integers(0, 3)), max_size=8)


def program(steps: list[tuple[str, int, int]]):
    """Return a program in which each step takes one of the last few values; it returns the last ones, one twice."""

    def function(x, y):
        values = [x, y]
        for name, first, second in steps:
            values.append(STEPS[name](values[-1 - first % len(values)], values[-1 - second % len(values)]))
        return [*values[-3:], values[-2]]

    return function


def inputs() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.rand(4, 4, generator=generator) - 0.5 for _ in range(2)]


def unfused(graph: OpGraph, given: list[Tensor]) -> list[Tensor]:
    """Run operations that are not fused."""
    known = dict(zip(graph.inputs.values(), given, strict=True)) | dict(graph.constants)
    tensors = place_values(graph, known)[0]
    BoundProgram(graph, tensors).run()
    return [tensors[v] for v in graph.outputs]


def into_places(graph: OpGraph, given: list[Tensor]) -> list[Tensor]:
    """Run twice with places for results, one of them with other strides."""
    places = {number: torch.full((4, 4), 9.0) for number in (0, 1, 3)}
    places[2] = torch.full((4, 4), 9.0, dtype=torch.float64).t()
    runner = GraphRunner(graph, {}, places)
    for one in ([tensor.neg() for tensor in given], given):
        made = runner.run(one)
    assert all(made[number] is place or made[number].data_ptr() == place.data_ptr() for number, place in places.items())
    return [places[0], places[1], places[2].float(), places[3]]


WAYS = {
    "unfused": unfused,
    "joined": lambda graph, given: GraphRunner(graph, {}).run(given),
    "checked": lambda graph, given: GraphRunner(graph, {}, floating_point_exceptions=True).run(given),
    "into places": into_places,
    "fx": lambda graph, given: list(as_module(graph)(*given)),
}


def check(steps: list[tuple[str, int, int]]) -> None:
    function, given = program(steps), inputs()
    graph, expected = graph_of(function, *given), function(*inputs())
    for name, way in WAYS.items():
        if name == "into places" and len(steps) < 1:
            continue
        made = way(graph, [tensor.clone() for tensor in given])
        for mine, theirs in zip(made, expected, strict=True):
            torch.testing.assert_close(
                mine, theirs, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
            )


@pytest.mark.parametrize("first", sorted(STEPS))
def test_each_operation_alone_and_among_views_gives_what_eager_code_gives(first: str):
    check([(first, 0, 1)])
    check([("cos", 0, 0), (first, 0, 1), ("transposed", 0, 0), ("add", 0, 1)])


@hypothesis.settings(deadline=None, max_examples=10, derandomize=True)
@hypothesis.given(steps=PROGRAMS)
def test_programs_of_a_few_operations_give_what_eager_code_gives(steps):
    check(steps)


def test_results_that_are_wanted_somewhere_need_no_memory_beside_that():
    x = torch.zeros(1024)
    graph = graph_of(lambda x: (x.cos(), x.sin().exp()), x)
    both = {0: torch.ones(1024), 1: torch.ones(1024)}
    assert GraphRunner(graph, {}).buffer_bytes == 3 * 4096
    assert GraphRunner(graph, {}, both).buffer_bytes == GraphRunner(graph, {}, both).peak_bytes
    assert GraphRunner(graph, {}, both).buffer_bytes <= 2 * 4096  # the input, and what the chain may keep between
    assert GraphRunner(graph_of(torch.cos, x), {}, {0: torch.ones(1024)}).buffer_bytes == 4096
    assert GraphRunner(graph_of(lambda x: x.cumsum(0).sum(), x), {}).peak_bytes == 4096 + 4096 + 64


def test_inductors_runner_takes_any_layout_and_writes_where_it_is_told(monkeypatch: pytest.MonkeyPatch):
    strides = []

    def eager(module, examples):
        strides.append([tensor.stride() for tensor in examples])

        def run(*given):
            strides.append([tensor.stride() for tensor in given])
            return module(*given)

        return run

    monkeypatch.setattr(inductor, "_compiled", eager)
    x, y = inputs()
    graph = graph_of(lambda x, y: (x @ y, x.t() + 1), x, y.t())
    place = torch.zeros(4, 4)
    runner = InductorRunner(graph, {}, {0: place})
    assert runner.buffer_bytes == 2 * 64
    assert runner.draws_random_numbers is False
    assert runner.describe() == (f"{len(graph.ops)} operations through inductor", "")
    for given in itertools.product((x, x.t().contiguous().t()), (y.t(), y.t().contiguous())):
        made = runner.run(given)
        assert made[0] is place
        torch.testing.assert_close(place, given[0] @ given[1])
        torch.testing.assert_close(made[-1], given[0].t() + 1)
    assert {tuple(one) for one in strides} == {((4, 1), (1, 4))}
    model = torch.nn.Linear(4, 2)
    with_state = InductorRunner(capture(model, bind(model.forward, x)).graph, module_state(model))
    torch.testing.assert_close(with_state.run([x])[0], model(x).detach())
    assert with_state.buffer_bytes == (4 * 4 + 4 * 2 + 2) * 4
    assert InductorRunner(graph_of(torch.rand_like, x), {}).draws_random_numbers is True


@pytest.mark.parametrize(
    ("name", "message", "kind"),
    [
        ("InvalidCxxCompiler", "none", ValueError),
        ("RuntimeError", "see InvalidCxxCompiler", ValueError),
        ("RuntimeError", "something else", RuntimeError),
    ],
)
def test_without_a_compiler_inductor_says_so(monkeypatch: pytest.MonkeyPatch, name: str, message: str, kind: type):
    def fail(module, examples, options):
        assert options == {"fallback_random": True}
        raise type(name, (RuntimeError,), {})(message)

    monkeypatch.setattr("torch._inductor.compile", fail)
    with pytest.raises(kind, match="no C\\+\\+ compiler" if kind is ValueError else message):
        InductorRunner(graph_of(torch.cos, torch.zeros(2)), {})
