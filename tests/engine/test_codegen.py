"""The function that is generated for a graph computes its operations, and frees each value after its last use."""

import weakref

import pytest
import torch
from torch import Tensor

from popgeo.capture.capture import bind, capture
from popgeo.capture.op_graph import Input, Number, Op, OpGraph, Ref, Role, Value
from popgeo.engine.codegen import emit

X = torch.tensor([1.0, 4.0])


def graph_of(function, *inputs: Tensor) -> OpGraph:
    return capture(function, bind(function, *inputs)).graph


def given(graph: OpGraph, *inputs: Tensor) -> dict[int, Tensor]:
    return dict(zip(graph.inputs.values(), inputs, strict=True)) | dict(graph.constants)


def test_without_a_place_every_operation_allocates():
    graph = graph_of(lambda x: x.sqrt() + x, X)
    run = emit(graph, given(graph, X))
    first, second = run()[0], run()[0]
    assert first.tolist() == second.tolist() == [2, 6]
    assert first.data_ptr() != second.data_ptr()


def test_what_has_a_place_is_written_there_by_functions_that_can_and_copied_there_after_others():
    graph = graph_of(lambda x: (x.sqrt(), x.cumsum(0), x.clone(), x.median(0).values), X)
    places = {v: torch.full(graph.values[v].shape, 9.0) for v in graph.outputs}
    results = emit(graph, given(graph, X) | places)()
    assert [place.tolist() for place in places.values()] == [[1, 2], [1, 5], [1, 4], 1]
    assert all(mine is place for mine, place in zip(results, places.values(), strict=True))


def test_a_view_of_what_has_a_place_needs_no_work():
    graph = graph_of(lambda x: x.sqrt().view(2, 1), X)
    root, view = (v for op in graph.ops for v in op.outputs)
    place = torch.zeros(2)
    seen = []
    placed = given(graph, X) | {root: place, view: place.view(2, 1)}
    results = emit(graph, placed, lambda op, operands, made: seen.append(op.target))()
    assert results[0].tolist() == [[1], [2]]
    assert seen == ["aten.sqrt.default"]


def test_a_value_is_freed_after_its_last_reader():
    graph = graph_of(lambda x: x.exp().sin().cos().tanh(), X)
    made: list[weakref.ref] = []
    alive: list[list[bool]] = []

    def check(op: Op, operands: list[Tensor], results: list[Tensor]) -> None:
        made.append(weakref.ref(results[0]))
        alive.append([tensor() is not None for tensor in made])

    emit(graph, given(graph, X), check)()
    assert alive == [[True], [True, True], [False, True, True], [False, False, True, True]]


def test_the_check_sees_each_operation_with_its_operands_and_results():
    graph = graph_of(lambda x: x.sqrt().mul(3), X)
    seen = []
    emit(graph, given(graph, X), lambda op, operands, results: seen.append((op.target, operands, results)))()
    assert [(target, [t.tolist() for t in a], [t.tolist() for t in b]) for target, a, b in seen] == [
        ("aten.sqrt.default", [[1, 4]], [[1, 2]]),
        ("aten.mul.Tensor", [[1, 2]], [[3, 6]]),
    ]


def test_arguments_keep_their_types():
    def function(x):
        return (
            torch.full((2,), 0.1 + 0.2, dtype=torch.float64),
            x.sum(0, keepdim=True),
            torch.cat([x, x]),
            x.clamp(max=float("inf")),
            x.std(0, correction=1),
        )

    graph = graph_of(function, X)
    results = emit(graph, given(graph, X))()
    for mine, expected in zip(results, function(X), strict=True):
        assert mine.dtype is expected.dtype
        assert torch.equal(mine, expected)


def test_a_number_that_is_given_anew_is_looked_up_at_each_run():
    values = (
        Value(shape=(2,), stride=(1,), offset=0, dtype=torch.float32, storage=0, producer=None),
        Value(shape=(2,), stride=(1,), offset=0, dtype=torch.float32, storage=1, producer=0),
    )
    scaled = Op(target="aten.mul.Scalar", args=(Ref(0), Number(slot=3, value=2.0)), outputs=(1,))
    graph = OpGraph(
        ops=(scaled,), values=values, inputs={Input(Role.ARGUMENT, "x"): 0}, outputs=(1, None), constants={}
    )
    run = emit(graph, {0: X})
    assert run()[0].tolist() == [2, 8]
    run.__globals__["n3"] = 10.0
    first, second = run()
    assert first.tolist() == [10, 40]
    assert second is None


def test_no_text_of_a_graph_becomes_source():
    value = Value(shape=(2,), stride=(1,), offset=0, dtype=torch.float32, storage=0, producer=None)
    made = Value(shape=(2,), stride=(1,), offset=0, dtype=torch.float32, storage=1, producer=0)
    ops = [Op(target="aten.flip.default", args=(Ref(0),), kwargs={"dims=[0]) or print(": [0]}, outputs=(1,))]
    ops.append(Op(target="aten.flip.default", args=(Ref(1), [0]), outputs=(2,)))
    graph = OpGraph(
        ops=tuple(ops),
        values=(value, made, Value(**{**vars(made), "storage": 2, "producer": 1})),
        inputs={Input(Role.ARGUMENT, "x"): 0},
        outputs=(2,),
    )
    with pytest.raises(ValueError, match="is not the name of an argument"):
        emit(graph, {})
