"""Segments of any shape against loops; pointers that begin late, end early, descend or exceed the entries."""

import itertools
import struct

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from popgeo import ops
from popgeo.native import library
from popgeo.ops import segment_sum
from popgeo.ops.kernel_arguments import NATIVE_DTYPES
from popgeo.ops.scatter_reductions import segment_max_rows
from popgeo.ops.segment_sum import gather_csr_rows, row_of_each_edge, segment_sum_rows

SRC = torch.tensor([[4.0, -1.0], [2.0, 5.0], [3.0, 3.0], [9.0, 1.0]])
REDUCES = {"sum": sum, "min": min, "max": max, "mean": lambda entries: sum(entries) / len(entries)}


class OnDevice(torch.Tensor):
    """A tensor that says it lies on a GPU."""

    is_cuda = True


def segment_by_segment(src: Tensor, indptr: Tensor, reduce: str) -> tuple[Tensor, Tensor]:
    """Return the reduction along the pointers' last dimension, and the first position of its entry."""
    dim = indptr.dim() - 1
    full = indptr.expand(*src.shape[:dim], indptr.shape[dim])
    shape = (*src.shape[:dim], indptr.shape[dim] - 1, *src.shape[dim + 1 :])
    out, arg = torch.zeros(shape, dtype=src.dtype), torch.full(shape, src.shape[dim])
    for position in itertools.product(*map(range, shape)):
        start, stop = full[position[:dim]][position[dim] : position[dim] + 2].tolist()
        entries = [src[(*position[:dim], place, *position[dim + 1 :])].item() for place in range(start, stop)]
        if entries:
            out[position] = REDUCES[reduce](entries)
            arg[position] = start + entries.index(out[position].item()) if out[position].item() in entries else 0
    return out, arg


@pytest.mark.parametrize(
    ("shape", "indptr"),
    [
        ((5,), [0, 2, 2, 5]),
        ((5, 3), [1, 2, 4]),  # begins late and ends early
        ((5, 0), [0, 5]),
        ((0, 3), [0, 0, 0]),
        ((5, 2), [3]),  # no row
        ((5, 2, 3), [0, 1, 5]),
        ((2, 5), [[0, 1, 5]]),
        ((2, 5), [[0, 1, 5], [1, 4, 4]]),
        ((2, 5, 3), [[0, 1, 5], [1, 4, 4]]),
        ((2, 3, 5), [[[0, 1, 5], [0, 2, 3], [5, 5, 5]]]),
        ((1, 5, 2), [[0, 4, 5]]),
        ((0, 5), [[0, 4, 5]]),
    ],
)
@pytest.mark.parametrize("index_dtype", [torch.int64, torch.int32])
def test_segments_of_any_shape(native, generator, shape, indptr, index_dtype):
    src, indptr = torch.randn(shape, generator=generator, dtype=torch.float64), torch.tensor(indptr).to(index_dtype)
    for reduce in REDUCES:
        expected, position = segment_by_segment(src, indptr, reduce)
        result = ops.segment_csr(src, indptr, reduce=reduce)
        torch.testing.assert_close(result, expected)
        by_name = getattr(ops, f"segment_{reduce}_csr")(src, indptr)
        if reduce in ("min", "max"):
            assert torch.equal(by_name[1], position)
            by_name = by_name[0]
        assert torch.equal(by_name, result)


@pytest.mark.parametrize("channels", [1, 3, 33])
@pytest.mark.parametrize("dtype", [*NATIVE_DTYPES, torch.int16])
def test_extremes_are_the_first_of_equal_entries_and_never_nan(native, generator, dtype, channels):
    if dtype.is_floating_point:
        pool = torch.tensor([-torch.inf, torch.inf, torch.nan, -0.0, 0.0, 1.0, -2.0], dtype=dtype)
    else:
        pool = torch.tensor([torch.iinfo(dtype).min, torch.iinfo(dtype).max, 0, 1, -2], dtype=dtype)
    indptr = torch.tensor([1, 2, 2, 3, 7, 20, 38])  # begins late and ends early
    src = pool[torch.randint(len(pool), (40, channels), generator=generator)]
    src[7:20], src[20:24] = pool[0], pool[1]
    for name, find in (("max", max), ("min", min)):
        best, arg = getattr(ops, f"segment_{name}_csr")(src, indptr)
        for row, channel in itertools.product(range(len(indptr) - 1), range(channels)):
            start, stop = indptr[row : row + 2].tolist()
            numbers = {e: v for e in range(start, stop) if (v := src[e, channel].item()) == v}
            edge = next((e for e, v in numbers.items() if v == find(numbers.values())), 40)
            assert arg[row, channel] == edge
            expected = src[edge, channel] if numbers else torch.zeros((), dtype=dtype)
            assert torch.equal(best[row, channel], expected)


