"""Native calls compute popgeo's own operations with the bits of their kernels, and report indices out of range."""

from typing import Any

import pytest
import torch
from torch import Tensor

from popgeo.capture.op_graph import overload
from popgeo.engine.fuse.edge_rows import EDGE_ORDER
from popgeo.engine.program import lower_own_ops  # noqa: F401
from popgeo.native import library
from popgeo.ops.half_precision import HALVES
from popgeo.ops.scatter_plan import ScatterPlan
from tests.support.one_operation import bytes_of, lower, places_like, run

pytestmark = pytest.mark.skipif(not library.is_available(), reason="native calls need the compiled library")
FLOATS = torch.float32, torch.float64, *HALVES
NUMBERS = *FLOATS, torch.int32, torch.int64
SIZES = [(300, 40, 64), (0, 4, 3), (1, 1, 1), (7, 5, 1), (50, 90, 8), (1100, 40, 33)]  # edges, rows, channels


@pytest.fixture(autouse=True, params=[1, 2])
def num_threads(request: pytest.FixtureRequest):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    torch.manual_seed(0)
    yield request.param
    torch.set_num_threads(before)


def check(name: str, *arguments: Any) -> None:
    """Check that the native call writes the bits of the operation."""
    results = overload(f"popgeo.{name}.default")(*arguments)
    expected = [results] if isinstance(results, Tensor) else [*results]
    made = places_like(expected)
    call = lower(f"popgeo.{name}.default", arguments, made)
    assert call is not None
    assert run(call) == 0
    assert bytes_of(made) == bytes_of(expected)


def fails(target: str, results: list[Tensor], *arguments: Any) -> None:
    """Check that the native call reports bad operands."""
    call = lower(target if target == EDGE_ORDER else f"popgeo.{target}.default", arguments, results)
    assert call is not None
    assert run(call) != 0


def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape).mul(9).to(dtype)


def index_of(num_edges: int, num_rows: int, is_sorted: bool = False) -> Tensor:
    index = torch.randint(max(num_rows - 1, 1), (num_edges,))  # the last row is empty
    return index.sort().values if is_sorted else index


def plans_of(index: Tensor, num_rows: int) -> list[tuple[Any, ...]]:
    plan = ScatterPlan.from_index(index, num_rows)
    return [(None, None, 0), (plan.rowptr, plan.perm, 0), (plan.rowptr, plan.perm, 3)]


@pytest.mark.parametrize("is_sorted", [True, False])
@pytest.mark.parametrize("dtype", NUMBERS)
def test_scatters_and_gathers_have_the_bits_of_the_operations(dtype, is_sorted):
    for num_edges, num_rows, channels in SIZES:
        index, src = index_of(num_edges, num_rows, is_sorted), random(num_edges, channels, dtype=dtype)
        for plan in plans_of(index, num_rows):
            for name in ("scatter_sum", "scatter_max", "scatter_min"):
                check(name, src, index, num_rows, *plan)
            check("gather", random(num_rows, channels, dtype=dtype), index, *plan)
            if dtype not in HALVES:
                check("scatter_mul", src, index, num_rows, *plan)


@pytest.mark.parametrize("dtype", NUMBERS)
def test_segments_have_the_bits_of_the_operations(dtype):
    for num_edges, num_rows, channels in SIZES:
        cuts = torch.randint(num_edges + 1, (num_rows + 1,)).sort().values
        for name in ("segment_sum", "segment_max", "segment_min"):
            check(name, random(num_edges, channels, dtype=dtype), cuts)
        check("gather_csr", random(num_rows, channels, dtype=dtype), cuts, num_edges)


@pytest.mark.parametrize("is_sorted", [True, False])
@pytest.mark.parametrize("dtype", FLOATS)
def test_convolutions_have_the_bits_of_the_operations(dtype, is_sorted):
    for num_edges, num_rows, channels in SIZES:
        num_sources = num_rows + 2
        src, dst = index_of(num_edges, num_sources), index_of(num_edges, num_rows, is_sorted)
        x, w, grad = (random(rows, channels, dtype=dtype) for rows in (num_sources, num_edges, num_rows))
        for of_dst, of_src in zip(plans_of(dst, num_rows), plans_of(src, num_sources), strict=True):
            plans = (*of_dst[:2], *of_src)
            check("cfconv", x, w, src, dst, num_rows, *plans)
            check("cfconv_backward", grad, x, w, src, dst, *plans)


@pytest.mark.parametrize("is_sorted", [True, False])
def test_plans_and_orders_have_the_bits_of_the_operations(is_sorted):
    for num_edges, num_rows, _ in SIZES:
        index = index_of(num_edges, num_rows, is_sorted)
        check("plan", index, num_rows)
        order = torch.full((3 + num_rows + num_edges,), 9, dtype=torch.int32)
        call = lower(EDGE_ORDER, (index, num_rows), [order])
        assert call is not None
        assert run(call) == 0
        plan = ScatterPlan.from_index(index, num_rows)
        edges = [9] * num_edges if plan.perm is None else plan.perm.tolist()  # unused if the index is sorted
        assert order.tolist() == [plan.perm is None, num_rows, *plan.rowptr.tolist(), *edges]


