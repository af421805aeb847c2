"""The ways of a sum: compiled kernels, torch, or row pointers on a GPU; and the kernels' arguments."""

import struct
import sys

import pytest
import torch
from torch import Tensor

from popgeo.native import library
from popgeo.ops import (
    ScatterPlan,
    cfconv,
    round_stochastic,
    scatter,
    segment_csr,
    shifted_softplus,
    sum_on_device,
)  # fmt: skip
from popgeo.ops.gather_scatter import is_torch_fast

INDEX = torch.tensor([1, 0, 1, 1])
SRC = torch.arange(8.0).reshape(4, 2)


class OnDevice(torch.Tensor):
    """A tensor that says it lies on a GPU."""

    is_cuda = True


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list that collects the names of called compiled functions."""
    if not library.is_available():
        pytest.skip(library.reason())
    names: list[str] = []

    def noted(find):
        def found(name, *arguments):
            native = find(name, *arguments)
            return lambda *given: (names.append(name), native(*given))[1]

        return found

    monkeypatch.setattr(library, "packed", noted(library.packed))
    monkeypatch.setattr(library, "function", noted(library.function))
    return names


@pytest.mark.parametrize(
    ("num_edges", "num_rows", "channels", "num_threads", "by_edge", "goes_to_torch"),
    [
        (200, 100, 4, 1, False, False),  # two edges a row: the kernel, whatever else
        (199, 100, 4, 1, False, True),
        (199, 100, 4, 1, True, False),  # edge by edge in one thread
        (199, 100, 4, 2, True, False),  # few enough for one thread
        (100, 100, 1 << 14, 2, True, False),  # row by row, a long stream of wide rows
        (3 << 13, 1 << 13, 1, 2, True, False),
        ((1 << 14) + 1, (1 << 14) - 1, 1, 2, True, False),  # 2^15 elements: one thread
        ((1 << 14) + 1, 1 << 14, 1, 2, True, True),
        (99, 100, 1 << 14, 2, True, True),  # most rows are empty
        (100, 100, 5242, 2, False, True),  # 524,200 elements: no prefetch
        (100, 100, 5243, 2, False, False),
        (1 << 15, 1 << 15, 16, 2, False, False),
        (1 << 15, 1 << 15, 15, 2, False, True),  # narrow rows
        (1 << 16, (1 << 16) - 1, 15, 2, False, True),
    ],
)
def test_torch_sums_where_it_was_measured_to_be_as_fast(
    num_edges, num_rows, channels, num_threads, by_edge, goes_to_torch
):
    assert is_torch_fast(num_edges, num_rows, channels, num_threads=num_threads, by_edge=by_edge) is goes_to_torch


@pytest.mark.parametrize("with_plan", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64])
def test_a_sum_of_several_edges_a_row_runs_compiled_in_every_way_of_calling_it(calls, dtype, with_plan):
    plan = ScatterPlan.from_index(INDEX, 2) if with_plan else None
    src, expected = SRC.to(dtype), [[2, 3], [10, 13]]
    strided = torch.stack([INDEX, 0 * INDEX], 1)[:, 0]
    ways = [
        lambda: scatter(src, INDEX, 0, dim_size=2, plan=plan),
        lambda: scatter(src, INDEX, 0, out=src.new_zeros(2, 2), plan=plan),  # not by the shortest way
        lambda: scatter(src.t().contiguous().t(), INDEX, 0, dim_size=2, plan=plan),
        lambda: scatter(src, strided, 0, dim_size=2, plan=plan),
    ]
    if dtype is torch.float32:
        ways.append(lambda: scatter(src.clone().requires_grad_(), INDEX, 0, dim_size=2, plan=plan))
    for way in ways:
        calls.clear()
        assert way().tolist() == expected
        assert calls == ["popgeo_scatter_sum"]


def test_the_shortest_way_needs_no_dispatcher_and_tells_the_kernel_all(monkeypatch):
    """Check that the op is not called, and the structure SumCall of gather_scatter.cpp."""
    told: list[tuple[int, ...]] = []
    plan = ScatterPlan.from_index(INDEX, 2).set_tiles(3)
    monkeypatch.setattr(library, "packed", lambda name: lambda call: told.append(struct.unpack("11q", call)) or 0)
    monkeypatch.setattr(sys.modules["popgeo.ops.scatter_by_index"], "scatter_sum_rows", None)
    for given, pointers in ((None, [0, 0, 0]), (plan, [plan.rowptr.data_ptr(), plan.perm.data_ptr(), 3])):
        for dim in (0, -2):
            out = scatter(SRC, INDEX, dim, dim_size=2, plan=given)
            rowptr, perm, num_tiles = pointers
            data = 0, SRC.data_ptr(), INDEX.data_ptr(), rowptr, perm, out.data_ptr()
            assert told.pop() == (*data, 4, 2, 2, num_tiles, torch.get_num_threads())
    leaf = SRC.clone().requires_grad_()
    with torch.no_grad():
        assert not scatter(leaf, INDEX, 0, dim_size=2).requires_grad
    assert len(told) == 1


def test_what_the_kernels_do_not_sum_goes_to_torch(calls):
    assert scatter(SRC.short(), INDEX, 0, dim_size=2).tolist() == [[2, 3], [10, 13]]
    assert scatter(SRC.byte(), INDEX, 0, dim_size=2, reduce="max").tolist() == [[2, 3], [6, 7]]
    assert not calls
    assert scatter(SRC.half(), torch.tensor([0, 3, 7, 4]), 0, dim_size=9).sum() == 28  # torch is as fast here
    assert not calls
    assert segment_csr(SRC.short(), torch.tensor([0, 4])).tolist() == [[12, 16]]
    assert not calls


def test_the_other_ops_run_compiled_too(calls):
    plan = ScatterPlan.from_index(INDEX, 2)
    assert scatter(SRC, INDEX, 0, dim_size=2, reduce="max", plan=plan).tolist() == [[2, 3], [6, 7]]
    assert segment_csr(SRC, torch.tensor([0, 1, 4])).tolist() == [[0, 1], [12, 15]]
    x = SRC[:2].clone().requires_grad_()
    cfconv(x, SRC, INDEX, INDEX, 2).sum().backward()
    cfconv(x, SRC.clone().requires_grad_(), INDEX, INDEX, 2).sum().backward()
    assert calls == [
        "popgeo_plan", "popgeo_scatter_extremum", "popgeo_segment_reduce",
        *["popgeo_cfconv"] * 3, "popgeo_cfconv_backward",
    ]  # fmt: skip
    calls.clear()
    round_stochastic(SRC, torch.tensor(3))
    for dtype in (torch.float32, torch.float64):
        shifted_softplus(SRC.to(dtype, copy=True).requires_grad_()).sum().backward()
    assert calls == ["popgeo_round_stochastic", *["popgeo_shifted_softplus"] * 4]
    calls.clear()
    shifted_softplus(SRC.half().requires_grad_()).sum().backward()
    assert not calls


def test_floating_point_rows_on_a_gpu_are_summed_by_row_pointers():
    assert sum_on_device.serves(SRC.as_subclass(OnDevice))
    assert not sum_on_device.serves(SRC)
    assert not sum_on_device.serves(SRC.long().as_subclass(OnDevice))


def test_an_index_on_a_gpu_is_sorted_there_and_always_has_an_order(monkeypatch):
    asked: list[int] = []

    def plan(index: Tensor, num_rows: int) -> tuple[Tensor, Tensor]:
        asked.append(num_rows)
        return torch.tensor([0, 2, 2], dtype=torch.int32), torch.tensor([0, 1], dtype=torch.int32)

    monkeypatch.setattr(sum_on_device, "plan", plan)
    found = ScatterPlan.from_index(torch.tensor([0, 0]).as_subclass(OnDevice), 2)
    assert asked == [2]
    assert found.perm.tolist() == [0, 1]
