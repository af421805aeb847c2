"""Layouts of results that are known from an earlier capture."""

import torch
from torch import Tensor

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
