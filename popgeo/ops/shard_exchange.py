"""What shards of a tensor tell each other: sums, joins, cuts and exchanges, each one op with its conjugate as gradient.

A tensor that differs from shard to shard has a first dimension of shards, of which a process holds `num_local`
consecutive ones: process 0 the first, and so on. A tensor that all shards have alike has no such dimension. So
`all_reduce` drops it and `replicate` adds it, and the gradient of what all have alike is alike too: it is that of one
loss, however many shards work it out (the operators f and g of arXiv:1909.08053).
"""

import torch
from torch import Tensor

from popgeo.ops.collective_ops import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER, REPLICATE, SHARD
from popgeo.ops.refusals import check_dimension, check_least


def all_reduce(x: Tensor, num_shards: int | None = None, *, stride: int = 1) -> Tensor:
    """Sums what the shards hold, in their order; the gradient goes to each of them.

    Args:
        x: What each local shard holds. [num_local, ...]
        num_shards: How many shards there are; like `x` when left out.
        stride: How many IPUs lie from one shard to the next. It decides which links the cost is of, and no result.

    Returns:
        The sum, in which every shard takes part. [...]

    Raises:
        ValueError: the shards cannot be shared evenly, there are not as many processes, or `x` holds truth values.

    Example:
        >>> all_reduce(torch.tensor([[1.0, 2.0], [10.0, 20.0]]))
        tensor([11., 22.])
    """
    return ALL_REDUCE(_summable(x), _checked(x, num_shards), stride)


def replicate(x: Tensor, num_shards: int, *, num_local: int | None = None, stride: int = 1) -> Tensor:
    """Gives each shard a copy; the gradient is the sum of theirs.

    Args:
        x: What all shards have alike. [...]
        num_shards: How many shards there are.
        num_local: How many of them this process holds; all when left out.
        stride: As for `all_reduce`.

    Returns:
        A copy for each local shard. [num_local, ...]

    Example:
        >>> replicate(torch.tensor([1.0, 2.0]), 2)
        tensor([[1., 2.],
                [1., 2.]])
    """
    return REPLICATE(x, num_shards, _local(num_shards, num_local), stride)


def all_gather(x: Tensor, dim: int = 0, num_shards: int | None = None, *, stride: int = 1) -> Tensor:
    """Joins what the shards hold, in their order, so that all have it; each gets its part of the gradient.

    Args:
        x: What each local shard holds. [num_local, ...]
        dim: The dimension to join, counted without that of shards.
        num_shards: How many shards there are; like `x` when left out.
        stride: As for `all_reduce`.

    Returns:
        The joined tensor, `num_shards` times as large in `dim`. [...]

    Example:
        >>> all_gather(torch.tensor([[1.0, 2.0], [10.0, 20.0]]))
        tensor([ 1.,  2., 10., 20.])
    """
    return ALL_GATHER(x, _checked(x, num_shards), check_dimension("a shard's tensor", dim, x.dim() - 1), stride)


def shard(x: Tensor, num_shards: int, dim: int = 0, *, num_local: int | None = None, stride: int = 1) -> Tensor:
    """Cuts what all shards have alike, so that each keeps its part; the gradient is joined again.

    Args:
        x: What all shards have alike. [...]
        num_shards: How many shards there are.
        dim: The dimension to cut; its size is a multiple of `num_shards`.
        num_local: How many of them this process holds; all when left out.
        stride: As for `all_reduce`.

    Returns:
        Each local shard's part. [num_local, ...]

    Example:
        >>> shard(torch.tensor([1.0, 2.0, 10.0, 20.0]), 2)
        tensor([[ 1.,  2.],
                [10., 20.]])
    """
    dim = check_dimension("x", dim, x.dim())
    part_of(x.shape[dim], num_shards, f"Dimension {dim} of x")
    return SHARD(x, num_shards, _local(num_shards, num_local), dim, stride)


def reduce_scatter(x: Tensor, dim: int = 0, num_shards: int | None = None, *, stride: int = 1) -> Tensor:
    """Sums what the shards hold, in their order, and leaves each a part of the sum; gradients are joined.

    Args:
        x: What each local shard holds. [num_local, ...]
        dim: The dimension to cut, counted without that of shards; its size is a multiple of `num_shards`.
        num_shards: How many shards there are; like `x` when left out.
        stride: As for `all_reduce`.

    Returns:
        Each local shard's part of the sum. [num_local, ...]

    Example:
        >>> reduce_scatter(torch.tensor([[1.0, 2.0], [10.0, 20.0]]))
        tensor([[11.],
                [22.]])
    """
    num_shards, dim = _checked(x, num_shards), check_dimension("a shard's tensor", dim, x.dim() - 1)
    part_of(x.shape[dim + 1], num_shards, f"Dimension {dim} of what a shard holds")
    return REDUCE_SCATTER(_summable(x), num_shards, dim, stride)


def all_to_all(x: Tensor, num_shards: int | None = None) -> Tensor:
    """Gives each shard what all shards hold for it: rows [owner, receiver] become rows [receiver, owner].

    The gradient travels back the same way.

    Args:
        x: What each local shard holds for each shard. [num_local, num_shards, ...]
        num_shards: How many shards there are; the second dimension of `x` when left out.

    Returns:
        What each local shard gets from each shard. [num_local, num_shards, ...]

    Raises:
        ValueError: the shards cannot be shared evenly; or, when it runs, there are not as many processes as the shapes
            ask for.

    Example:
        >>> all_to_all(torch.tensor([[0, 1], [10, 11]]))  # 10 is held by shard 1 for shard 0
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
    """The same as `all_to_all`, and a view of `x` if this process holds all shards, so that nothing is moved.

    Args:
        x: What each local shard holds for each shard. [num_local, num_shards, ...]

    Example:
        >>> exchange_shards(torch.tensor([[0, 1], [10, 11]]))
        tensor([[ 0, 10],
                [ 1, 11]])
    """
    return x.transpose(0, 1) if x.dim() > 1 and x.shape[0] == x.shape[1] else all_to_all(x)


def part_of(size: int, num_shards: int, what: str) -> int:
    """The part of a dimension that each shard has.

    Args:
        size: Of the whole dimension.
        num_shards: How many share it.
        what: The dimension's name, for the error.

    Raises:
        ValueError: they cannot share it evenly; the message names the nearest sizes that they can.

    Example:
        >>> part_of(12, 4, "Width")
        3
    """
    check_least(1, num_shards=num_shards)
    if size % num_shards:
        below, above = size // num_shards * num_shards, (size // num_shards + 1) * num_shards
        nearest = f"{below} and {above}" if below else f"{above}"
        raise ValueError(
            f"{what} is {size}, which {num_shards} shards cannot share evenly. The nearest that they can: {nearest}."
        )
    return size // num_shards


def _checked(x: Tensor, num_shards: int | None) -> int:
    """How many shards there are, of which `x` holds some."""
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
