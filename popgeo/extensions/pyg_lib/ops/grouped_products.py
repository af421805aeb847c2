"""Products of groups of rows with one matrix per group.

Both are torch's operations, with derivatives of any order on every device.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor


def segment_matmul(inputs: Tensor, ptr: Tensor, other: Tensor, bias: Tensor | None = None) -> Tensor:
    """Multiply consecutive rows with the matrix of their segment.

    Args:
        inputs: Rows, segment after segment. [num_rows, channels]
        ptr: The start of each segment, and the end. [num_segments + 1]
        other: One matrix per segment. [num_segments, channels, out_channels]
        bias: One vector per segment, added to its rows. [num_segments, out_channels]

    Returns:
        The products, in the dtype of `inputs`, also under autocast. [num_rows, out_channels]

    Raises:
        ValueError: the pointers do not ascend from 0 to the number of rows, or do not match the matrices.

    Example:
        >>> x, ptr = torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([0, 2, 3])
        >>> segment_matmul(x, ptr, torch.tensor([[[10.0]], [[100.0]]])).flatten()
        tensor([ 10.,  20., 300.])
    """
    ends = ptr.tolist()
    sizes = [end - start for start, end in pairwise(ends)]
    if not ends or ends[0] != 0 or ends[-1] != len(inputs) or any(size < 0 for size in sizes):
        raise ValueError(f"ptr is {ends}; it must ascend from 0 to the number of rows, {len(inputs)}.")
    if len(sizes) != len(other):
        raise ValueError(f"ptr has {len(sizes)} segments for {len(other)} matrices; both numbers must be equal.")
    products = [rows @ matrix for rows, matrix in zip(inputs.split(sizes), other.unbind(), strict=True)]
    if bias is not None:
        products = [rows + vector for rows, vector in zip(products, bias.unbind(), strict=True)]
    return torch.cat(products).to(inputs.dtype) if products else inputs.new_empty(0, other.shape[-1])


def grouped_matmul(
    inputs: Sequence[Tensor], others: Sequence[Tensor], biases: Sequence[Tensor] | None = None
) -> list[Tensor]:
    """Multiply pairs of matrices.

    Args:
        inputs: Left matrices. [num_rows, channels] each
        others: Right matrices. [channels, out_channels] each
        biases: Vectors that are added to the rows of each product. [out_channels] each

    Returns:
        The products. [num_rows, out_channels] each

    Raises:
        ValueError: the numbers of matrices or vectors differ.

    Example:
        >>> grouped_matmul([torch.ones(1, 2), torch.ones(2, 1)], [torch.ones(2, 1), torch.ones(1, 1)])
        [tensor([[2.]]), tensor([[1.],
                [1.]])]
    """
    if len(inputs) != len(others) or (biases is not None and len(biases) != len(inputs)):
        numbers = (len(inputs), len(others), *([] if biases is None else [len(biases)]))
        raise ValueError(f"grouped_matmul got {numbers} matrices and vectors; the numbers must be equal.")
    products = [left @ right for left, right in zip(inputs, others, strict=True)]
    return products if biases is None else [rows + vector for rows, vector in zip(products, biases, strict=True)]
