"""Collective ops between the shards of a tensor; each op's gradient is the opposite collective.

A tensor that differs between shards has a first dimension of shards. Each process has `num_local` consecutive
shards, starting with process 0. A tensor that is the same in all shards has no such dimension. So `all_reduce` removes
the dimension and `replicate` adds it. The gradient of a tensor that is the same in all shards is the same too: it is
the gradient of one loss, for any number of shards (the operators f and g of arXiv:1909.08053).
"""

import torch
from torch import Tensor

from popgeo.ops.collective_ops import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER, REPLICATE, SHARD
from popgeo.ops.refusals import check_dimension, check_least


def all_reduce(x: Tensor, num_shards: int | None = None, *, stride: int = 1) -> Tensor:
    """Sum the tensors of all shards, in the order of shards. Each shard gets the whole gradient.

    Args:
        x: Tensor of each local shard. [num_local, ...]
        num_shards: Number of shards. Default: that of `x`.
        stride: Number of IPUs from one shard to the next. It decides the links of the modelled cost, and no result.

    Returns:
        The sum over all shards. [...]

    Raises:
        ValueError: processes cannot share the shards evenly, their number does not fit, or `x` is boolean.

    Example:
        >>> all_reduce(torch.tensor([[1.0, 2.0], [10.0, 20.0]]))
        tensor([11., 22.])
    """
    return ALL_REDUCE(_summable(x), _checked(x, num_shards), stride)


def replicate(x: Tensor, num_shards: int, *, num_local: int | None = None, stride: int = 1) -> Tensor:
    """Copy a tensor to each shard. The gradient is the sum of the shards' gradients.

    Args:
        x: Tensor that is the same in all shards. [...]
        num_shards: Number of shards.
        num_local: Shards of this process. Default: all.
        stride: Number of IPUs from one shard to the next; see `all_reduce`.

    Returns:
        A copy for each local shard. [num_local, ...]

    Example:
        >>> replicate(torch.tensor([1.0, 2.0]), 2)
        tensor([[1., 2.],
                [1., 2.]])
    """
    return REPLICATE(x, num_shards, _local(num_shards, num_local), stride)


def all_gather(x: Tensor, dim: int = 0, num_shards: int | None = None, *, stride: int = 1) -> Tensor:
    """Concatenate the tensors of all shards, in the order of shards. Each shard gets its part of the gradient.

    Args:
        x: Tensor of each local shard. [num_local, ...]
        dim: Dimension to join, counted without the dimension of shards.
        num_shards: Number of shards. Default: that of `x`.
        stride: Number of IPUs from one shard to the next; see `all_reduce`.

    Returns:
        The joined tensor, `num_shards` times as large in `dim`. [...]

    Example:
        >>> all_gather(torch.tensor([[1.0, 2.0], [10.0, 20.0]]))
        tensor([ 1.,  2., 10., 20.])
    """
    return ALL_GATHER(x, _checked(x, num_shards), check_dimension("a shard's tensor", dim, x.dim() - 1), stride)


def shard(x: Tensor, num_shards: int, dim: int = 0, *, num_local: int | None = None, stride: int = 1) -> Tensor:
    """Split a tensor so that each shard keeps one part. The gradients of the parts are concatenated.

    Args:
        x: Tensor that is the same in all shards. [...]
        num_shards: Number of shards.
        dim: Dimension to cut; its size is a multiple of `num_shards`.
        num_local: Shards of this process. Default: all.
        stride: Number of IPUs from one shard to the next; see `all_reduce`.

    Returns:
        The part of each local shard. [num_local, ...]

    Example:
        >>> shard(torch.tensor([1.0, 2.0, 10.0, 20.0]), 2)
        tensor([[ 1.,  2.],
                [10., 20.]])
    """
    dim = check_dimension("x", dim, x.dim())
    part_of(x.shape[dim], num_shards, f"Dimension {dim} of x")
    return SHARD(x, num_shards, _local(num_shards, num_local), dim, stride)


