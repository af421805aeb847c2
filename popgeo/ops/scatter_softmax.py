"""Softmax and log-sum-exp over the entries that share an index, with torch_scatter's signatures.

On a GPU with Triton the softmax is one op, popgeo::softmax, and so is its derivative.
"""

from typing import Any

import torch
from torch import Tensor

from popgeo.ops import sum_on_device
from popgeo.ops.channel_rows import ChannelRows
from popgeo.ops.exp_or_zero import exp_or_zero
from popgeo.ops.gather_scatter import gather_rows, scatter_sum_rows
from popgeo.ops.half_precision import in_float32
from popgeo.ops.kernel_arguments import check_array, check_plan_tensors
from popgeo.ops.refusals import refuse_integers
from popgeo.ops.register_op import register
from popgeo.ops.scatter_plan import ScatterPlan
from popgeo.ops.scatter_reductions import scatter_max_rows


@in_float32
def scatter_softmax(
    src: Tensor, index: Tensor, dim: int = -1, dim_size: int | None = None, plan: ScatterPlan | None = None
) -> Tensor:
    """Compute the softmax over the entries that share an index.

    Args:
        src: Scores, of a floating point type. [..., num_edges, ...]
        index: Row of each score; see `popgeo.ops.scatter`.
        dim: Dimension of the index.
        dim_size: Number of rows; required in captured code.
        plan: Plan of a one-dimensional `index`, made once and reused.

    Returns:
        Positive weights that sum to one over each row. [..., num_edges, ...]

    Raises:
        ValueError: `src` is not of a floating point type, or an index is out of range.

    Example:
        >>> scatter_softmax(torch.tensor([1.0, 1.0, 5.0]), torch.tensor([0, 0, 1]))
        tensor([0.5000, 0.5000, 1.0000])
    """
    rows, arguments = _floating(src, index, dim, None, dim_size, plan)
    if sum_on_device.serves(rows.src):
        return rows.restore_entries(_SOFTMAX(rows.src, rows.index, *arguments[:2]))
    return rows.restore_entries(_weights(rows.src, rows.index, rows.num_rows, *arguments))


@in_float32
def scatter_log_softmax(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    eps: float = 1e-12,
    dim_size: int | None = None,
    plan: ScatterPlan | None = None,
) -> Tensor:
    """Compute the logarithm of `scatter_softmax`; `eps` is added to each row's sum of exponentials.

    Example:
        >>> scatter_log_softmax(torch.tensor([1.0, 1.0, 5.0]), torch.tensor([0, 0, 1]))
        tensor([-0.6931, -0.6931, 0.0000])
    """
    rows, arguments = _floating(src, index, dim, None, dim_size, plan)
    shifted = _shift(rows.src, rows.index, rows.num_rows, *arguments)
    total = scatter_sum_rows(exp_or_zero(shifted), rows.index, rows.num_rows, *arguments)
    return rows.restore_entries(shifted - gather_rows((total + eps).log(), rows.index, *arguments))


@in_float32
def scatter_logsumexp(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Tensor | None = None,
    dim_size: int | None = None,
    eps: float = 1e-12,
    plan: ScatterPlan | None = None,
) -> Tensor:
    """Compute the logarithm of the sum of exponentials of the entries that share an index; 0 without entries.

    Args:
        src: Scores, of a floating point type. [..., num_edges, ...]
        index: Row of each score; see `popgeo.ops.scatter`.
        dim: Dimension of the index.
        out: One more score per row, which is the result of a row without entries; it stays unchanged.
        dim_size: Number of rows; required in captured code.
        eps: Number added to each row's sum of exponentials.
        plan: Plan of a one-dimensional `index`, made once and reused.

    Raises:
        ValueError: `src` is not of a floating point type, or an index is out of range.

    Example:
        >>> scatter_logsumexp(torch.zeros(4), torch.tensor([0, 0, 0, 2]), dim_size=3).exp()
        tensor([3., 1., 1.])
    """
    rows, arguments = _floating(src, index, dim, out, dim_size, plan)
    largest, arg = scatter_max_rows(rows.src.detach(), rows.index, rows.num_rows, *arguments)
    # Only a finite maximum is subtracted, so that infinite entries and NaN reach the sum unchanged.
    shift = torch.where(largest.isfinite(), largest, 0.0)
    shifted = rows.src - gather_rows(shift, rows.index, *arguments)
    total = scatter_sum_rows(exp_or_zero(shifted), rows.index, rows.num_rows, *arguments)
    # The largest entry of a row adds 1 to the sum, unless it is -inf. Then the result is log(0), which is -inf too.
    of_nothing = torch.where(arg == rows.src.shape[0], 0.0 if out is None else -torch.inf, -torch.inf)
    result = rows.restore(torch.where(total == 0, of_nothing, (total + eps).log() + shift))
    return result if out is None else torch.logaddexp(result, out)


