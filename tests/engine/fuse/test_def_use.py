"""Makers and readers of a value, and plain, transposed and flat values."""

import random

import pytest
import torch

from popgeo.capture.capture import bind, capture
from popgeo.capture.op_graph import Input, OpGraph, Ref, Role, Value
from popgeo.engine.fuse.def_use import DefUse, ref


def uses_of(function, *inputs):
    """Return the def-use chains of a function's operations; its inputs are the first values."""
    return DefUse(capture(function, bind(function, *inputs)).graph)


def returned(function, *inputs):
    """Return the def-use chains of a function, with the first value that it returns."""
    uses = uses_of(function, *inputs)
    return uses, uses.graph.outputs[0]


def test_each_user_of_a_value_counts_once():
    uses = uses_of(lambda x: ((x * x).exp() + x, x.exp()), torch.ones(3))  # mul exp add exp
    assert uses.users == {0: [0, 2, 3], 1: [1], 2: [2]}
    assert uses.returned == {3, 4}


def test_the_maker_of_a_value_is_known_by_name_unless_the_value_changes():
    def function(x, y):
        z = x.exp()
        y.add_(z)
        return z.sin(), y.cos(), y

    uses = uses_of(function, torch.ones(3), torch.ones(3))
    exp, cos = uses.graph.ops[0].makes()[0], uses.graph.ops[3].makes()[0]
    assert uses.maker(exp, "aten.sin.default", "aten.exp.default") is uses.graph.ops[0]
    assert uses.maker(exp, "aten.sin.default") is None
    assert uses.graph.values[cos].producer == 3
    assert uses.maker(None, "aten.exp.default") is None
    assert uses.maker(0, "aten.exp.default") is None  # given, not made
    assert [uses.is_stable(v) for v in (0, 1, exp, None)] == [True, False, True, False]


def test_what_is_no_value_has_no_maker_and_is_not_plain():
    uses = uses_of(torch.exp, torch.ones(3))
    assert (ref(Ref(1)), ref(2.0), ref(True), ref(None)) == (1, -1, -1, -1)
    assert uses.is_plain(1, (3,))
    assert uses.maker(1, "aten.exp.default") is not None
    assert uses.maker(-1, "aten.exp.default") is None
    assert not uses.is_plain(-1)
    assert not uses.is_plain(None)
    uses = uses_of(lambda: torch.zeros(3) + 1)  # where the first value is made
    assert uses.maker(0, "aten.zeros.default") is uses.graph.ops[0]


def test_a_value_that_changes_is_neither_plain_nor_made_by_what_made_it_first():
    uses = uses_of(lambda x: x.exp().add_(1), torch.ones(3))
    assert uses.graph.ops[0].target == "aten.exp.default"
    (v,) = uses.graph.ops[0].makes()
    assert uses.maker(v, "aten.exp.default") is None
    assert not uses.is_plain(v)


def test_plain_values_have_the_type_the_shape_and_rows_one_after_another():
    uses = uses_of(lambda x, y: x + y, torch.ones(2, 3), torch.ones(2, 3, dtype=torch.float64))
    assert uses.is_plain(0)
    assert uses.is_plain(0, [2, 3])
    assert not uses.is_plain(0, (3, 2))
    assert not uses.is_plain(1, (2, 3))
    assert uses.is_plain(1, (2, 3), torch.float64)
    assert not uses.is_plain(1, (2, 4), torch.float64)


def test_rows_lie_one_after_another_exactly_where_torch_says_so():
    draw = random.Random(0)
    kinds = [
        (tuple(draw.choice((1, 2, 3)) for _ in range(dims)), tuple(draw.choice((0, 1, 2, 3, 6)) for _ in range(dims)))
        for dims in (0, 1, 2, 2, 2, 3, 3, 3)
        for _ in range(40)
    ]
    values = tuple(
        Value(shape=shape, stride=stride, offset=0, dtype=torch.float32, storage=v, producer=None)
        for v, (shape, stride) in enumerate(kinds)
    )
    inputs = {Input(Role.ARGUMENT, str(v)): v for v in range(len(values))}
    uses = DefUse(OpGraph(ops=(), values=values, inputs=inputs, outputs=()))
    expected = [torch.empty_strided(shape, stride).is_contiguous() for shape, stride in kinds]
    assert [uses.is_plain(v) for v in range(len(values))] == expected
    assert 0 < sum(expected) < len(expected)


@pytest.mark.parametrize("turn", [torch.t, lambda x: x.transpose(0, 1), lambda x: x.permute(1, 0)])
def test_a_matrix_is_found_behind_its_transposed(turn):
    uses, v = returned(turn, torch.ones(2, 3))
    assert uses.untransposed(v) == 0


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.permute(0, 1),  # nothing has changed places
        lambda x: x.view(3, 2),
        lambda x: x.view(6).t(),
        lambda x: x.view(1, 2, 3).permute(2, 1, 0),
        lambda x: x.view(1, 2, 3).transpose(0, 2),
        lambda x: x.exp(),
    ],
)
def test_what_is_not_transposed_has_no_matrix_behind_it(function):
    uses, v = returned(function, torch.ones(2, 3))
    assert uses.untransposed(v) is None


def test_a_square_that_stays_as_it_is_and_memory_that_changes_have_no_matrix_behind_them():
    uses, v = returned(lambda x: x.permute(0, 1), torch.ones(3, 3))
    assert uses.untransposed(v) is None
    uses, v = returned(lambda x: (x.t(), x.add_(1)), torch.ones(2, 3))
    assert uses.untransposed(v) is None
    assert uses.untransposed(None) is None


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.unsqueeze(1),
        lambda x: x.view(1, 4),
        lambda x: x.view(-1, 1, 1),
        lambda x: x.unsqueeze(0).view(4, 1).unsqueeze(1),
        lambda x: torch.ops.aten._unsafe_view(x, [4, 1]),
        lambda x: x.view(4),
    ],
)
def test_a_vector_is_found_behind_its_views_as_row_or_column(function):
    uses, v = returned(lambda x: function(x) if function(x).dim() > 1 else x, torch.arange(4.0))
    assert uses.flat(v) == 0


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (lambda x: x.view(2, 2), torch.ones(4)),
        (lambda x: x.unsqueeze(1).exp(), torch.ones(4)),
        (lambda x: x.view(2, 2).view(4, 1), torch.ones(4)),
        (lambda x: x, torch.ones(4, 1)),  # given so
        (lambda x: x.view(1, 1), torch.ones(())),
    ],
)
def test_what_is_no_view_of_a_vector_has_none_behind_it(function, inputs):
    uses, v = returned(lambda x: (function(x), x.exp()), inputs)
    assert uses.flat(v) is None


def test_a_view_of_one_element_is_flat_too():
    for shape in ((1, 1), (), (1, 1, 1)):
        uses, v = returned(lambda x, shape=shape: x.view(shape), torch.ones(1))
        assert uses.flat(v) == 0
    assert uses.flat(None) is None