def reduce_scatter(x: Tensor, dim: int = 0, num_shards: int | None = None, *, stride: int = 1) -> Tensor:
    """Sum the tensors of all shards, in the order of shards, and return each shard's part of the sum.

    Args:
        x: Tensor of each local shard. [num_local, ...]
        dim: Dimension to cut, counted without the dimension of shards; its size is a multiple of `num_shards`.
        num_shards: Number of shards. Default: that of `x`.
        stride: Number of IPUs from one shard to the next; see `all_reduce`.

    Returns:
        The part of each local shard. [num_local, ...]

    Example:
        >>> reduce_scatter(torch.tensor([[1.0, 2.0], [10.0, 20.0]]))
        tensor([[11.],
                [22.]])
    """
    num_shards, dim = _checked(x, num_shards), check_dimension("a shard's tensor", dim, x.dim() - 1)
    part_of(x.shape[dim + 1], num_shards, f"Dimension {dim} of a shard's tensor")
    return REDUCE_SCATTER(_summable(x), num_shards, dim, stride)


def all_to_all(x: Tensor, num_shards: int | None = None) -> Tensor:
    """Exchange rows between shards: rows [owner, receiver] become rows [receiver, owner].

    The gradient is exchanged in the same way.

    Args:
        x: Rows of each local shard for each shard. [num_local, num_shards, ...]
        num_shards: Number of shards. Default: the second dimension of `x`.

    Returns:
        Rows for each local shard from each shard. [num_local, num_shards, ...]

    Raises:
        ValueError: processes cannot share the shards evenly; or, when the op runs, their number does not fit.

    Example:
        >>> all_to_all(torch.tensor([[0, 1], [10, 11]]))  # shard 1 holds 10 for shard 0
        tensor([[ 0, 10],
                [ 1, 11]])
    """
    if x.dim() < 2 or num_shards not in (None, x.shape[1]):
        raise ValueError(
            f"x has the shape {tuple(x.shape)}; its first two dimensions are the local shards and all shards"
            f"{f', {num_shards} of them' if num_shards else ''}."
        )
    return ALL_TO_ALL(x, _checked(x, x.shape[1]))


def exchange_shards(x: Tensor) -> Tensor:
    """Exchange rows as `all_to_all` does, but return a view of `x` if this process has all shards.

    Args:
        x: Rows of each local shard for each shard. [num_local, num_shards, ...]

    Example:
        >>> exchange_shards(torch.tensor([[0, 1], [10, 11]]))
        tensor([[ 0, 10],
                [ 1, 11]])
    """
    return x.transpose(0, 1) if x.dim() > 1 and x.shape[0] == x.shape[1] else all_to_all(x)


def part_of(size: int, num_shards: int, what: str) -> int:
    """Return the size of each shard's part of a dimension.

    Args:
        size: Size of the whole dimension.
        num_shards: Number of shards.
        what: Name of the dimension, for the error.

    Raises:
        ValueError: the shards cannot share the dimension evenly; the message names the nearest possible sizes.

    Example:
        >>> part_of(12, 4, "Width")
        3
    """
    check_least(1, num_shards=num_shards)
    if size % num_shards:
        below, above = size // num_shards * num_shards, (size // num_shards + 1) * num_shards
        nearest = f"{below} and {above}" if below else f"{above}"
        raise ValueError(
            f"{what} is {size}, which {num_shards} shards cannot share evenly. The nearest possible: {nearest}."
        )
    return size // num_shards


def _checked(x: Tensor, num_shards: int | None) -> int:
    """Return the number of shards, from the argument or from `x`, after a check.

    Raises:
        ValueError: `x` has no dimension, or processes cannot share the shards evenly.
    """
    if not x.dim():
        raise ValueError("x has no dimension of shards; its first dimension is that of the local shards.")
    count = x.shape[0] if num_shards is None else num_shards
    _local(count, x.shape[0])
    return count


def _local(num_shards: int, num_local: int | None) -> int:
    local = num_shards if num_local is None else num_local
    if local < 1 or num_shards < 1 or num_shards % local:
        raise ValueError(
            f"There are {local} local shards of {num_shards}. Each process holds equally many, so the second number "
            "must be a multiple of the first."
        )
    return local


def _summable(x: Tensor) -> Tensor:
    if x.dtype is torch.bool:
        raise ValueError("x is boolean, and booleans have no sum; convert it with .to(torch.int32) first.")
    return x
