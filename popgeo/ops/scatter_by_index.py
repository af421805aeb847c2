"""Scatter and gather over any dimension, with the signatures and results of torch_scatter."""

from collections.abc import Callable

import torch
from torch import Tensor

from popgeo.ops.channel_rows import ChannelRows, plan_arguments
from popgeo.ops.gather_scatter import gather_rows, rows_along, scatter_sum_rows, sum_at_once
from popgeo.ops.half_precision import in_float32
from popgeo.ops.refusals import check_choice, refuse_integers
from popgeo.ops.scatter_plan import ScatterPlan
from popgeo.ops.scatter_reductions import scatter_max_rows, scatter_min_rows, scatter_mul_rows


def scatter(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Tensor | None = None,
    dim_size: int | None = None,
    reduce: str = "sum",
    plan: ScatterPlan | None = None,
) -> Tensor:
    """Reduce all entries of `src` that share an index, as `torch_scatter.scatter` does.

    Args:
        src: Entries to reduce. [..., num_edges, ...]
        index: Receiving row of each entry: one per position along `dim`, or any shape that broadcasts to `src`.
        dim: Dimension of the index.
        out: Tensor to reduce into, in place; the function returns it.
        dim_size: Rows of the result. Default: `index.max() + 1`, which cannot be captured.
        reduce: `"sum"` (or `"add"`), `"mean"`, `"mul"`, `"min"` or `"max"`.
        plan: Plan of a one-dimensional `index`, made once and reused.

    Returns:
        The reduced entries; rows without entries have 0, or 1 for `"mul"`. [..., dim_size, ...]

    Raises:
        ValueError: an index is out of range, its shape does not broadcast, or `reduce` is unknown.

    Example:
        >>> src = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
        >>> scatter(src, torch.tensor([1, 1, 0]), dim=0, dim_size=2, reduce="sum")
        tensor([[5., 6.],
                [4., 6.]])
    """
    check_choice("reduce", reduce, REDUCES)
    result = REDUCES[reduce](src, index, dim, out, dim_size, plan)
    return result[0] if isinstance(result, tuple) else result  # an extreme without its position


def scatter_sum(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Tensor | None = None,
    dim_size: int | None = None,
    plan: ScatterPlan | None = None,
) -> Tensor:
    """Sum the entries that share an index; `scatter` explains the arguments.

    Example:
        >>> scatter_sum(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0, 2, 0]), dim_size=3)
        tensor([4., 0., 2.])
    """
    if out is None and dim_size is not None and dim in (0, -2):
        total = sum_at_once(src, index, dim_size, plan)
        if total is not None:
            return total
    rows = ChannelRows.of(src, index, dim, out, dim_size)
    total = rows.restore(scatter_sum_rows(rows.src, rows.index, rows.num_rows, *rows.plan(plan)))
    return total if out is None else out.add_(total)


scatter_add = scatter_sum


@in_float32
def scatter_mean(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Tensor | None = None,
    dim_size: int | None = None,
    plan: ScatterPlan | None = None,
) -> Tensor:
    """Average the entries that share an index; integers are rounded down, as in torch_scatter.

    `scatter` explains the arguments.

    Example:
        >>> scatter_mean(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0, 2, 0]), dim_size=3)
        tensor([2., 0., 2.])
    """
    rows = ChannelRows.of(src, index, dim, out, dim_size)
    arguments = rows.plan(plan)
    total = rows.restore(scatter_sum_rows(rows.src, rows.index, rows.num_rows, *arguments))
    if out is not None:
        total = out.add_(total)
    count = rows.restore(rows.count(arguments[0]).clamp_(min=1).to(src.dtype).expand(-1, rows.src.shape[1]))
    mode = None if total.is_floating_point() or total.is_complex() else "floor"
    if out is not None or not total.requires_grad:
        return total.div_(count, rounding_mode=mode)
    return torch.div(total, count, rounding_mode=mode)


def scatter_mul(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Tensor | None = None,
    dim_size: int | None = None,
    plan: ScatterPlan | None = None,
) -> Tensor:
    """Multiply the entries that share an index. Rows without entries are 1. `scatter` explains the arguments.

    Example:
        >>> scatter_mul(torch.tensor([4.0, 2.0, 3.0]), torch.tensor([0, 2, 0]), dim_size=3)
        tensor([12.,  1.,  2.])
    """
    rows = ChannelRows.of(src, index, dim, out, dim_size)
    product = rows.restore(scatter_mul_rows(rows.src, rows.index, rows.num_rows, *rows.plan(plan)))
    return product if out is None else out.mul_(product)


