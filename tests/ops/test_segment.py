"""Segments between pointers by hand, as torch_scatter has them, which need not be installed."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from popgeo import ops

SRC = torch.tensor([[4.0, -1.0], [2.0, 5.0], [3.0, 3.0], [9.0, 1.0]])
INDPTR = torch.tensor([0, 2, 2, 4])  # two entries, none, two
BY_HAND = {
    "sum": [[6, 4], [0, 0], [12, 4]],
    "add": [[6, 4], [0, 0], [12, 4]],
    "mean": [[3, 2], [0, 0], [6, 2]],
    "min": [[2, -1], [0, 0], [3, 1]],
    "max": [[4, 5], [0, 0], [9, 3]],
}
POSITIONS = {"min": [[1, 0], [4, 4], [2, 3]], "max": [[0, 1], [4, 4], [3, 2]]}  # 4 entries: none has position 4


@pytest.mark.parametrize("reduce", BY_HAND)
def test_values_by_hand(native, reduce):
    assert ops.segment_csr(SRC, INDPTR, reduce=reduce).tolist() == BY_HAND[reduce]
    out = torch.full((3, 2), 7.0)
    assert ops.segment_csr(SRC, INDPTR, out, reduce=reduce) is out
    assert out.tolist() == BY_HAND[reduce]
    index = torch.tensor([0, 0, 2, 2])
    assert ops.segment_coo(SRC, index, dim_size=3, reduce=reduce).tolist() == BY_HAND[reduce]
    with pytest.raises(ValueError, match="reduce is 'median'; it must be one of 'sum', 'add', 'mean', 'min', 'max'"):
        ops.segment_csr(SRC, INDPTR, reduce="median")


@pytest.mark.parametrize("name", ["min", "max"])
def test_positions_by_hand(native, name):
    function = getattr(ops, f"segment_{name}_csr")
    best, position = function(SRC, INDPTR)
    assert best.tolist() == BY_HAND[name]
    assert position.tolist() == POSITIONS[name]
    out = torch.full((3, 2), 7.0)
    assert function(SRC, INDPTR, out)[0] is out
    assert out.tolist() == BY_HAND[name]


def test_means_of_whole_numbers_are_cut_towards_zero(native):
    whole = torch.tensor([-3, -4, 7, 8])
    assert ops.segment_csr(whole, torch.tensor([0, 2, 4]), reduce="mean").tolist() == [-3, 7]
    index, out = torch.tensor([0, 0, 2, 2]), torch.zeros(3, dtype=torch.long)
    assert ops.segment_coo(whole, index, dim_size=3, reduce="mean").tolist() == [-3, 0, 7]
    assert ops.segment_coo(whole, index, out, reduce="mean") is out
    assert out.tolist() == [-3, 0, 7]


def test_pointers_lie_along_the_last_dimension_that_they_have(native):
    both = torch.stack([SRC, 10 * SRC])  # [2, 4, 2]
    assert ops.segment_csr(both, INDPTR[None]).tolist() == [BY_HAND["sum"], [[60, 40], [0, 0], [120, 40]]]
    other = torch.tensor([0, 1, 1, 4])
    each = ops.segment_csr(both, torch.stack([INDPTR, other]))
    assert each.tolist() == [BY_HAND["sum"], [[40, -10], [0, 0], [140, 90]]]
    for wrong in (torch.zeros(2, 2, 2, 1, dtype=torch.long), torch.zeros(0, dtype=torch.long)):
        with pytest.raises(ValueError, match="which fits no dimension of src"):
            ops.segment_csr(both, wrong)
    with pytest.raises(ValueError, match="do not broadcast"):
        ops.segment_csr(both, torch.zeros(3, 2, dtype=torch.long))


def test_rows_are_repeated_as_their_pointers_or_indices_say(native):
    rows = torch.tensor([7.0, 8.0, 9.0])
    assert ops.gather_csr(rows, INDPTR).tolist() == [7, 7, 9, 9]
    assert ops.gather_coo(rows, torch.tensor([2, 0, 0])).tolist() == [9, 7, 7]
    table = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert ops.gather_coo(table, torch.tensor([[0, 0, 1], [1, 0, 0]])).tolist() == [[1, 1, 2], [4, 3, 3]]
    out = torch.zeros(3)
    assert ops.gather_coo(rows, torch.tensor([2, 0, 0]), out) is out
    assert out.tolist() == [9, 7, 7]
    with pytest.raises(ValueError, match="index"):
        ops.gather_coo(table, torch.tensor([[0, 2], [1, 0]]))


def test_the_derivative_of_a_product_is_that_of_all_other_factors_also_where_some_are_zero(native):
    src = torch.tensor([[2.0], [0.0], [5.0], [3.0], [7.0], [0.0], [0.0]], requires_grad=True)
    index = torch.tensor([1, 0, 1, 1, 2, 2, 2])
    out = ops.scatter(src, index, 0, dim_size=4, reduce="mul")
    assert out.flatten().tolist() == [0, 30, 0, 1]
    (gradient,) = torch.autograd.grad(out, src, torch.tensor([[1.0], [10.0], [1.0], [1.0]]))
    assert gradient.flatten().tolist() == [150, 1, 60, 100, 0, 0, 0]


def test_pointers_of_two_dimensions_are_refused_before_anything_runs():
    with FakeTensorMode() as mode:
        rows, pointers = mode.from_tensor(SRC), mode.from_tensor(torch.zeros(2, 3, dtype=torch.long))
        with pytest.raises(ValueError, match="indptr"):
            torch.ops.popgeo.gather_csr(rows, pointers, 4)
        with pytest.raises(ValueError, match="indptr"):
            torch.ops.popgeo.segment_sum(rows, pointers)
