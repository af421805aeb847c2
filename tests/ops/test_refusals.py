"""The errors of each op for wrong arguments, in eager code and in captures, and their messages."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from popgeo.ops import ScatterPlan, cfconv, gather, scatter
from popgeo.ops.refusals import check_index, explain, refuse_index, refuse_integers, refuse_plan

OPS = torch.ops.popgeo
ROWS, INDEX = torch.ones(3, 2), torch.tensor([1, 0, 1])
SUMS = ("scatter_sum", "scatter_mul", "scatter_max", "scatter_min")


@pytest.fixture(params=["eager", "fake"])
def tensors(request: pytest.FixtureRequest) -> Callable[[Tensor], Tensor]:
    """Return the identity, or the function that makes a tensor fake: the checks of shapes are the same for both."""
    return FakeTensorMode().from_tensor if request.param == "fake" else lambda tensor: tensor


@pytest.mark.parametrize("name", SUMS)
def test_what_no_row_can_be_scattered_from_is_refused(native, tensors, name: str):
    call, rows, index = getattr(OPS, name), tensors(ROWS), tensors(INDEX)
    for wrong in (tensors(torch.ones(3)), tensors(torch.ones(3, 2, 1))):
        with pytest.raises(ValueError, match=r"src has shape \(3,.*; it is two-dimensional: \(rows, channels\)"):
            call(wrong, index, 2)
    with pytest.raises(ValueError, match=r"index has shape \(2,\); it needs one entry for each of the 3 rows"):
        call(rows, index[:2], 2)
    with pytest.raises(ValueError, match=r"index has shape \(3, 1\)"):
        call(rows, index[:, None], 2)
    with pytest.raises(ValueError, match=r"index has dtype torch\.int16; an index is torch\.int64 or torch\.int32"):
        call(rows, tensors(INDEX.short()), 2)
    with pytest.raises(ValueError, match="num_rows is -1; it must be at least 0"):
        call(rows, index, -1)


def test_what_no_row_can_be_gathered_from_is_refused(native, tensors):
    for wrong in (tensors(torch.ones(3)), tensors(torch.ones(3, 2, 1))):
        with pytest.raises(ValueError, match=r"x has shape \(3,.*; it is two-dimensional: \(rows, channels\)"):
            OPS.gather(wrong, tensors(INDEX))
    with pytest.raises(ValueError, match=r"index has shape \(3, 1\); it needs one entry for each of the 3 rows"):
        OPS.gather(tensors(ROWS), tensors(INDEX[:, None]))
    with pytest.raises(ValueError, match=r"index has dtype torch\.uint8"):
        OPS.gather(tensors(ROWS), tensors(INDEX.byte()))


def test_a_plan_is_made_of_one_integer_for_each_edge(native, tensors):
    for wrong, message in ((INDEX[:, None], r"shape \(3, 1\)"), (INDEX.float(), r"dtype torch\.float32")):
        with pytest.raises(ValueError, match=message):
            OPS.plan(tensors(wrong), 2)
    with pytest.raises(ValueError, match="num_rows is -1; it must be at least 0"):
        OPS.plan(tensors(INDEX), -1)


@pytest.mark.parametrize("name", ["cfconv", "cfconv_backward"])
def test_a_convolution_of_what_does_not_fit_is_refused(native, tensors, name: str):
    x, w, end = tensors(torch.ones(2, 2)), tensors(ROWS), tensors(INDEX)
    nodes = tensors(torch.ones(2, 2))

    def call(x: Tensor, w: Tensor, src: Tensor, dst: Tensor) -> None:
        OPS.cfconv(x, w, src, dst, 2) if name == "cfconv" else OPS.cfconv_backward(nodes, x, w, src, dst)

    for wrong_x, wrong_w in (((2,), (3, 2)), ((2, 3), (3, 2)), ((2, 2), (2, 2)), ((2, 2), (3, 1)), ((2, 2), (3,))):
        with pytest.raises(
            ValueError, match=r"x has shape .* and w .*; they are \(num_sources, channels\) and \(3, ch"
        ):
            call(tensors(torch.ones(wrong_x)), tensors(torch.ones(wrong_w)), end, end)
    with pytest.raises(ValueError, match=r"x is torch\.float32 on .* and w torch\.float64 on"):
        call(x, tensors(ROWS.double()), end, end)
    with pytest.raises(ValueError, match=r"src has shape \(3, 1\)"):
        call(x, w, end[:, None], end)
    for wrong in (torch.ones(2, 3), torch.ones(2), torch.ones(2, 2).double()):
        with pytest.raises(ValueError, match=r"grad has shape .*; it must have \(\d, 2\) and torch\.float32"):
            OPS.cfconv_backward(tensors(wrong), x, w, end, end)
    with pytest.raises(ValueError, match=r"dst has shape \(2,\)"):
        call(x, w, end, end[:2])
    with pytest.raises(ValueError, match=r"src has shape \(\)|and w"):
        call(x, w, end[0], end)
    with pytest.raises(ValueError, match=r"dst has dtype torch\.int16"):
        call(x, w, end, tensors(INDEX.short()))


def test_a_convolution_on_two_devices_is_refused():
    with pytest.raises(ValueError, match=r"w torch\.float32 on meta; convert one to the other"):
        cfconv(torch.ones(2, 2), ROWS.to("meta"), INDEX, INDEX, 2)
    with pytest.raises(ValueError, match="num_nodes is -2; it must be at least 0"):
        OPS.cfconv(torch.ones(2, 2), ROWS, INDEX, INDEX, -2)


def test_segments_need_one_dimension_of_pointers(native, tensors):
    assert OPS.segment_sum(tensors(ROWS), tensors(torch.tensor([3]))).shape == (0, 2)
    pointers = (torch.zeros(2, 2).long(), torch.zeros(0).long(), torch.tensor([0, 3]).short(), torch.tensor([0.0, 3]))
    for wrong in map(tensors, pointers):
        with pytest.raises(ValueError, match=r"indptr has shape .* pass int64 or int32 of shape \(num_rows \+ 1,\)"):
            OPS.segment_sum(tensors(ROWS), wrong)
        with pytest.raises(ValueError, match="indptr has shape"):
            OPS.gather_csr(tensors(ROWS), wrong, 3)


def test_no_rows_and_no_edges_are_as_good_as_any(native):
    none = torch.zeros(0, dtype=torch.long)
    for dtype in (torch.int64, torch.int32):
        for name in SUMS:
            results = getattr(OPS, name)(torch.ones(0, 3), none.to(dtype), 0)
            assert all(part.shape == (0, 3) for part in (results if isinstance(results, tuple) else (results,)))
        assert scatter(torch.ones(0, 3), none.to(dtype), 0, dim_size=0).shape == (0, 3)
        assert gather(torch.ones(0, 3), none.to(dtype)).shape == (0, 3)
        assert cfconv(torch.ones(0, 3), torch.ones(0, 3), none.to(dtype), none.to(dtype), 0).shape == (0, 3)
        plan = ScatterPlan.from_index(none.to(dtype), 0)
        assert (plan.rowptr.tolist(), plan.perm, plan.num_edges, plan.num_rows) == ([0], None, 0, 0)


def test_the_first_value_outside_is_named_and_values_within_pass():
    refuse_index("end", torch.tensor([0, 2]), 3)
    refuse_index("end", torch.tensor([], dtype=torch.long), 0)
    for index, message in (
        ([0, 3, -1], r"end\[1\] is 3; allowed are 0 to 2\. Correct .* the number of rows, which is 3"),
        ([-1, 3], r"end\[0\] is -1; allowed are 0 to 2"),
    ):
        with pytest.raises(ValueError, match=message):
            refuse_index("end", torch.tensor(index), 3)


def test_only_whole_numbers_of_the_right_device_and_shape_are_an_index():
    like = torch.ones(2)
    check_index("end", torch.tensor([0, 1]), 2, like)
    check_index("end", torch.tensor([0, 1], dtype=torch.int32), 2, like)
    check_index("end", torch.tensor([0, 1], device="meta"), 2, like.to("meta"))
    for index, data in ((torch.tensor([0, 1]), like.to("meta")), (torch.tensor([0, 1], device="meta"), like)):
        with pytest.raises(ValueError, match=f"end is on {index.device} and the data on {data.device}"):
            check_index("end", index, 2, data)


def test_whole_numbers_are_refused_where_a_function_is_of_others():
    refuse_integers(torch.ones(2, dtype=torch.float16))
    with pytest.raises(ValueError, match=r"src has dtype torch\.int64.*Call src\.float\(\)"):
        refuse_integers(torch.tensor([1]))


@pytest.mark.parametrize("explains", [False, True])
@pytest.mark.parametrize(
    ("rowptr", "perm"),
    [
        ([0, 1, 3], None),  # the index is not sorted
        ([0, 1], [1, 0, 2]),
        ([0, 1, 3, 3], [1, 0, 2]),
        ([0, 1, 3], [1, 0]),
        ([1, 1, 3], [1, 0, 2]),
        ([0, 1, 2], [1, 0, 2]),
        ([0, 4, 3], [1, 0, 2]),
        ([0, 1, 3], [1, 0, 3]),
        ([0, 1, 3], [1, -1, 2]),
        ([0, 2, 3], [1, 0, 2]),
        ([0, 1, 3], [0, 1, 2]),
    ],
)
def test_a_plan_of_another_index_is_known(rowptr: list[int], perm: list[int] | None, explains: bool):
    order = None if perm is None else torch.tensor(perm, dtype=torch.int32)
    refuse = explain if explains else refuse_plan
    with pytest.raises(ValueError, match="The plan was made for another end, for another number of rows than 2"):
        refuse("end", INDEX, 2, torch.tensor(rowptr, dtype=torch.int32), order)


def test_the_plan_of_an_index_passes_and_what_else_stopped_a_kernel_is_told():
    rowptr, order = torch.tensor([0, 1, 3], dtype=torch.int32), torch.tensor([1, 0, 2], dtype=torch.int32)
    refuse_plan("end", INDEX, 2, rowptr, order)
    refuse_plan("end", INDEX.sort().values, 2, rowptr, None)
    empty = torch.zeros(0, dtype=torch.long)
    refuse_plan("end", empty, 1, torch.zeros(2, dtype=torch.int32), empty.int())
    for arguments in ((INDEX, 2, rowptr, order), (INDEX, 2, None, None), (None, 2, rowptr, None)):
        with pytest.raises(MemoryError, match="could not allocate"):
            explain("end", *arguments)
    with pytest.raises(ValueError, match=r"end\[0\] is 1; allowed are 0 to 0"):
        explain("end", INDEX, 1, rowptr, order)


def test_on_a_gpu_an_index_is_checked_without_waiting_for_it():
    class OnDevice(torch.Tensor):
        is_cuda = True

    refuse_index("end", torch.tensor([0, 2]).as_subclass(OnDevice), 3)
    with pytest.raises(RuntimeError, match="end has entries outside of 0 to 2; the number of rows is 3"):
        refuse_index("end", torch.tensor([0, 3]).as_subclass(OnDevice), 3)
