"""Scatters, gathers and segments of any dimension, dtype, layout and length against loops over the entries."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from popgeo import ops
from popgeo.ops import ScatterPlan, gather, gather_scatter, scatter
from popgeo.ops.scatter_by_index import REDUCES

DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int32,
    torch.int64,
    torch.int16,
    torch.uint8,
)
SHAPES = [((6,), (6,), 0), ((4, 3), (4,), 0), ((4, 3), (3,), 1), ((4, 3), (4, 3), 0), ((4, 3), (4, 3), -1)]
SHAPES += [((4, 3), (4, 1), -2), ((2, 3, 4), (2, 3), 1), ((2, 3, 4), (3,), -2), ((2, 3, 4), (1, 3, 4), 1)]
SHAPES += [((2, 3, 4), (2, 1, 4), 2), ((2, 1), (2, 1), 0), ((0, 3), (0,), 0), ((0, 3), (0, 3), 0), ((3, 0), (3, 0), 0)]
SHAPES += [((2, 0, 3), (0,), 1), ((2, 0, 3), (2, 0), 1)]


def row_of(index: Tensor, position: tuple[int, ...], dim: int) -> int:
    """Return the row of the entry at a position: a single dimension lies along `dim`, several match from the left."""
    if index.dim() == 1:
        return int(index[position[dim]])
    return int(index[tuple(min(p, size - 1) for p, size in zip(position, index.shape, strict=False))])


def entry_by_entry(src: Tensor, index: Tensor, dim: int, num_rows: int, reduce: str) -> tuple[Tensor, Tensor]:
    """Return the reduction and the position of its entry."""
    dim %= src.dim()
    shape = [*src.shape[:dim], num_rows, *src.shape[dim + 1 :]]
    found: dict[tuple[int, ...], list[tuple[float, int]]] = {}
    for position in itertools.product(*map(range, src.shape)):
        target = (*position[:dim], row_of(index, position, dim), *position[dim + 1 :])
        found.setdefault(target, []).append((src[position].item(), position[dim]))
    out = torch.full(shape, 1 if reduce == "mul" else 0, dtype=torch.float64)
    arg = torch.full(shape, src.shape[dim])
    for target, entries in found.items():
        values = [value for value, _ in entries]
        mean = sum(values) / len(values)
        out[target] = {
            "sum": sum(values), "add": sum(values), "mul": math.prod(values), "min": min(values), "max": max(values),
            "mean": mean if src.is_floating_point() else math.floor(mean),
        }[reduce]  # fmt: skip
        arg[target] = min((place for value, place in entries if value == out[target]), default=src.shape[dim])
    return out, arg


@pytest.fixture(params=[False, True], ids=["torch where it is as fast", "the kernel always"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param:
        monkeypatch.setattr(gather_scatter, "is_torch_fast", lambda *_, **__: False)


@pytest.mark.parametrize(("shape", "index_shape", "dim"), SHAPES)
def test_any_shape_dimension_and_index(native, generator, shape, index_shape, dim):
    src = torch.randint(1, 9, shape, generator=generator).double()
    index = torch.randint(3, index_shape, generator=generator)
    for reduce in REDUCES:
        for dtype in (torch.float64, torch.float32, torch.int64):
            expected, position = entry_by_entry(src.to(dtype), index, dim, 4, reduce)
            result = scatter(src.to(dtype), index, dim, dim_size=4, reduce=reduce)
            torch.testing.assert_close(result.double(), expected, rtol=1e-6, atol=0)
            if reduce in ("min", "max"):
                best, arg = getattr(ops, f"scatter_{reduce}")(src.to(dtype), index.int(), dim, dim_size=4)
                assert torch.equal(best, result)
                assert torch.equal(arg, position)
    measured = scatter(src, index, dim)
    assert measured.shape[dim] == (int(index.max()) + 1 if index.numel() else 0)
    assert torch.equal(measured, scatter(src, index, dim, dim_size=4).narrow(dim, 0, measured.shape[dim]))


@pytest.mark.parametrize(("shape", "index_shape", "dim"), [one for one in SHAPES if math.prod(one[0])])
def test_weights_over_any_dimension_sum_to_one_where_entries_arrive(native, generator, shape, index_shape, dim):
    src = torch.randn(shape, generator=generator, dtype=torch.float64)
    index = torch.randint(3, index_shape, generator=generator)
    weights = ops.scatter_softmax(src, index, dim, dim_size=4)
    assert weights.shape == src.shape
    total, _ = entry_by_entry(src.exp(), index, dim, 4, "sum")
    ones, _ = entry_by_entry(weights, index, dim, 4, "sum")
    torch.testing.assert_close(ones, (total > 0).double())
    torch.testing.assert_close(ops.scatter_log_softmax(src, index, dim, dim_size=4), weights.log())
    logs = ops.scatter_logsumexp(src, index, dim, dim_size=4)
    torch.testing.assert_close(logs, torch.where(total > 0, total, 1.0).log())
    mean, _ = entry_by_entry(src, index, dim, 4, "mean")
    squares, _ = entry_by_entry(src.square(), index, dim, 4, "sum")
    count, _ = entry_by_entry(torch.ones_like(src), index, dim, 4, "sum")
    for unbiased in (0, 1):
        spread = (squares - count * mean.square()) / ((count - unbiased).clamp(min=1) + 1e-6)
        made = ops.scatter_std(src, index, dim, dim_size=4, unbiased=bool(unbiased))
        torch.testing.assert_close(made.square(), spread, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("index_dtype", [torch.int64, torch.int32])
def test_any_dtype_and_layout_with_and_without_a_plan(native, way, generator, dtype, index_dtype):
    src = torch.randint(0, 9, (20, 5), generator=generator).to(dtype)
    index = torch.randint(6, (20,), generator=generator).to(index_dtype)
    expected, _ = entry_by_entry(src, index, 0, 7, "sum")
    layouts = src, src.t().contiguous().t(), torch.stack([src, src], 2)[..., 1]
    strided = torch.stack([index, index.flip(0)], 1)[:, 0]
    for values, ends in itertools.product(layouts, (index, strided)):
        for plan in (None, ScatterPlan.from_index(ends, 7), ScatterPlan.from_index(ends, 7).set_tiles(3)):
            result = scatter(values, ends, 0, dim_size=7, plan=plan)
            assert result.dtype is dtype
            assert torch.equal(result.double(), expected)
            assert torch.equal(gather(result, ends, plan=plan), result[ends.long()])
            if dtype.is_floating_point:
                leaf = values.detach().requires_grad_()
                total = scatter(leaf, ends, 0, dim_size=7, plan=plan)
                assert torch.equal(total.detach(), result)
                (grad,) = torch.autograd.grad(total, leaf, result)
                assert torch.equal(grad, result[ends.long()])


@pytest.mark.parametrize("channels", [0, 1, 7, 8, 15, 16, 17, 31, 32, 33, 64])
def test_any_width_and_number_of_edges_has_the_bits_of_index_add(native, way, generator, channels):
    for num_edges, num_rows in ((0, 3), (1, 1), (5, 9), (40, 4), (64, 64)):
        index = torch.randint(num_rows, (num_edges,), generator=generator)
        src = torch.randn(num_edges, channels, generator=generator)
        expected = torch.zeros(num_rows, channels).index_add_(0, index, src)
        for plan in (None, ScatterPlan.from_index(index, num_rows)):
            assert torch.equal(scatter(src, index, 0, dim_size=num_rows, plan=plan), expected)
            assert torch.equal(scatter(src, index, -2, dim_size=num_rows, plan=plan), expected)


def test_logarithms_of_sums_by_hand(native):
    index, e = torch.tensor([0, 0]), math.e
    large = torch.full((2,), 1000.0)
    assert ops.scatter_softmax(large, index).tolist() == [0.5, 0.5]
    assert ops.scatter_log_softmax(large, index).tolist() == pytest.approx([-math.log(2)] * 2)
    assert ops.scatter_log_softmax(torch.zeros(2), index, eps=2.0).tolist() == pytest.approx([-math.log(4)] * 2)
    assert ops.scatter_logsumexp(torch.zeros(2), index, eps=2.0).tolist() == pytest.approx([math.log(4)])
    assert ops.scatter_logsumexp(large, index, dim_size=2).tolist() == pytest.approx([1000 + math.log(2), 0])
    score = torch.tensor([4.0, 0.0])
    result = ops.scatter_logsumexp(torch.tensor([3.0, 3.0]), index, out=score)
    assert result.tolist() == pytest.approx([3 + math.log(2 + e), 0])
    assert score.tolist() == [4, 0]


def test_whole_numbers_have_no_weights_nor_spread(native):
    whole, index = torch.tensor([1, 2]), torch.tensor([0, 0])
    for name in ("scatter_softmax", "scatter_log_softmax", "scatter_logsumexp", "scatter_std"):
        with pytest.raises(ValueError, match=r"src has dtype torch\.int64"):
            getattr(ops, name)(whole, index)


@pytest.mark.parametrize("num_edges", [0, 1, 2, 3, 4, 5, 7, 8, 9, 17])
def test_the_gradient_of_a_product_of_any_length_is_that_of_all_others(native, num_edges):
    src = torch.arange(1.0, num_edges + 1, dtype=torch.float64).reciprocal().add(0.5).requires_grad_()
    for index in (torch.zeros(num_edges).long(), torch.arange(num_edges) % 2):
        (grad,) = torch.autograd.grad(ops.scatter_mul(src, index, dim_size=2).sum(), src)
        for e in range(num_edges):
            others = [src[j].item() for j in range(num_edges) if j != e and index[j] == index[e]]
            assert float(grad[e]) == pytest.approx(math.prod(others))


def test_out_takes_what_is_reduced_along_any_dimension(native):
    src, index = torch.tensor([[1.0, 5.0, 3.0], [4.0, 2.0, 8.0]]), torch.tensor([0, 2, 0])
    begin = torch.tensor([[1.0, 1, 1], [9, 9, 9]])
    for reduce, expected in {
        "sum": [[5, 1, 6], [21, 9, 11]], "mean": [[2.5, 1, 6], [10.5, 9, 11]], "mul": [[3, 1, 5], [288, 9, 18]],
        "min": [[1, 1, 1], [4, 9, 2]], "max": [[3, 1, 5], [9, 9, 9]],
    }.items():  # fmt: skip
        out = begin.clone()
        assert scatter(src, index, 1, out, reduce=reduce) is out
        assert out.tolist() == expected
    assert scatter(src.long(), index, 1, begin.long(), reduce="mean").tolist() == [[2, 1, 6], [10, 9, 11]]
    assert ops.scatter_min(src, index, 1, begin.clone())[1].tolist() == [[3, 3, 3], [0, 3, 1]]
    assert ops.scatter_max(src, index, 1, begin.clone())[1].tolist() == [[2, 3, 1], [3, 3, 3]]
    squares = torch.full((2, 3), 2.0)
    deviation = ops.scatter_std(src, index, 1, squares)
    torch.testing.assert_close(deviation.square(), torch.tensor([[4.0, 2, 2], [10, 2, 2]]), rtol=1e-5, atol=0)
    assert squares.tolist() == [[4, 2, 2], [10, 2, 2]]  # of the deviations, and what was there


def test_an_index_that_is_the_same_in_every_channel_may_have_a_plan(native):
    index = torch.tensor([1, 0, 1, 3])
    plan, src = ScatterPlan.from_index(index, 4), torch.arange(12.0).reshape(4, 3)
    for wide, values in ((index[:, None].expand(4, 3), src), (index[:, None].clone(), src[:, :1])):
        for dim in (0, -2):
            result = scatter(values, wide, dim, dim_size=4, plan=plan)
            assert torch.equal(result, scatter(values, index, 0, dim_size=4))
    result = scatter(src.t(), index[None].expand(3, 4), -1, dim_size=4, plan=plan)
    assert torch.equal(result, scatter(src, index, 0, dim_size=4).t())


def test_an_index_that_differs_between_channels_is_checked_and_has_no_plan(native):
    src, index = torch.ones(2, 3), torch.tensor([[0, 1, 0], [1, 3, 0]])
    with pytest.raises(ValueError, match=r"index\[4\] is 3; allowed are 0 to 2"):
        scatter(src, index, 0, dim_size=3)
    with pytest.raises(ValueError, match="differs between channels"):
        scatter(src, index, 0, dim_size=4, plan=ScatterPlan.from_index(index[:, 0], 4))
    for reduce in REDUCES:
        leaf = src.clone().requires_grad_()
        scatter(leaf, index, 0, dim_size=4, reduce=reduce).sum().backward()
        assert leaf.grad.gt(0).all() or reduce in ("min", "max")


@pytest.mark.parametrize(
    ("shape", "dim"), [((5,), 0), ((5, 3), 0), ((5, 3), -2), ((3, 5), 1), ((2, 5, 3), 1), ((5, 2, 3), 0), ((2, 5), -1)]
)
def test_gathers_read_along_any_dimension(native, generator, shape, dim):
    x = torch.randn(shape, generator=generator)
    index = torch.tensor([4, 0, 4, 2])
    for plan in (None, ScatterPlan.from_index(index, 5)):
        assert torch.equal(gather(x, index, dim, plan=plan), x.index_select(dim, index))
        leaf = x.clone().requires_grad_()
        gather(leaf, index, dim, plan=plan).sum().backward()
        count = torch.tensor([1.0, 0, 1, 0, 2])
        assert torch.equal(leaf.grad.movedim(dim, -1), count.expand(*x.movedim(dim, -1).shape))
    with pytest.raises(ValueError, match="no dimension to gather along"):
        gather(torch.tensor(1.0), index)
    with pytest.raises(ValueError, match=r"index\[0\] is 4; allowed are 0 to 3"):
        gather(torch.ones(4, 1), index)


def test_a_dimension_that_is_not_there_is_refused(native):
    src = torch.ones(2, 3)
    for dim in (2, -3):
        with pytest.raises(ValueError, match=rf"dim is {dim}; src has 2 dimensions, so it is -2 to 1"):
            scatter(src, torch.tensor([0, 1]), dim)
        with pytest.raises(ValueError, match=rf"dim is {dim}"):
            scatter(src, torch.tensor([0, 1]), dim, dim_size=2)


def test_a_tensor_of_another_class_is_summed_by_torch_s_dispatcher(native):
    class Own(torch.Tensor):
        pass

    src, index = torch.ones(3, 2), torch.tensor([1, 0, 1])
    assert type(scatter(src.as_subclass(Own), index, 0, dim_size=2)) is Own
    assert type(scatter(src, index.as_subclass(Own), 0, dim_size=2)) is Own
    assert type(scatter(src, index, 0, dim_size=2)) is Tensor
