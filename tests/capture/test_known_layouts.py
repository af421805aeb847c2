"""Layouts of results that are known from an earlier capture."""

import pytest
import torch
from torch import Tensor, func

from popgeo import ipu
from popgeo.capture import known_layouts
from popgeo.capture.capture import bind, capture


def mixed(x: Tensor) -> tuple[Tensor, ...]:
    """Return views, parts, tensors changed in place, and a tensor with another shape in place."""
    made = (x * 2).transpose_(0, 1)
    first, second = made.split([1, 2])
    first.add_(1)
    values, places = second.sort(dim=1)
    number = torch.tensor(0.5)
    return made, first, values, places, made.reshape(-1)[1:], x * (number * 2).item()


def test_a_second_capture_equals_the_first():
    known_layouts._KNOWN.clear()
    first, second = (capture(mixed, bind(mixed, torch.ones(4, 3))).graph for _ in range(2))
    assert known_layouts._KNOWN
    assert (str(first), first.values) == (str(second), second.values)


ANSWERS = {
    "same size": lambda x: x + sum(2**power for power in range(4) if x.is_same_size(x + 1)),
    "other size": lambda x: x + sum(2**power for power in range(4) if x.is_same_size(x[1:])),
    "forward-mode derivative": lambda x: func.jvp(torch.sin, (x,), (x,))[1],
    "derivative of a derivative": lambda x: func.jvp(func.grad(lambda y: (y.sin() * y).sum()), (x,), (x * 2,))[1],
    "forward-mode Jacobian": lambda x: func.jacfwd(lambda y: y.exp() * y.sum())(x),
    "Hessian": lambda x: func.hessian(lambda y: y.square().prod())(x),
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_a_question_about_tensors_has_the_same_answer_each_time(answer):
    x = torch.linspace(0.5, 1.5, 4)
    for _ in range(2):
        torch.testing.assert_close(ipu.compile(answer, [x])(x), answer(x))
