"""Results that the check of floating-point exceptions refuses, and results that it accepts."""

import pytest
import torch

from popgeo.capture.op_graph import Op
from popgeo.engine.graph_runner import _check

FINE, NAN, INFINITE = torch.ones(2), torch.tensor([1.0, torch.nan]), torch.tensor([1.0, torch.inf])


def op(*args: object, target: str = "aten.log.default", module: str = "", **kwargs: object) -> Op:
    return Op(
        target=target, args=args, kwargs=kwargs, outputs=(0,), source="model.py:3 in forward: x.log()", module=module
    )


@pytest.mark.parametrize(
    ("made", "kind"), [([NAN], "NaN"), ([INFINITE], "infinity"), ([FINE, None, INFINITE], "infinity")]
)
def test_what_is_not_finite_though_all_that_it_is_made_of_is_finite_is_an_error(made, kind):
    place = r"aten\.log\.default in the forward pass gave {} from finite operands: model\.py:3 in forward: x\.log\(\)"
    with pytest.raises(FloatingPointError, match=f"^{place.format(kind)}$"):
        _check(op(), [FINE, torch.tensor([1, 2])], made)
    with pytest.raises(FloatingPointError, match=rf"^{place.format(kind)} \(in submodule layers\.0\)$"):
        _check(op(2.0, 3, module="layers.0", low=-1.0), [FINE], made)


def test_what_an_operation_changes_in_place_is_not_taken_for_what_it_was_given():
    with pytest.raises(FloatingPointError, match="gave NaN"):
        _check(op(), [NAN, FINE], [NAN])
    _check(op(), [NAN.clone(), FINE], [NAN])


@pytest.mark.parametrize("given", [NAN, INFINITE])
def test_what_comes_of_what_was_not_finite_is_no_error(given):
    _check(op(), [FINE, given], [NAN.clone()])


@pytest.mark.parametrize("number", [float("inf"), float("-inf"), float("nan")])
def test_numbers_that_are_asked_for_are_no_error(number):
    _check(op(1.0, number), [FINE], [INFINITE])
    _check(op(1.0, value=number), [FINE], [INFINITE])


def test_integers_finite_numbers_and_memory_that_nothing_has_written_are_no_error():
    _check(op(), [FINE], [FINE, torch.tensor([3]), None])
    _check(op(), [], [torch.tensor([True])])
    for name in ("empty.memory_format", "empty_like.default", "new_empty.default", "new_empty_strided.default"):
        _check(op(target=f"aten.{name}"), [FINE], [NAN])