@pytest.mark.parametrize(
    ("rows", "indptr", "expected"),
    [
        ([7, 8, 9], [0, 2, 2, 3], [7, 7, 9]),
        ([7, 8], [1, 2, 4], [0, 7, 8, 8]),
        ([7], [2, 2], [0, 0]),
        ([], [3], [0, 0, 0]),
    ],
)
def test_rows_are_repeated_between_their_pointers_and_zero_before_them(native, rows, indptr, expected):
    rows, indptr = torch.tensor(rows, dtype=torch.float32), torch.tensor(indptr)
    assert ops.gather_csr(rows, indptr).tolist() == expected
    out = torch.full((5,), -1.0)
    assert ops.gather_csr(rows, indptr, out) is out
    assert out.tolist() == [*expected, *[0] * (5 - len(expected))]
    table = torch.stack([rows, 2 * rows])
    turned = torch.complex(rows, rows).conj()
    assert ops.gather_csr(turned, indptr).tolist() == [complex(one, -one) for one in expected]
    assert ops.gather_csr(torch.ones(0, 2), torch.zeros(0, 3).long()).shape == (0, 0)
    assert ops.gather_csr(table, indptr[None]).tolist() == [expected, [2 * one for one in expected]]


def test_gathers_by_index_of_any_dimension(native, generator):
    src = torch.randn(2, 4, 3, generator=generator)
    index = torch.tensor([[0, 3, 3], [2, 1, 0]])
    expected = torch.stack([src[0, index[0]], src[1, index[1]]])
    assert torch.equal(ops.gather_coo(src, index), expected)
    assert torch.equal(ops.gather_coo(src, index[:1]), src[:, index[0]])
    assert ops.gather_coo(src, index[:, :0]).shape == (2, 0, 3)
    assert ops.gather_coo(torch.ones(2, 0), torch.zeros(2, 0).long()).shape == (2, 0)
    with pytest.raises(ValueError, match=r"index\[1\] is 4; allowed are 0 to 3"):
        ops.gather_coo(src, torch.tensor([[0, 4], [1, 1]]))
    with pytest.raises(ValueError, match=r"index\[1\] is 4; allowed are 0 to 3"):
        ops.gather_coo(src[0], torch.tensor([0, 4]))


def test_sorted_indices_reduce_along_the_last_dimension_that_they_have(native):
    src = torch.tensor([[1.0, 2, 4], [8, 16, 32]])
    index = torch.tensor([[0, 0, 2], [1, 1, 1]])
    assert ops.segment_coo(src, index).tolist() == [[3, 0, 4], [0, 56, 0]]
    assert ops.segment_coo(3 * src, index, reduce="mean", dim_size=4).tolist() == [[4.5, 0, 12, 0], [0, 56, 0, 0]]
    whole = torch.tensor([[-3, -4, 7]])
    assert ops.segment_coo(whole, index[:1], reduce="mean").tolist() == [[-3, 0, 7]]
    assert ops.segment_coo(whole, index[:1], reduce="max", dim_size=3).tolist() == [[-3, 0, 7]]


