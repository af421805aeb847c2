"""Several reductions by index at once, sorting of indices, and the softmax over segments."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from popgeo.native import library
from popgeo.ops import scatter
from popgeo.ops.half_precision import in_float32
from popgeo.ops.refusals import refuse_integers
from popgeo.ops.segment_sum import segment_sum_rows
from popgeo.sampling.compress import compress

_COUNTED = 4  # a counting sort needs memory for each possible index: at most this number per index that is sorted


def fused_scatter_reduce(inputs: Tensor, index: Tensor, dim_size: int, reduce_list: Sequence[str]) -> Tensor:
    """Reduce the rows that share an index, in several ways.

    Args:
        inputs: Rows. [num_rows, channels]
        index: The row of the result for each row. [num_rows]
        dim_size: The number of rows of the result.
        reduce_list: Some of `"sum"`, `"mean"`, `"min"` and `"max"`.

    Returns:
        The reductions side by side; 0 in rows without an entry. [dim_size, channels * len(reduce_list)]

    Raises:
        ValueError: an index is out of range, or a reduction is unknown.

    Example:
        >>> x, index = torch.tensor([[1.0], [2.0], [5.0]]), torch.tensor([0, 0, 1])
        >>> fused_scatter_reduce(x, index, 2, ["sum", "max"])
        tensor([[3., 2.],
                [5., 5.]])
    """
    return torch.cat([scatter(inputs, index, 0, dim_size=dim_size, reduce=reduce) for reduce in reduce_list], 1)


def index_sort(inputs: Tensor, max_value: int | None = None) -> tuple[Tensor, Tensor]:
    """Sort indices; equal indices stay in order.

    Args:
        inputs: The indices. int32 or int64 [num_indices]
        max_value: If all indices are in 0 ... max_value, and this is not much larger than their number, the time is
            linear.

    Returns:
        The sorted indices, and the place of each in `inputs`. [num_indices] each

    Example:
        >>> [part.tolist() for part in index_sort(torch.tensor([2, 0, 2, 1]), max_value=2)]
        [[0, 1, 2, 2], [1, 3, 0, 2]]
    """
    is_plain = inputs.device.type == "cpu" and inputs.dim() == 1 and inputs.dtype in (torch.int32, torch.int64)
    if not is_plain or max_value is None or not 0 <= max_value < _COUNTED * len(inputs):
        return inputs.sort(stable=True)
    least, largest = inputs.aminmax()
    if least < 0 or largest > max_value:
        return inputs.sort(stable=True)
    plain = library.as_read(inputs)
    _, ordered, perm = compress(plain, plain, max_value + 1, torch.int64)
    return ordered.to(inputs.dtype), torch.arange(len(inputs)) if perm is None else perm


@in_float32
def softmax_csr(src: Tensor, ptr: Tensor, dim: int = 0) -> Tensor:
    """Compute the softmax over consecutive entries.

    Args:
        src: Scores, of a floating point type. [..., num_entries, ...]
        ptr: The start of each segment, and the end. [num_segments + 1] or [1, ..., num_segments + 1]
        dim: The dimension of the segments.

    Returns:
        Weights that sum to one over each segment; 0 if all its scores are -inf, as in PyG. [..., num_entries, ...]

    Raises:
        ValueError: the pointers do not ascend from 0 to the number of entries.

    Example:
        >>> softmax_csr(torch.tensor([1.0, 1.0, 5.0]), torch.tensor([0, 2, 3]))
        tensor([0.5000, 0.5000, 1.0000])
    """
    refuse_integers(src)
    ptr = ptr.flatten() if ptr.numel() == ptr.shape[-1] else ptr
    sizes = ptr.diff()
    if ptr.dim() != 1 or len(ptr) == 0 or int(ptr[0]) != 0 or int(ptr[-1]) != src.shape[dim] or bool((sizes < 0).any()):
        raise ValueError(f"ptr must ascend from 0 to the number of entries, {src.shape[dim]}; found {ptr}.")
    segment = torch.repeat_interleave(torch.arange(len(sizes), device=ptr.device), sizes, output_size=src.shape[dim])
    rows = src.movedim(dim, 0)
    weights = _SegmentSoftmax.apply(rows.reshape(len(rows), rows.shape[1:].numel()).contiguous(), ptr, segment)
    return weights.view(rows.shape).movedim(0, dim)


class _SegmentSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, ptr: Tensor, segment: Tensor) -> Tensor:
        """Return the softmax of each column over each segment. [num_entries, channels]."""
        largest = torch.segment_reduce(rows, "max", offsets=ptr, unsafe=True)
        largest.masked_fill_(largest.isinf(), 0.0)
        weights = largest.index_select(0, segment).neg_().add_(rows).exp_()
        weights /= segment_sum_rows(weights, ptr).clamp_(min=1e-16).index_select(0, segment)
        ctx.save_for_backward(weights, ptr, segment)
        return weights

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        """Return the gradient of the scores; it is differentiable again."""
        weights, ptr, segment = ctx.saved_tensors
        product = grad * weights
        return product - weights * segment_sum_rows(product, ptr).index_select(0, segment), None, None