def scatter_min(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Tensor | None = None,
    dim_size: int | None = None,
    plan: ScatterPlan | None = None,
) -> tuple[Tensor, Tensor]:
    """Find the smallest of the entries that share an index, and its position along `dim`; see `scatter_max`.

    Example:
        >>> scatter_min(torch.tensor([4.0, 2.0, 3.0]), torch.tensor([0, 2, 0]), dim_size=3)
        (tensor([3., 0., 2.]), tensor([2, 3, 1]))
    """
    return _extreme(ChannelRows.of(src, index, dim, out, dim_size), plan, out, scatter_min_rows, torch.lt)


def scatter_max(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Tensor | None = None,
    dim_size: int | None = None,
    plan: ScatterPlan | None = None,
) -> tuple[Tensor, Tensor]:
    """Find the largest of the entries that share an index, and its position along `dim`.

    The first of equal entries counts. Rows without entries have the value 0 and the position `src.shape[dim]`.
    `scatter` explains the arguments.

    Example:
        >>> scatter_max(torch.tensor([4.0, 2.0, 3.0]), torch.tensor([0, 2, 0]), dim_size=3)
        (tensor([4., 0., 2.]), tensor([0, 3, 1]))
    """
    return _extreme(ChannelRows.of(src, index, dim, out, dim_size), plan, out, scatter_max_rows, torch.gt)


REDUCES: dict[str, Callable[..., Tensor | tuple[Tensor, Tensor]]] = {
    "sum": scatter_sum,
    "add": scatter_sum,
    "mul": scatter_mul,
    "mean": scatter_mean,
    "min": scatter_min,
    "max": scatter_max,
}


@in_float32
def scatter_std(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Tensor | None = None,
    dim_size: int | None = None,
    unbiased: bool = True,
    plan: ScatterPlan | None = None,
) -> Tensor:
    """Compute the standard deviation of the entries that share an index; 0 for fewer than two entries.

    As in torch_scatter, the sums of squares are added to `out`, and the divisor is the number of entries (minus one if
    `unbiased`) plus 1e-6. If the result is 0, as for one entry or for padding, the derivative is 0 too; in
    torch_scatter it is NaN.

    Example:
        >>> scatter_std(torch.tensor([1.0, 3.0, 7.0]), torch.tensor([0, 0, 1]))
        tensor([1.4142, 0.0000])
    """
    refuse_integers(src)
    rows = ChannelRows.of(src, index, dim, out, dim_size)
    arguments = rows.plan(plan)
    total = scatter_sum_rows(rows.src, rows.index, rows.num_rows, *arguments)  # checks the index
    count = rows.count(arguments[0]).to(src.dtype).clamp(min=1)
    deviation = rows.src - gather_rows(total / count, rows.index, *arguments)
    squares = rows.restore(scatter_sum_rows(deviation * deviation, rows.index, rows.num_rows, *arguments))
    if out is not None:
        squares = out.add_(squares)
    count = (count - 1).clamp(min=1) if unbiased else count
    variance = squares / rows.restore(count.expand(-1, rows.src.shape[1]) + 1e-6)
    return torch.where(variance == 0, 0.0, torch.where(variance == 0, 1.0, variance).sqrt())


def gather(x: Tensor, index: Tensor, dim: int = 0, plan: ScatterPlan | None = None) -> Tensor:
    """Return the entry of `x` at each index along `dim`: `x.index_select(dim, index)`, with a planned backward pass.

    Args:
        x: Features of the nodes. [..., num_nodes, ...]
        index: Node that each edge reads. [num_edges]
        dim: Dimension of the index.
        plan: Plan of `index`, made once and reused; it makes the gradient faster.

    Returns:
        Features at the edges. [..., num_edges, ...]

    Raises:
        ValueError: an index is negative or not below `x.shape[dim]`.

    Example:
        >>> gather(torch.tensor([[1.0], [2.0]]), torch.tensor([1, 1, 0])).flatten()
        tensor([2., 2., 1.])
    """
    if x.dim() == 0:
        raise ValueError("x has no dimension to gather along; pass a tensor of at least one.")
    return rows_along(x, index, dim, *plan_arguments(plan, index, x.shape[dim]))


def _extreme(
    rows: ChannelRows, plan: ScatterPlan | None, out: Tensor | None, find: Callable, is_better: Callable
) -> tuple[Tensor, Tensor]:
    """Find extremes and their positions. If `out` has a better entry, keep it and mark the position as absent."""
    best, arg = find(rows.src, rows.index, rows.num_rows, *rows.plan(plan))
    best, arg = rows.restore(best), rows.restore_position(arg)
    if out is None:
        return best, arg
    wins = (arg < rows.num_edges) & is_better(best, out)
    out.copy_(torch.where(wins, best, out))
    return out, arg.masked_fill(~wins, rows.num_edges)
