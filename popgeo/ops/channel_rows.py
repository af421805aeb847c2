"""ChannelRows: conversion of a scatter along any dimension, with any index that broadcasts, to rows for the ops."""

from dataclasses import dataclass

import torch
from torch import Tensor

from popgeo.ops import sum_on_device
from popgeo.ops.eager import is_direct
from popgeo.ops.refusals import check_dimension, refuse_index
from popgeo.ops.scatter_plan import ScatterPlan


@dataclass(frozen=True)
class ChannelRows:
    """A scatter along any dimension with any index, as rows of channels with one index each.

    An index that differs between channels makes one row per entry: channel `c` of row `i` is row `i * channels + c`.

    Attributes:
        src: Entries. [num_edges, channels]
        index: Receiving row of each entry. [num_edges]
        num_rows: Rows of the result.
        dim: The caller's dimension, counted from the first one.
        shape: Shape of the result, with `dim` moved to the front.
        num_edges: Entries along the caller's dimension.
        is_per_entry: Whether the index differs between channels.
    """

    src: Tensor
    index: Tensor
    num_rows: int
    dim: int
    shape: torch.Size
    num_edges: int
    is_per_entry: bool

    @classmethod
    def of(cls, src: Tensor, index: Tensor, dim: int, out: Tensor | None, dim_size: int | None) -> "ChannelRows":
        """Return the rows of a scatter.

        Raises:
            ValueError: the index does not broadcast or is out of range, or `dim_size` is missing in captured code.
        """
        dim = check_dimension("src", dim, src.dim())
        if out is not None:
            if not isinstance(out, Tensor):  # PyG's own scatter has dim_size in this place
                raise ValueError(f"out is {out!r}; it is a tensor to add to. For a number of rows pass dim_size=.")
            dim_size = out.shape[dim]
        dim_size = _measure(index) if dim_size is None else dim_size
        vector = _vector(index, src, dim)
        moved = src.movedim(dim, 0) if dim else src
        shape = torch.Size((dim_size, *moved.shape[1:]))
        channels = shape[1:].numel()
        num_edges = moved.shape[0]
        rows = moved if moved.dim() == 2 else moved.reshape(num_edges, channels)
        if vector is not None:
            rows = rows[: vector.shape[0]] if src.numel() == 0 else rows
            index, num_rows = vector, dim_size
        else:
            full = broadcast(index, src, dim).movedim(dim, 0).reshape(-1)
            if is_direct(full):
                refuse_index("index", full, dim_size)
            index = full * channels + torch.arange(channels, device=index.device).repeat(num_edges)
            rows, num_rows = rows.reshape(-1, 1), dim_size * channels
        return cls(rows, index, num_rows, dim, shape, num_edges, is_per_entry=vector is None)

    def plan(self, plan: ScatterPlan | None) -> tuple[Tensor | None, Tensor | None, int]:
        """Return a plan's tensors for the ops, after a check that the plan belongs to the index.

        On a GPU a missing plan is made here, so that all ops of a call and their gradients share one sort.

        Raises:
            ValueError: the plan belongs to a different index, or the index differs between channels.
        """
        if plan is not None and self.is_per_entry:
            raise ValueError(
                "A plan needs an index that all channels share; this index differs between channels. Pass plan=None."
            )
        arguments = plan_arguments(plan, self.index, self.num_rows)
        if arguments[0] is None and sum_on_device.serves(self.src):
            made = ScatterPlan.from_index(self.index, self.num_rows)
            return made.rowptr, made.perm, 0
        return arguments

    def count(self, rowptr: Tensor | None) -> Tensor:
        """Count the entries that arrive at each row, by a plan's row pointer if there is one. [num_rows, 1]."""
        if rowptr is not None:
            return rowptr.diff().unsqueeze(1)
        ones = torch.ones_like(self.index)
        return ones.new_zeros(self.num_rows).scatter_add_(0, self.index.long(), ones).unsqueeze(1)

    def restore(self, rows: Tensor) -> Tensor:
        """Return the rows of a result in the caller's shape."""
        result = rows if rows.shape == self.shape else rows.reshape(self.shape)
        return result.movedim(0, self.dim) if self.dim else result

    def restore_entries(self, rows: Tensor) -> Tensor:
        """Return one value per entry of `src` in the caller's shape."""
        return rows.reshape(self.num_edges, *self.shape[1:]).movedim(0, self.dim)

    def restore_position(self, arg: Tensor) -> Tensor:
        """Return rows of `src` as positions along the caller's dimension."""
        channels = self.shape[1:].numel()
        return self.restore(torch.div(arg, channels, rounding_mode="floor") if self.is_per_entry else arg)


def plan_arguments(plan: ScatterPlan | None, index: Tensor, num_rows: int) -> tuple[Tensor | None, Tensor | None, int]:
    """Return a plan's tensors for the ops if the plan belongs to the index; no plan if this cannot be checked."""
    if plan is None or not plan.check("index", index, num_rows):
        return None, None, 0
    return plan.rowptr, plan.perm, plan.num_tiles


def broadcast(index: Tensor, src: Tensor, dim: int) -> Tensor:
    """Expand an index to the shape of `src`: one dimension is placed at `dim`, several are matched from the left."""
    if index.dim() == 1:
        index = index.reshape([-1 if d == dim else 1 for d in range(src.dim())])
    index = index.reshape(*index.shape, *[1] * (src.dim() - index.dim()))
    try:
        return index.expand(src.shape)
    except RuntimeError:
        raise ValueError(
            f"index has shape {tuple(index.shape)}, which does not broadcast to that of src, {tuple(src.shape)}."
        ) from None


def is_shared(full: Tensor, dim: int) -> bool:
    """Check by its strides alone whether an expanded index is the same in every channel."""
    return all(size <= 1 or full.stride(d) == 0 for d, size in enumerate(full.shape) if d != dim)


def _vector(index: Tensor, src: Tensor, dim: int) -> Tensor | None:
    """Return one index per position along `dim`, or None if the index differs between channels."""
    if index.dim() == 1:
        return index
    full = broadcast(index, src, dim)
    if full.numel() == 0:
        return full.reshape(-1)  # nothing to route
    if not is_shared(full, dim):
        return None
    return full.movedim(dim, 0).reshape(src.shape[dim], -1)[:, 0]


def _measure(index: Tensor) -> int:
    if not is_direct(index):
        raise ValueError("dim_size is missing. Under capture it cannot be read from the index: pass dim_size=.")
    return int(index.max()) + 1 if index.numel() else 0