@pytest.mark.parametrize(
    ("indptr", "message"),
    [
        ([0, 3, 1, 4], r"indptr\[2\] is 1, below indptr\[1\], which is 3; pointers may not descend"),
        ([3, 1, 0], r"indptr\[1\] is 1, below indptr\[0\], which is 3"),
        ([-1, 1, 4], r"indptr runs from -1 to 4; allowed are 0 to 4, the number of entries"),
        ([0, 1, 5], r"indptr runs from 0 to 5; allowed are 0 to 4"),
        ([-1, 1, 5], r"indptr runs from -1 to 5"),
    ],
)
def test_pointers_that_descend_or_leave_the_entries_are_refused(native, indptr, message):
    indptr = torch.tensor(indptr)
    x = torch.ones(len(indptr) - 1, 2)
    for call in (
        lambda: segment_sum_rows(SRC, indptr),
        lambda: gather_csr_rows(x, indptr, 4),
        lambda: row_of_each_edge(indptr, 4),
        lambda: ops.segment_csr(SRC, indptr, reduce="max"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_pointers_fit_the_rows_and_the_entries(native):
    for num_rows in (2, 4):
        with pytest.raises(ValueError, match=f"x has {num_rows} rows and indptr 4 pointers; pass one more"):
            gather_csr_rows(torch.ones(num_rows, 1), torch.tensor([0, 1, 1, 2]), 2)
    for shape in ((), (0,), (2, 0), (1, 1, 2), (1, 1, 1, 2)):
        with pytest.raises(ValueError, match=r"fits no dimension of src, \(5,\)|fits no dimension of src, \(2, 5\)"):
            ops.segment_csr(torch.ones(5) if shape == (0,) else torch.ones(2, 5), torch.zeros(shape).long())
    with pytest.raises(ValueError, match="leading dimensions do not broadcast"):
        ops.segment_csr(torch.ones(2, 5), torch.zeros(3, 2, dtype=torch.long))


def test_each_edge_knows_its_row_and_those_outside_the_number_of_rows(native):
    indptr = torch.tensor([1, 3, 3, 4])
    assert row_of_each_edge(indptr, 6).tolist() == [3, 0, 0, 2, 3, 3]
    assert row_of_each_edge(indptr.int(), 6).dtype is torch.int64
    assert row_of_each_edge(torch.tensor([0]), 2).tolist() == [0, 0]
    assert row_of_each_edge(indptr.as_subclass(OnDevice), 6).tolist() == [3, 0, 0, 2, 3, 3]


@pytest.mark.parametrize("indptr", [[0, 3, 1, 4], [-1, 1, 4], [0, 1, 5]])
def test_on_a_gpu_pointers_are_checked_without_waiting_for_them(indptr):
    indptr = torch.tensor(indptr).as_subclass(OnDevice)
    with pytest.raises(RuntimeError, match="indptr descends, or leaves the 4 entries"):
        row_of_each_edge(indptr, 4)
    with pytest.raises(RuntimeError, match="indptr descends, or leaves the 4 entries"):
        segment_sum._segment_sum(SRC.as_subclass(OnDevice), indptr)


@pytest.mark.parametrize("indptr", [[0, 2, 4], [1, 3, 3], [2, 2, 2]])
def test_on_a_gpu_rows_are_repeated_as_on_the_processor(indptr):
    x, indptr = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor(indptr)
    assert torch.equal(
        segment_sum._gather_csr(x, indptr.as_subclass(OnDevice), 4).as_subclass(Tensor), gather_csr_rows(x, indptr, 4)
    )
    none = torch.tensor([0]).as_subclass(OnDevice)
    assert segment_sum._gather_csr(torch.ones(0, 2), none, 3).tolist() == [[0, 0]] * 3


def test_on_a_gpu_segments_are_summed_by_their_own_pointers(monkeypatch):
    asked = []

    def scatter_sum(src, index, num_rows, rowptr, perm):
        asked.append((num_rows, rowptr.tolist(), perm))
        return torch.zeros(num_rows, 2)

    monkeypatch.setattr(segment_sum.sum_on_device, "scatter_sum", scatter_sum)
    segment_sum._segment_sum(SRC.as_subclass(OnDevice), torch.tensor([0, 1, 1, 4]))
    assert asked == [(3, [0, 1, 1, 4], None)]


def test_under_capture_shapes_follow_from_the_arguments(native):
    with FakeTensorMode() as mode:
        rows, indptr = mode.from_tensor(SRC), mode.from_tensor(torch.tensor([0, 1, 4]))
        assert segment_sum_rows(rows, indptr).shape == (2, 2)
        assert gather_csr_rows(rows[:2], indptr, 7).shape == (7, 2)
        assert [one.shape for one in segment_max_rows(rows, indptr)] == [(2, 2), (2, 2)]
        with pytest.raises(ValueError, match="cannot be read from indptr: pass out="):
            ops.gather_csr(rows[:2], indptr)
        assert ops.gather_csr(rows[:2], indptr, rows.new_empty(7, 2)).shape == (7, 2)


def test_pointers_are_read_by_the_compiled_kernel(monkeypatch):
    if not library.is_available():
        pytest.skip(library.reason())
    src, indptr = torch.arange(10.0).view(5, 2), torch.tensor([0, 9, 1, 9, 5, 9])[::2]
    with library.without_native():
        assert segment_sum_rows(src, indptr.contiguous()).tolist() == [[0, 1], [20, 24]]
    told, find = [], library.packed
    monkeypatch.setattr(library, "packed", lambda name: lambda call: (told.append(call), find(name)(call))[1])
    assert segment_sum_rows(src, indptr).tolist() == [[0, 1], [20, 24]]
    assert [struct.unpack("10q", call)[6:9] for call in told] == [(5, 2, 2)]  # entries, rows and channels
