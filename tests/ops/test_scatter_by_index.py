"""Scatter and gather: values by hand, the same bits with and without the compiled library, and their errors."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from popgeo.native import library
from popgeo.ops import (
    ScatterPlan,
    gather,
    gather_scatter,
    scatter,
    scatter_max,
    scatter_mean,
    scatter_min,
    scatter_mul,
    scatter_sum,
)
from popgeo.ops.scatter_by_index import REDUCES

SRC = torch.tensor([[1.0, -2.0], [3.0, 4.0], [-5.0, 6.0], [7.0, 8.0]])
INDEX = torch.tensor([3, 0, 3, 1])
BY_HAND = {
    "sum": [[3, 4], [7, 8], [0, 0], [-4, 4]],
    "mean": [[3, 4], [7, 8], [0, 0], [-2, 2]],
    "mul": [[3, 4], [7, 8], [1, 1], [-5, -12]],
    "min": [[3, 4], [7, 8], [0, 0], [-5, -2]],
    "max": [[3, 4], [7, 8], [0, 0], [1, 6]],
}
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.uint8)


@pytest.fixture(autouse=True, scope="module")
def every_sum_reaches_the_kernel():
    """Send all sums to the compiled kernel; otherwise torch would compute small ones, with the same bits."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gather_scatter, "is_torch_fast", lambda *_, **__: False)
        yield


@pytest.mark.parametrize("reduce", BY_HAND)
@pytest.mark.parametrize("with_plan", [False, True])
def test_values_by_hand(native, reduce, with_plan):
    plan = ScatterPlan.from_index(INDEX, 4) if with_plan else None
    assert scatter(SRC, INDEX, 0, dim_size=4, reduce=reduce, plan=plan).tolist() == BY_HAND[reduce]


def test_the_position_of_a_maximum_is_the_first_of_equals(native):
    src = torch.tensor([[1.0], [1.0], [0.0], [float("nan")], [float("-inf")]])
    best, arg = scatter_max(src, torch.tensor([0, 0, 0, 1, 3]), 0, dim_size=4)
    assert best.flatten().tolist() == [1.0, 0.0, 0.0, float("-inf")]
    assert arg.flatten().tolist() == [0, 5, 5, 4]  # a NaN never wins; nothing arrives at row 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int32])
@pytest.mark.parametrize("reduce", ["min", "max"])
@pytest.mark.parametrize("channels", [1, 40])
def test_an_extreme_is_the_same_with_its_position_and_without(native, dtype, reduce, channels):
    positions = {"min": scatter_min, "max": scatter_max}[reduce]
    worst = torch.tensor([-(2**31), 2**31 - 1, 0, 5]) if dtype is torch.int32 else torch.tensor([1, -1, 0, 0]) / 0
    for num_rows in (3, 50):  # many edges a row, and rows that nothing arrives at
        generator = torch.Generator().manual_seed(num_rows)
        index = torch.randint(num_rows, (60,), generator=generator)
        src = worst[torch.randint(4, (60, channels), generator=generator)].to(dtype)
        for plan in (None, ScatterPlan.from_index(index, num_rows)):
            alone = scatter(src, index, 0, dim_size=num_rows, reduce=reduce, plan=plan)
            assert torch.equal(alone, positions(src, index, 0, dim_size=num_rows)[0])


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
@pytest.mark.parametrize("reduce", REDUCES)
def test_each_dtype_stays_itself(native, reduce, dtype):
    src = SRC.abs().to(dtype)
    out = scatter(src, INDEX, 0, dim_size=4, reduce=reduce)
    expected = scatter(src.double(), INDEX, 0, dim_size=4, reduce=reduce)
    expected = expected if dtype.is_floating_point else expected.floor()
    assert out.dtype == dtype
    assert out.double().tolist() == expected.tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32])
@pytest.mark.parametrize("channels", [1, 7, 16, 33, 64])
@pytest.mark.parametrize("num_rows", [5, 90, 4000])
def test_edge_by_edge_and_row_by_row_give_the_same_bits(native, generator, dtype, channels, num_rows):
    index = torch.randint(num_rows, (300,), generator=generator)
    src = torch.randn(300, channels, generator=generator).mul(100).to(dtype)
    by_row = scatter_sum(src, index, 0, dim_size=num_rows, plan=ScatterPlan.from_index(index, num_rows).set_tiles(1))
    assert torch.equal(by_row, scatter_sum(src, index, 0, dim_size=num_rows))
    assert torch.equal(by_row, src.new_zeros(num_rows, channels).index_add_(0, index, src))


@pytest.mark.parametrize("channels", [9, 64])
def test_a_large_result_is_clear_where_nothing_arrives(native, channels):
    num_rows = (13 << 20) // (4 * channels)  # large enough to be cleared past the caches, from an unaligned start
    index = torch.tensor([num_rows - 1, 0, num_rows - 1])
    out = scatter_sum(torch.ones(3, channels), index, 0, dim_size=num_rows)
    assert out.count_nonzero() == 2 * channels
    assert out[0].eq(1).all()
    assert out[-1].eq(2).all()


