"""The calls of a program: native stretches and torch between them, inputs where the caller has them, interrupts."""

import os
import re
import signal
import threading
import time

import numpy as np
import pytest
import torch
from torch import Tensor

import popgeo
from popgeo.capture.capture import bind, capture
from popgeo.capture.op_graph import Input, Number, Op, OpGraph, Ref, Role, Value
from popgeo.engine.graph_runner import GraphRunner
from popgeo.engine.memory_plan import place_values
from popgeo.engine.program.bound_program import BoundProgram
from popgeo.engine.program.native_call import LOWERINGS, NativeCall
from popgeo.engine.program.stretch import Stretch
from popgeo.native import library
from popgeo.ops import scatter

native = pytest.mark.skipif(not library.is_available(), reason="native calls need the compiled library")
X = torch.rand(8, 8, generator=torch.Generator().manual_seed(0))


def graph_of(function, *inputs: Tensor) -> OpGraph:
    return capture(function, bind(function, *inputs)).graph


@native
def test_operations_without_a_kernel_run_in_torch_between_two_stretches():
    function = lambda x: torch.nn.functional.elu(x @ x) @ x  # noqa: E731
    runner = GraphRunner(graph_of(function, X), {})
    assert [op.target for op in runner.program.in_torch] == ["aten.elu.default"]
    assert runner.program.num_stretches == 2
    torch.testing.assert_close(runner.run([X])[0], function(X))


@native
def test_an_input_is_read_where_the_caller_has_it():
    runner = GraphRunner(graph_of(lambda x: x @ x + x, X), {}, follows_inputs=True)
    (place,) = runner._inputs
    place.fill_(torch.nan)
    odd = torch.frombuffer(bytearray(b"." + X.numpy().tobytes()), dtype=torch.float32, offset=1).view(8, 8)
    for given in (X, X.clone(), X + 1, X.t().contiguous().t(), X.repeat(2, 1)[3:11], torch.nn.Parameter(X), odd):
        torch.testing.assert_close(runner.run([given])[0], given @ given + given)


@native
@pytest.mark.parametrize(
    "function",
    [lambda x: x.cosh(), lambda x: (x @ x, x), lambda x: (x @ x, x.t()), lambda x: x.add_(1) @ x],
    ids=["torch", "returned", "view", "changed"],
)
def test_an_input_that_is_returned_changed_or_read_by_torch_is_copied(function):
    runner = GraphRunner(graph_of(function, X.clone()), {}, follows_inputs=True)
    assert runner.program.follows == [False]
    for _ in range(2):
        given, expected = (X.clone() for _ in range(2))
        made, wanted = runner.run([given])[0], function(expected)
        torch.testing.assert_close(made, wanted[0] if isinstance(wanted, tuple) else wanted)


@native
def test_torch_raises_its_own_error_for_what_a_kernel_declines():
    index = torch.arange(8)
    runner = GraphRunner(graph_of(lambda x, index: scatter(x * 2, index, dim_size=8), X, index), {})
    torch.testing.assert_close(runner.run([X, index])[0], X * 2)
    with pytest.raises((IndexError, ValueError), match="8"):
        runner.run([X, index + 1])
    torch.testing.assert_close(runner.run([X, index])[0], X * 2)