def _floating(
    src: Tensor, index: Tensor, dim: int, out: Tensor | None, dim_size: int | None, plan: ScatterPlan | None
) -> tuple[ChannelRows, tuple[Tensor | None, Tensor | None, int]]:
    refuse_integers(src)
    rows = ChannelRows.of(src, index, dim, out, dim_size)
    return rows, rows.plan(plan)


def _shift(src: Tensor, index: Tensor, num_rows: int, *plan: Any) -> Tensor:
    """Subtract each row's largest entry to prevent overflow. It cancels out, so it needs no gradient."""
    largest, _ = scatter_max_rows(src.detach(), index, num_rows, *plan)
    return src - gather_rows(largest, index, *plan)


def _weights(src: Tensor, index: Tensor, num_rows: int, *plan: Any) -> Tensor:
    shifted = exp_or_zero(_shift(src, index, num_rows, *plan))
    return shifted / _total(shifted, index, num_rows, *plan)


def _total(x: Tensor, index: Tensor, num_rows: int, *plan: Any) -> Tensor:
    """Return at each edge the sum over the edges of its row."""
    return gather_rows(scatter_sum_rows(x, index, num_rows, *plan), index, *plan)


def _softmax(src: Tensor, index: Tensor, rowptr: Tensor, perm: Tensor | None) -> Tensor:
    num_rows = rowptr.shape[0] - 1
    check_plan_tensors("index", index, num_rows, rowptr, perm)
    kernels = sum_on_device.triton_kernels("triton_rows") if src.is_cuda else None
    return (
        _weights(src, index, num_rows, rowptr, perm, 0) if kernels is None else kernels.softmax_rows(src, rowptr, perm)
    )


def _softmax_backward(grad: Tensor, weight: Tensor, index: Tensor, rowptr: Tensor, perm: Tensor | None) -> Tensor:
    check_array("grad", grad, weight.shape, weight.dtype)
    kernels = sum_on_device.triton_kernels("triton_rows") if weight.is_cuda else None
    if kernels is None:
        return weight * (grad - _total(weight * grad, index, rowptr.shape[0] - 1, rowptr, perm, 0))
    return kernels.softmax_backward_rows(grad, weight, rowptr, perm)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(output, *inputs[1:])


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return _SOFTMAX_BACKWARD(grad, *ctx.saved_tensors), None, None, None


def _differentiate_backward(ctx: Any, along: Tensor) -> tuple[Tensor | None, ...]:
    """Differentiate `weight * (grad - total(weight * grad))`, which is linear in the gradient and symmetric."""
    grad, weight, index, rowptr, perm = ctx.saved_tensors
    of_grad, of_along = (_total(weight * t, index, rowptr.shape[0] - 1, rowptr, perm, 0) for t in (grad, along))
    to_weight = along * (grad - of_grad) - grad * of_along
    return _SOFTMAX_BACKWARD(along, weight, index, rowptr, perm), to_weight, None, None, None


_SOFTMAX = register(
    "softmax(Tensor src, Tensor index, Tensor rowptr, Tensor? perm) -> Tensor",
    kernel=_softmax,
    fake=lambda src, *plan: src.new_empty(src.shape),
    setup_context=_save,
    backward=_differentiate,
)
_SOFTMAX_BACKWARD = register(
    "softmax_backward(Tensor grad, Tensor weight, Tensor index, Tensor rowptr, Tensor? perm) -> Tensor",
    kernel=_softmax_backward,
    fake=lambda grad, weight, *plan: weight.new_empty(weight.shape),
    backward=_differentiate_backward,
)
