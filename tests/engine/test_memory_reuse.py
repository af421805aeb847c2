"""The memory of each value, worked out by hand: its own, an operand's, or a view's place."""

import pytest
import torch

from popgeo.capture.op_graph import Input, Op, OpGraph, Ref, Role, Value
from popgeo.engine.graph_runner import GraphRunner
from popgeo.engine.memory_plan import place_values
from tests.engine.test_memory_plan import X, graph_of, needs, plan

KIB = 1024


def made_by(graph: OpGraph, name: str) -> list[int]:
    """Return the values made by operations of a name, in order."""
    return [op.outputs[0] for op in graph.ops if op.target.split(".")[1] == name]


def test_of_two_operands_that_end_the_first_is_overwritten():
    graph = graph_of(lambda x: x.cos() + x.sin(), X)
    tensors, buffer = plan(graph)
    (result,), (cosine,) = made_by(graph, "add"), made_by(graph, "cos")
    assert buffer.nbytes == 8 * KIB
    assert tensors[result].data_ptr() == tensors[cosine].data_ptr()


def test_results_take_no_memory_that_another_needs_at_the_same_time():
    graph = graph_of(lambda x: (x.roll(1, 0).cos(), x.cos()[:512].sin()), X)
    # The cosine overwrites what is rolled; the sine of a half needs 2 KiB beside the 4 KiB of the whole that it reads.
    assert needs(graph) == 10 * KIB


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (lambda y: y + y.t())(x.cos()),
        lambda x: (lambda y: y.t() * y)(x.cos()),
        lambda x: x.roll(1, 0).cos().exp(),
        lambda x: x.cos()[:2].sin() + x.sin()[2:],
        lambda x: (lambda y: y.t().sin() + y)(x.cos()),
        lambda x: (lambda y: (y.exp(), y.view(-1)[3:]))(x.cos()),
        lambda x: (lambda y: y.expand(2, 4, 4) + y)(x.cos()),
        lambda x: (lambda y: torch.where(y > 0, y, y.t()))(x.sin()),
    ],
)
def test_an_operand_is_not_overwritten_while_it_is_read_in_another_order(function):
    x = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(
        GraphRunner(graph_of(function, x), {}).run([x]), list(y) if isinstance(y := function(x), tuple) else [y]
    )


def value(storage: int, size: int, offset: int, dtype: torch.dtype, producer: int | None = None) -> Value:
    return Value(shape=(size,), stride=(1,), offset=offset, dtype=dtype, storage=storage, producer=producer)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int16])
def test_a_view_of_what_is_given_lies_where_the_given_tensor_lies(dtype: torch.dtype):
    graph = OpGraph(
        ops=(Op(target="aten.slice.Tensor", args=(Ref(0), 0, 1, 3), outputs=(1,)),),
        values=(value(0, 4, 2, dtype), value(0, 2, 3, dtype, producer=0)),
        inputs={Input(Role.ARGUMENT, "x"): 0},
        outputs=(1,),
    )
    whole = torch.arange(12).to(dtype)
    tensors, buffer = place_values(graph, {0: whole[5:9]})
    assert tensors[1].tolist() == [6, 7]
    assert tensors[1].data_ptr() == whole[6:].data_ptr()
    assert tensors[1].dtype == dtype
    assert buffer.nbytes == 0


def test_what_torch_allocates_before_it_is_copied_is_counted():
    runner = GraphRunner(graph_of(lambda x: x.cos().roll(1, 0).cumsum(0), torch.ones(100)), {})
    assert runner.peak_bytes == runner.buffer_bytes + 400


def test_what_an_operation_does_not_return_has_no_place():
    graph = OpGraph(
        ops=(Op(target="aten.topk.default", args=(Ref(0), 2), outputs=(1, None)),),
        values=(value(0, 4, 0, torch.float32), value(1, 2, 0, torch.float32, producer=0)),
        inputs={Input(Role.ARGUMENT, "x"): 0},
        outputs=(1,),
    )
    tensors, buffer = place_values(graph, {0: torch.zeros(4)})
    assert set(tensors) == {0, 1}
    assert buffer.nbytes == 64