def test_integer_sums_wrap_as_in_torch(native):
    src = torch.full((2, 1), torch.iinfo(torch.int32).max, dtype=torch.int32)
    assert scatter_sum(src, torch.zeros(2, dtype=torch.long), 0, dim_size=1).item() == -2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_accumulates_in_float32_and_rounds_once(native, dtype):
    src = torch.ones(1000, 8, dtype=dtype)  # one by one, bfloat16 would stop at 256
    assert scatter_sum(src, torch.zeros(1000, dtype=torch.long), 0, dim_size=1).tolist() == [[1000.0] * 8]


@st.composite
def problems(draw, max_channels=40):
    num_edges, num_rows = draw(st.integers(0, 60)), draw(st.integers(1, 20))
    channels, seed = draw(st.integers(0, max_channels)), draw(st.integers(0, 2**20))
    generator = torch.Generator().manual_seed(seed)
    index = torch.randint(num_rows, (num_edges,), generator=generator)
    index = index.sort().values if draw(st.booleans()) else index
    return torch.randn(num_edges, channels, generator=generator), index, num_rows


@settings(deadline=None, max_examples=100)
@given(
    problem=problems(), reduce=st.sampled_from(list(REDUCES)), dtype=st.sampled_from(FLOATS), with_plan=st.booleans()
)
def test_compiled_and_fallback_give_the_same_bits(problem, reduce, dtype, with_plan):
    src, index, num_rows = problem
    src = src.to(dtype)
    plan = ScatterPlan.from_index(index, num_rows) if with_plan else None
    out = scatter(src, index, 0, dim_size=num_rows, reduce=reduce, plan=plan)
    with library.without_native():
        expected = scatter(src, index, 0, dim_size=num_rows, reduce=reduce, plan=plan)
    assert torch.equal(out, expected)


@settings(deadline=None, max_examples=60)
@given(problem=problems())
def test_a_sum_has_the_bits_of_index_add(problem):
    src, index, num_rows = problem
    expected = torch.zeros(num_rows, src.shape[1]).index_add_(0, index, src)
    assert torch.equal(scatter_sum(src, index, 0, dim_size=num_rows), expected)


@pytest.mark.parametrize("dim", [0, 1, 2, -1])
@pytest.mark.parametrize("reduce", REDUCES)
def test_any_dimension_and_any_broadcasting_index(native, generator, dim, reduce):
    src = torch.randn(3, 4, 5, generator=generator)
    vector = torch.randint(6, (src.shape[dim],), generator=generator)
    shape = [1, 1, 1]
    shape[dim] = -1
    full = vector.reshape(shape).expand_as(src)
    by_vector = scatter(src, vector, dim, dim_size=6, reduce=reduce)
    assert by_vector.shape[dim] == 6
    assert torch.equal(by_vector, scatter(src, full, dim, dim_size=6, reduce=reduce))
    assert torch.equal(by_vector, scatter(src, full.contiguous(), dim, dim_size=6, reduce=reduce))
    plain = scatter(src.movedim(dim, 0).contiguous().flatten(1), vector, 0, dim_size=6, reduce=reduce)
    assert torch.equal(by_vector.movedim(dim, 0).flatten(1), plain)


def test_an_index_that_differs_between_channels(native):
    index = torch.tensor([[0, 1], [1, 1], [0, 0], [1, 0]])
    assert scatter_sum(SRC, index, 0, dim_size=2).tolist() == [[-4, 14], [10, 2]]
    assert scatter_max(SRC, index, 0, dim_size=2)[1].tolist() == [[0, 3], [3, 1]]


@pytest.mark.parametrize("shape", [(0, 3), (4, 0), (0, 0)])
def test_empty_inputs(native, shape):
    index = torch.zeros(shape[0], dtype=torch.long)
    for reduce in REDUCES:
        out = scatter(torch.ones(shape), index, 0, dim_size=2, reduce=reduce)
        assert out.tolist() == [[(1.0 if reduce == "mul" or shape[0] else 0.0)] * shape[1]] * 2
    assert gather(torch.ones(2, shape[1]), index).shape == shape


def test_strided_and_aliased_tensors_are_read_as_they_are(native):
    big = torch.arange(24.0).reshape(4, 6)
    index = torch.tensor([9, 1, 9, 0, 9, 1, 9, 0])[1::2]
    expected = scatter_sum(big[:, ::2].contiguous(), index.contiguous(), 0, dim_size=2)
    assert torch.equal(scatter_sum(big[:, ::2], index, 0, dim_size=2), expected)
    assert torch.equal(scatter_sum(big[:1].expand(4, 6), index, 0, dim_size=2)[0], big[0] * 2)
    assert torch.equal(scatter_sum(big, index, 0, out=big[:2].clone())[0], big[0] + big[1] + big[3])


