"""A captured graph describes its inputs, and it obeys the rules of graphs."""

import pytest
import torch

from popgeo.capture.capture import bind, capture
from popgeo.capture.op_graph import Input, Op, OpGraph, Ref, Role, Value
from tests.support.check_graph import check_graph
from tests.support.small_models import GraphConvolutions, make_batch


@pytest.mark.parametrize("role", Role)
def test_an_input_is_written_with_its_role_and_read_again(role):
    given = Input(role, "layers.0:weight")
    assert str(given) == f"{role.value}:layers.0:weight"
    assert Input.parse(str(given)) == given


def test_what_names_no_role_is_no_input():
    with pytest.raises(ValueError, match="weight"):
        Input.parse("weight:0")


def test_a_captured_model_has_its_inputs_in_their_roles():
    model, batch = GraphConvolutions(), make_batch(0, torch.float32)
    graph = capture(model, bind(model.forward, **batch)).graph
    named = {role: [given.name for given in graph.inputs_of(role)] for role in Role}
    assert named[Role.PARAMETER] == [name for name, _ in model.named_parameters()]
    assert named[Role.BUFFER] == [name for name, _ in model.named_buffers()]
    assert named[Role.ARGUMENT] == list(batch)
    assert sum(map(len, named.values())) == len(graph.inputs)


def value(producer: int | None, storage: int, shape: tuple[int, ...] = (2, 3), **changed) -> Value:
    fields = {"shape": shape, "stride": (3, 1), "offset": 0, "dtype": torch.float32}
    return Value(**fields | changed, producer=producer, storage=storage)


def op(target: str, *reads: int, outputs: tuple[int | None, ...], **changed) -> Op:
    return Op(target=f"aten.{target}.default", args=tuple(map(Ref, reads)), outputs=outputs, **changed)


# Inputs: x and a constant. Then their product, two rows of it, and its sine, doubled in place.
VALUES = (value(None, 0), value(None, 1), value(0, 2), value(1, 2, (1, 3), offset=3), value(2, 3))
OPS = (
    op("mul", 0, 1, outputs=(2,)),
    op("narrow", 2, outputs=(3,)),
    op("sin", 2, outputs=(4,)),
    op("add_", 4, 4, outputs=(4,), writes=(4,)),
)


def parts(**changed) -> dict:
    """Return the parts of a graph that can run, with some of them changed."""
    given = {Input(Role.ARGUMENT, "x"): 0}
    return {
        "ops": OPS,
        "values": VALUES,
        "inputs": given,
        "outputs": (3, 4),
        "constants": {1: torch.ones(2, 3)},
    } | changed


def with_value(number: int, changed: Value) -> dict:
    return parts(values=(*VALUES[:number], changed, *VALUES[number + 1 :]))


def with_op(index: int, changed: Op) -> dict:
    return parts(ops=(*OPS[:index], changed, *OPS[index + 1 :]))


def test_a_graph_that_can_run_passes_the_check():
    check_graph(OpGraph(**parts()))


BROKEN = {
    "a value before it is made": (
        parts(ops=OPS[1:]),
        r"operation 0 \(aten.narrow.default\), %2 is read before it is made",
    ),
    "a value that nothing makes": (with_op(0, op("mul", 0, 4, outputs=(2,))), r"operation 0 .*%4 is read before"),
    "two makers": (
        with_op(2, op("sin", 2, outputs=(3,))),
        r"operation 2 \(aten.sin.default\), %3 is not a value, or made twice",
    ),
    "an input that is made": (with_op(0, op("mul", 1, 1, outputs=(0,))), "operation 0 .*%0 is not a value"),
    "another producer": (with_value(4, value(1, 3)), "operation 2 .*%4 names operation 1 as its producer"),
    "a producer that makes something else": (parts(ops=OPS[:2], outputs=(3,)), "%4 is not made by operation 2"),
    "an input with a producer": (with_value(0, value(0, 0)), "input:x, %0 is also made by an operation"),
    "an input that is a constant": (
        parts(inputs={Input(Role.BUFFER, "b"): 1}),
        "a constant, %1 is not a value, or given twice",
    ),
    "an input that is not a value": (parts(inputs={Input(Role.ARGUMENT, "x"): 9}), "input:x, %9 is not a value"),
    "a constant of another shape": (
        parts(constants={1: torch.ones(3, 2)}),
        r"%1 is given a tensor of torch.float32 \[3, 2\]",
    ),
    "a constant of another type": (
        parts(constants={1: torch.ones(2, 3).double()}),
        "%1 is given a tensor of torch.float64",
    ),
    "a result that nothing makes": (parts(ops=OPS[:1], values=VALUES[:3]), "the results, %3 is made by nothing"),
    "a view beyond what it looks at": (
        with_value(3, value(1, 2, (2, 3), offset=3)),
        r"operation 1 \(aten.narrow.default\), %3 goes beyond the 24 bytes there",
    ),
    "memory of something else": (with_value(4, value(2, 0)), "operation 2 .*%4 lies in memory that is not read"),
    "a change of what is not taken": (
        with_op(3, op("add_", 4, outputs=(4,), writes=(2,))),
        r"operation 3 \(aten.add_.default\), %2 is changed without being read",
    ),
    "a stride too few": (with_value(4, value(2, 3, stride=(1,))), r"%4 has shape \(2, 3\), stride \(1,\)"),
    "a negative stride": (with_value(4, value(2, 3, stride=(-3, 1))), r"%4 has shape \(2, 3\), stride \(-3, 1\)"),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_graph_that_cannot_run_is_refused_by_operation_and_value(broken):
    changed, message = BROKEN[broken]
    with pytest.raises(ValueError, match=message):
        check_graph(OpGraph(**changed))


def test_in_the_tests_every_graph_is_checked_when_it_is_made():
    with pytest.raises(ValueError, match="%2 is read before it is made"):
        OpGraph(**parts(ops=OPS[1:]))