@pytest.mark.parametrize("size", [0, 1, 33, 300 * 64, 200_000])
def test_element_wise_operations_have_the_bits_of_the_operations(size):
    for dtype in (torch.float32, torch.float64):
        x = random(size, dtype=dtype)
        check("shifted_softplus", x)
        check("shifted_softplus_backward", random(size, dtype=dtype), x)
    x = random(size)
    check("identity_loss", x)
    for dtype in HALVES:
        check("round_stochastic", x, torch.tensor([-5]), dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("form", "slots"), [(0, 5), (0, 30), (1, 10), (2, 200)])
def test_searches_have_the_bits_of_the_operation(form, slots, dtype):
    pos, batch = torch.randn(40, 3, dtype=dtype), torch.arange(40) // 21
    for mask in (None, torch.arange(40) % 5 > 0):
        check("near_nodes", form, slots, pos, batch, 1.5, 2, 21, mask)
    results = [torch.empty(40, slots, dtype=torch.int64), torch.empty(40, slots, dtype=torch.bool)]
    fails("near_nodes", results, form, slots, pos, batch + 1, 1.5, 2, 21, None)


@pytest.mark.parametrize("outside", [-1, 5])
def test_an_index_out_of_range_is_reported(outside):
    index, inside = torch.tensor([0, 4, outside, 2]), torch.tensor([0, 4, 4, 2])
    src, x, rows = random(4, 3), random(5, 3), (5, 3)
    fails("scatter_sum", [torch.empty(rows)], src, index, 5)
    fails("scatter_mul", [torch.empty(rows)], src, index, 5)
    for name in ("scatter_max", "scatter_min"):
        fails(name, [torch.empty(rows), torch.empty(rows, dtype=torch.int64)], src, index, 5)
    fails("gather", [torch.empty(4, 3)], x, index)
    fails("plan", [torch.empty(size, dtype=torch.int32) for size in (6, 4)], index, 5)
    fails(EDGE_ORDER, [torch.empty(12, dtype=torch.int32)], index, 5)
    for ends in ((index, inside), (inside, index)):
        fails("cfconv", [torch.empty(rows)], x, src, *ends, 5)
        fails("cfconv_backward", [torch.empty(rows), torch.empty(4, 3)], x, x, src, *ends)


@pytest.mark.parametrize("pointers", [[0, 3, 2], [-1, 2, 3], [0, 3, 5]])
def test_pointers_that_descend_or_leave_the_edges_are_reported(pointers):
    fails("segment_sum", [torch.empty(2, 3)], random(4, 3), torch.tensor(pointers))
    extremes = [torch.empty(2, 3), torch.empty(2, 3, dtype=torch.int64)]
    fails("segment_max", extremes, random(4, 3), torch.tensor(pointers))
    fails("gather_csr", [torch.empty(4, 3)], random(2, 3), torch.tensor(pointers), 4)


def test_a_plan_that_leaves_the_edges_is_reported():
    src, index, perm = random(3, 1), torch.tensor([0, 2, 1]), torch.tensor([0, 2, 1], dtype=torch.int32)
    rowptr = torch.tensor([0, 2, 1, 3], dtype=torch.int32)
    results = [torch.empty(3, 1), torch.empty(3, 1, dtype=torch.int64)]
    for given in (perm, None):
        fails("scatter_max", results, src, index, 3, rowptr, given, 1)


def test_operands_that_the_kernels_do_not_read_are_left_to_torch():
    index, src = index_of(6, 3), random(6, 4)
    rowptr, perm = torch.ops.popgeo.plan(index, 3)
    sums: list[Any] = [
        (src.t().contiguous().t(), index), (src, index.int()), (src.short(), index), (src, index.repeat(2)[::2]),
        (src, index, rowptr[1:], perm, 0), (src, index, rowptr.long(), perm, 0), (src, index, rowptr, perm[1:], 0),
    ]  # fmt: skip
    for rows, by, *plan in sums:
        assert lower("popgeo.scatter_sum.default", (rows, by, 3, *plan), [rows.new_empty(3, 4)]) is None
    pointers = torch.tensor([0, 2, 6], dtype=torch.int32)
    for name, *arguments in (
        ("scatter_mul", src.half(), index, 3), ("gather", src, index.int()), ("segment_sum", src, pointers),
        ("shifted_softplus", src.half()),
    ):  # fmt: skip
        target = f"popgeo.{name}.default"
        assert lower(target, arguments, [overload(target)(*arguments)]) is None