def sleeping(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower each `aten.cosh` to a native call that only takes time."""
    source, target = (np.zeros(1 << 24, np.float32) for _ in range(2))

    def lower(graph, op, tensors):
        lowered = LOWERINGS["aten.mm.default"]
        wide = torch.from_numpy(source).view(4096, 4096)
        values = [Value(shape=s, stride=(s[1], 1), offset=0, dtype=torch.float32, storage=i, producer=None)
                  for i, s in enumerate(((4096, 4096), (4096, 16), (4096, 16)))]  # fmt: skip
        some = OpGraph(ops=(), values=tuple(values), inputs={}, outputs=())
        narrow = torch.from_numpy(target).view(-1, 16)
        one = Op(target="aten.mm.default", args=(Ref(0), Ref(1)), outputs=(2,))
        return lowered(some, one, {0: wide, 1: narrow[:4096], 2: narrow[4096:8192]})

    monkeypatch.setitem(LOWERINGS, "aten.cosh.default", lower)


@native
def test_an_interrupt_stops_a_long_stretch_between_two_calls(monkeypatch: pytest.MonkeyPatch):
    sleeping(monkeypatch)

    def many(x):
        for _ in range(1500):
            x = x.cosh()
        return x

    runner = GraphRunner(graph_of(many, X), {})
    assert runner.program.num_stretches == 1
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    start = time.perf_counter()
    with pytest.raises(KeyboardInterrupt):
        runner.run([X])
    assert time.perf_counter() - start < 1.0


def test_numbers_are_set_for_later_runs():
    values = [
        Value(shape=(2,), stride=(1,), offset=0, dtype=torch.float64, storage=v, producer=v - 1 if v else None)
        for v in range(2)
    ]
    scaled = Op(target="aten.mul.Scalar", args=(Ref(0), Number(slot=1, value=2.0)), outputs=(1,))
    inputs = {Input(Role.ARGUMENT, "x"): 0}
    graph = OpGraph(ops=(scaled,), values=tuple(values), inputs=inputs, outputs=(1,))
    tensors, _ = place_values(graph, {0: torch.tensor([1.0, 4.0], dtype=torch.float64)})
    run = BoundProgram(graph, tensors)
    run.run()
    assert tensors[1].tolist() == [2, 8]
    run.set_numbers([7.0, 10.0])
    run.run()
    assert tensors[1].tolist() == [10, 40]


def test_the_check_sees_each_operation_with_its_operands_and_results():
    graph, seen = graph_of(lambda x: x.sqrt().mul(3), torch.tensor([1.0, 4.0])), []
    (x,) = graph.inputs.values()
    tensors, _ = place_values(graph, {x: torch.tensor([1.0, 4.0])}, overwrites_operands=False)
    check = lambda op, a, b: seen.append((op.target, [t.tolist() for t in a], [t.tolist() for t in b]))  # noqa: E731
    BoundProgram(graph, tensors, check=check).run()
    assert seen == [("aten.sqrt.default", [[1, 4]], [[1, 2]]), ("aten.mul.Tensor", [[1, 2]], [[3, 6]])]


@native
def test_a_stretch_moves_the_words_that_lie_in_an_input():
    sources = np.array([5, 1000], np.int64)
    words = np.array([7, 400, 407, 408, 399], np.int64)
    call = NativeCall(function="popgeo_sources", words=words, num_threads=0)
    stretch = Stretch([call], sources, [(0, 400, 8)], decline=lambda index: None, pauses=False)
    stretch()
    assert words.tolist() == [5, 1000, 1007, 408, 399]


def test_without_the_library_all_runs_in_torch():
    with library.without_native():
        runner = GraphRunner(graph_of(lambda x: (x @ x).cos() + x, X), {})
        assert runner.program.num_stretches == 0
        torch.testing.assert_close(runner.run([X])[0], (X @ X).cos() + X)


@native
def test_a_step_says_what_runs_where():
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = torch.nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return torch.nn.functional.elu(self.lin(x)).square().mean()

    model = Model()
    step = popgeo.compile_step(model, torch.optim.Adam(model.parameters()), X)
    step(X)
    first, *rest = step.how_it_runs().splitlines()
    assert re.fullmatch(r"\d+ native calls in 3 stretches", first)
    assert rest[0] == "in torch between them:"
    assert re.fullmatch(
        r"  1 x aten\.elu\.default \(forward\), .*test_bound_program\.py:\d+ in forward: .*elu.*", rest[1]
    )
    assert rest[2].startswith("  1 x aten.elu_backward.default (backward), ")
    assert rest[3] == "update by Adam: not known before the second update"
    step(X)
    assert step.how_it_runs().splitlines()[-1] == "update by Adam: native calls"
    with library.without_native():
        forward = popgeo.compile_forward(model.eval(), X)
        assert forward.how_it_runs().startswith("0 native calls in 0 stretches\nin torch between them:")


@native
def test_where_a_kernel_declines_torch_reads_the_input_of_this_run(monkeypatch: pytest.MonkeyPatch):
    declining = NativeCall(function="popgeo_sources", words=np.zeros(1, np.int64))
    monkeypatch.setitem(LOWERINGS, "aten.cosh.default", lambda graph, op, tensors: declining)
    runner = GraphRunner(graph_of(lambda x: x.cosh() + x @ x, X), {}, follows_inputs=True)
    assert runner.program.follows == [True]
    for given in (X, X + 1):
        torch.testing.assert_close(runner.run([given])[0], given.cosh() + given @ given)
