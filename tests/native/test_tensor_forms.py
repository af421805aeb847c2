"""A check of many tensors sees each change of memory, type, shape, strides, class and need of gradients."""

import pytest
import torch
from torch import nn

from popgeo.native.tensor_forms import same_forms


class OtherParameter(nn.Parameter):
    """A class of weights with torch's memory layout."""


def replace_memory(weight):
    weight.data = weight.detach().clone()


def view_as(dtype):
    def change(weight):
        weight.data = weight.detach().view(dtype)

    return change


def transpose(weight):
    weight.data = weight.detach().t()


def reshape(weight):
    weight.data = weight.detach().view(2, 8)


def freeze(weight):
    weight.requires_grad_(False)


def change_class(weight):
    weight.__class__ = OtherParameter


def swap(weight):
    torch.utils.swap_tensors(weight, nn.Parameter(weight.detach().view(2, 8)))


def free(weight):
    weight.untyped_storage().resize_(0)


CHANGES = (replace_memory, view_as(torch.bfloat16), transpose, reshape, freeze, change_class, swap, free)


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_one_weight_among_many_is_seen(native, change):
    weights = [nn.Parameter(torch.randn(4, 4)) for _ in range(5)]
    is_same = same_forms([*weights, torch.ones(3, dtype=torch.int64)])
    weights[2].detach().zero_()
    assert is_same()
    change(weights[2])
    assert not is_same()
    assert not is_same()


def test_complex_tensors_and_tensors_of_many_dimensions_are_compared_too(native):
    for weight in (torch.ones(2, 2, dtype=torch.complex64), torch.ones((1,) * 9)):
        is_same = same_forms([weight, weight])
        assert is_same()
        weight.data = weight.clone()
        assert not is_same()


def test_no_tensors_are_always_the_same(native):
    assert same_forms([])()