def test_out_is_reduced_into_in_place(native):
    out = torch.ones(4, 2)
    assert scatter_sum(SRC, INDEX, 0, out=out) is out
    assert out.tolist() == [[4, 5], [8, 9], [1, 1], [-3, 5]]
    assert scatter_mul(SRC, INDEX, 0, out=torch.full((4, 2), 2.0)).tolist() == [[6, 8], [14, 16], [2, 2], [-10, -24]]
    best, arg = scatter_max(SRC, INDEX, 0, out=torch.full((4, 2), 5.0))
    assert best.tolist() == [[5, 5], [7, 8], [5, 5], [5, 6]]
    assert arg.tolist() == [[4, 4], [3, 3], [4, 4], [4, 2]]


def test_a_number_of_rows_where_pyg_has_it_is_told_apart_from_out():
    with pytest.raises(ValueError, match="out is 4; it is a tensor"):
        scatter_sum(SRC, INDEX, 0, 4)


def test_integer_means_round_down(native):
    src = torch.tensor([-3, -4, 5])
    assert scatter_mean(src, torch.tensor([0, 0, 1]), 0).tolist() == [-4, 5]


@pytest.mark.parametrize("reduce", REDUCES)
@pytest.mark.parametrize(("value", "position"), [(-1, 2), (4, 0), (2**33, 3)])
def test_an_index_out_of_range_is_named(native, reduce, value, position):
    index = INDEX.clone()
    index[position] = value
    with pytest.raises(ValueError, match=rf"index\[{position}\] is {value}; allowed are 0 to 3"):
        scatter(SRC, index, 0, dim_size=4, reduce=reduce)
    with pytest.raises(ValueError, match=rf"index\[{position}\] is {value}"):
        gather(SRC, index)


def test_what_does_not_fit_is_refused(native):
    with pytest.raises(ValueError, match="reduce is 'median'; it must be one of 'sum'"):
        scatter(SRC, INDEX, 0, reduce="median")
    with pytest.raises(ValueError, match="dim is 2"):
        scatter(SRC, INDEX, 2)
    with pytest.raises(ValueError, match=r"shape \(3,\).*each of the 4 rows"):
        scatter(SRC, INDEX[:3], 0, dim_size=4)
    with pytest.raises(ValueError, match="does not broadcast"):
        scatter(SRC, INDEX.reshape(2, 2), 0, dim_size=4)
    with pytest.raises(ValueError, match=r"dtype torch\.int16"):
        scatter(SRC, INDEX.short(), 0, dim_size=4)
    assert scatter(SRC.t().contiguous().t(), INDEX, 0, dim_size=4).tolist() == BY_HAND["sum"]
    with pytest.raises(ValueError, match="on meta"):
        scatter(SRC, INDEX.to("meta"), 0, dim_size=4)
    full, plan = torch.stack([INDEX, INDEX.flip(0)], 1), ScatterPlan.from_index(INDEX, 4)
    with pytest.raises(ValueError, match="this index differs"):
        scatter(SRC, full, 0, dim_size=4, plan=plan)


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_any_number_of_threads_gives_the_same_bits(native, generator, num_threads):
    src = torch.randn(3000, 33, generator=generator)
    index = torch.randint(100, (3000,), generator=generator)
    expected = torch.zeros(100, 33).index_add_(0, index, src)
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        for reduce in ("sum", "max"):
            out = [scatter(src, index, 0, dim_size=100, reduce=reduce) for _ in range(3)]
            assert torch.equal(out[0], out[1])
            assert torch.equal(out[0], out[2])
            assert reduce == "max" or torch.equal(out[0], expected)
    finally:
        torch.set_num_threads(before)


def test_an_index_of_fewer_dimensions_is_matched_from_the_left():
    src = torch.arange(24.0).reshape(2, 3, 4)
    index = torch.tensor([[0, 1, 0], [1, 1, 0]])
    expected = torch.zeros(2, 2, 4)
    for i in range(2):
        for j in range(3):
            expected[i, index[i, j]] += src[i, j]
    assert torch.equal(scatter(src, index, 1, dim_size=2), expected)


def test_a_mode_that_watches_operations_sees_the_sum():
    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    with Watch():
        scatter(SRC, INDEX, 0, dim_size=4)
    assert any("scatter_sum" in name for name in seen)


def test_data_without_memory_have_shapes():
    assert scatter(SRC.t().contiguous().t(), INDEX, 0, dim_size=4).tolist() == BY_HAND["sum"]  # steps in memory
    src, index = SRC.to("meta"), INDEX.to("meta")
    assert scatter(src, index, 0, dim_size=4).shape == (4, 2)
    with pytest.raises(ValueError, match="move both to one device"):
        scatter(SRC, index, 0, dim_size=4)
