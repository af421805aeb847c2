"""The arguments of the compiled kernels: addresses of contiguous tensors, indices of 64 bits, and plans that fit."""

import pytest
import torch
from torch import Tensor

from popgeo.native import library
from popgeo.ops.kernel_arguments import as_int64, check_plan_tensors

ROWPTR, PERM = torch.tensor([0, 1, 3], dtype=torch.int32), torch.tensor([2, 0, 1], dtype=torch.int32)
INDEX = torch.tensor([1, 1, 0])


def test_an_absent_tensor_has_no_address():
    assert library.address(None) == 0
    assert library.address(INDEX) == INDEX.data_ptr()


def test_an_index_is_copied_only_where_it_is_not_yet_as_the_kernels_read_it():
    assert as_int64(INDEX) is INDEX
    for other in (INDEX.int(), torch.tensor([1, 9, 1, 9, 0])[::2], torch.tensor([1, 9, 1, 9, 0]).int()[::2]):
        read = as_int64(other)
        assert read.dtype is torch.int64
        assert read.is_contiguous()
        assert read.tolist() == [1, 1, 0]


@pytest.mark.parametrize("perm", [None, PERM, torch.stack([PERM, PERM], 1)[:, 0]])
@pytest.mark.parametrize("rowptr", [ROWPTR, torch.stack([ROWPTR, ROWPTR], 1)[:, 0]])
def test_a_plan_is_handed_on_in_one_piece(rowptr: Tensor, perm: Tensor | None):
    made, order = check_plan_tensors("index", INDEX, 2, rowptr, perm)
    assert made.is_contiguous()
    assert made.tolist() == [0, 1, 3]
    assert order is None if perm is None else (order.is_contiguous() and order.tolist() == [2, 0, 1])


@pytest.mark.parametrize(
    ("rowptr", "perm", "message"),
    [
        (ROWPTR.long(), PERM, r"A tensor of the plan is torch\.int64 on cpu"),
        (ROWPTR, PERM.short(), r"A tensor of the plan is torch\.int16 on cpu"),
        (ROWPTR.to("meta"), PERM, r"A tensor of the plan is torch\.int32 on meta"),
        (ROWPTR[:2], PERM, r"has shape \(2,\); for 3 edges into 2 rows it has \(3,\)"),
        (torch.zeros(4, dtype=torch.int32), None, r"has shape \(4,\); for 3 edges into 2 rows it has \(3,\)"),
        (ROWPTR, PERM[:2], r"has shape \(2,\); for 3 edges into 2 rows it has \(3,\)"),
        (ROWPTR, PERM[:, None], r"has shape \(3, 1\)"),
    ],
)
def test_a_plan_that_does_not_fit_the_index_is_refused(rowptr: Tensor, perm: Tensor | None, message: str):
    with pytest.raises(ValueError, match=message):
        check_plan_tensors("index", INDEX, 2, rowptr, perm)
