"""Any dimension and any broadcasting index, brought to the one form that the ops take: rows of channels."""

from dataclasses import dataclass

import torch
from torch import Tensor

from popgeo.ops.eager import is_direct
from popgeo.ops.refusals import check_dimension, refuse_index
from popgeo.ops.scatter_plan import ScatterPlan


@dataclass(frozen=True)
class ChannelRows:
    """A scatter along any dimension with any index, as rows of channels with one index each.

    An index that differs between channels becomes one row per entry: channel `c` of row `i` is row `i * channels + c`.
    """

    src: Tensor  # [num_edges, channels]
    index: Tensor  # [num_edges]
    num_rows: int
    dim: int
    shape: torch.Size  # of the result, with `dim` moved to the front
    num_edges: int
    is_per_entry: bool

    @classmethod
    def of(cls, src: Tensor, index: Tensor, dim: int, out: Tensor | None, dim_size: int | None) -> "ChannelRows":
        dim = check_dimension("src", dim, src.dim())
        if out is not None:
            if not isinstance(out, Tensor):  # which stands where PyG's own scatter has dim_size
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
        if plan is not None and self.is_per_entry:
            raise ValueError(
                "A plan is of an index that all channels share; this one differs between channels. Pass plan=None."
            )
        return plan_arguments(plan, self.index, self.num_rows)

    def count(self, rowptr: Tensor | None) -> Tensor:
        """How many entries arrive at each row, which a plan's row pointer tells. [num_rows, 1]"""
        if rowptr is not None:
            return rowptr.diff().unsqueeze(1)
        ones = torch.ones_like(self.index)
        return ones.new_zeros(self.num_rows).scatter_add_(0, self.index.long(), ones).unsqueeze(1)

    def restore(self, rows: Tensor) -> Tensor:
        """The rows of a result, in the caller's shape."""
        result = rows if rows.shape == self.shape else rows.reshape(self.shape)
        return result.movedim(0, self.dim) if self.dim else result

    def restore_entries(self, rows: Tensor) -> Tensor:
        """One value per entry of `src`, in the caller's shape."""
        return rows.reshape(self.num_edges, *self.shape[1:]).movedim(0, self.dim)

    def restore_position(self, arg: Tensor) -> Tensor:
        """The winning rows of `src`, as positions along the caller's dimension."""
        channels = self.shape[1:].numel()
        return self.restore(torch.div(arg, channels, rounding_mode="floor") if self.is_per_entry else arg)


def plan_arguments(plan: ScatterPlan | None, index: Tensor, num_rows: int) -> tuple[Tensor | None, Tensor | None, int]:
    """A plan as the ops take it, once it is known to be that of the index; no plan if that cannot be known."""
    if plan is None or not plan.check("index", index, num_rows):
        return None, None, 0
    return plan.rowptr, plan.perm, plan.num_tiles


def broadcast(index: Tensor, src: Tensor, dim: int) -> Tensor:
    """`index` in the shape of `src`: one dimension lies along `dim`, more are matched from the left."""
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
    """Whether an expanded index is the same in every channel, by its strides alone."""
    return all(size <= 1 or full.stride(d) == 0 for d, size in enumerate(full.shape) if d != dim)


def _vector(index: Tensor, src: Tensor, dim: int) -> Tensor | None:
    """One index per position along `dim`, or None if it differs between channels."""
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
