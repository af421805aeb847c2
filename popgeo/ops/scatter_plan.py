"""ScatterPlan: the edges sorted by row, computed once per index and used by every layer."""

import ctypes
import struct
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from popgeo.native import library
from popgeo.ops import sum_on_device
from popgeo.ops.eager import is_direct
from popgeo.ops.kernel_arguments import as_int64
from popgeo.ops.refusals import check_ends, check_index, check_least, refuse_index, refuse_plan
from popgeo.ops.register_op import register

_MAX_INT32 = 2**31 - 1
_pack_plan = struct.Struct("6q").pack  # PlanCall


@dataclass(frozen=True, kw_only=True, eq=False)
class ScatterPlan:
    """A plan of a scatter: the edges that arrive at each row, and the division of rows over tiles.

    Row `i` receives the edges `perm[rowptr[i]:rowptr[i + 1]]`, in the order of the index. If the index is sorted,
    `perm` is None and the edges are `rowptr[i]:rowptr[i + 1]`.

    A plan belongs to one index, which it keeps. Ops raise if they get the plan with a different index, or after a
    change of the index in place. No kernel reads or writes out of bounds, whatever the values of a plan.

    Args:
        index: Index from which the plan was made. [num_edges]
        rowptr: First edge of each row. int32 [num_rows + 1]
        perm: Edges in the order of the rows; None if they are already in this order. int32 [num_edges]
        num_tiles: Ranges of rows that are computed independently; with 0 the kernel chooses. All numbers give the same
            results.

    Example:
        >>> plan = ScatterPlan.from_index(torch.tensor([2, 0, 2]), num_rows=3)
        >>> plan.rowptr.tolist(), plan.perm.tolist()
        ([0, 1, 1, 3], [1, 0, 2])
    """

    index: Tensor
    rowptr: Tensor
    perm: Tensor | None
    num_tiles: int = 0
    num_rows: int = field(init=False)
    num_edges: int = field(init=False)
    _version: int = field(init=False, repr=False)
    _seen: tuple[Tensor, int] = field(init=False, repr=False)  # the last tensor with the same index, and its version

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_rows", self.rowptr.shape[0] - 1)
        object.__setattr__(self, "num_edges", self.index.shape[0])
        object.__setattr__(self, "_version", _version(self.index))
        self._remember(self.index)

    @classmethod
    def from_index(cls, index: Tensor, num_rows: int) -> "ScatterPlan":
        """Make the plan of an index, by a stable counting sort with a range check of every value, in one pass.

        In captured code the plan always has `perm`, because nothing can tell whether the index is sorted.

        Args:
            index: Receiving row of each edge. [num_edges]
            num_rows: Rows of the result; never read from `index`, so the shape is static.

        Raises:
            ValueError: an index is negative or not below `num_rows`.

        Example:
            >>> ScatterPlan.from_index(torch.tensor([0, 0, 1]), num_rows=2).perm is None
            True
        """
        made = _plan(index, num_rows) if is_direct(index) else (*torch.ops.popgeo.plan(index, num_rows), False)
        rowptr, perm, is_sorted = made
        return cls(index=index, rowptr=rowptr, perm=None if is_sorted else perm)

    @classmethod
    def regular(cls, num_rows: int, degree: int, *, device: torch.device | None = None) -> "ScatterPlan":
        """Make the plan of a graph with exactly `degree` edges per row, in the order of the rows, without a sort.

        Example:
            >>> plan = ScatterPlan.regular(num_rows=3, degree=2)
            >>> plan.index.tolist(), plan.rowptr.tolist()
            ([0, 0, 1, 1, 2, 2], [0, 2, 4, 6])
        """
        if num_rows * degree > _MAX_INT32:
            raise ValueError(f"{num_rows} rows of {degree} edges do not fit the int32 of a plan: use smaller batches.")
        rows = torch.arange(num_rows + 1, device=device)
        index = rows[:-1].unsqueeze(1).expand(-1, degree).reshape(-1)
        return cls(index=index, rowptr=rows.int() * degree, perm=None)

    def set_tiles(self, num_tiles: int) -> "ScatterPlan":
        """Return the same plan, divided over `num_tiles` tiles.

        Raises:
            ValueError: the number of tiles is below 1.
        """
        check_least(1, num_tiles=num_tiles)
        self.check("index", self.index, self.num_rows)
        return ScatterPlan(index=self.index, rowptr=self.rowptr, perm=self.perm, num_tiles=num_tiles)

    def tile_starts(self) -> Tensor:
        """Return the first row of each tile, and the number of rows; tiles get about equal numbers of edges and rows.

        Returns:
            Row numbers; a `num_tiles` of 0 counts as 1. int64 [num_tiles + 1]

        Example:
            >>> ScatterPlan.from_index(torch.tensor([0, 0, 0, 1, 2]), num_rows=3).set_tiles(2).tile_starts().tolist()
            [0, 1, 3]
        """
        num_tiles = max(self.num_tiles, 1)
        rows = torch.arange(self.num_rows, device=self.rowptr.device)
        weight_before = self.rowptr[:-1].long() + rows
        shares = torch.arange(num_tiles + 1, device=rows.device) * (self.index.shape[0] + self.num_rows) // num_tiles
        starts = torch.searchsorted(weight_before, shares)
        starts[-1] = self.num_rows
        return starts

    def _remember(self, index: Tensor) -> None:
        """Store the index for `is_of`, if kernels can read the plan's tensors without further checks."""
        parts = ((self.rowptr, self.num_rows + 1), (self.perm, self.num_edges))
        is_readable = all(
            part is None or (part.dtype is torch.int32 and part.shape == (size,) and part.is_contiguous())
            for part, size in parts
        )
        object.__setattr__(self, "_seen", (index, _version(index) if is_readable else -1))

    def is_of(self, index: Tensor, num_rows: int) -> bool:
        """Check whether `index` is the plan's own, unchanged tensor. Unlike `check`, this never compares values."""
        seen, version = self._seen
        return index is seen and num_rows == self.num_rows and version >= 0 and index._version == version

    def check(self, name: str, index: Tensor, num_rows: int) -> bool:
        """Check that this plan belongs to `index` and `num_rows`.

        The tensor from which the plan was made passes at once; a different tensor is compared entry by entry.

        Returns:
            True; or False in captured code for a different tensor, which has no values there. The caller must then not
            use the plan.

        Raises:
            ValueError: the plan belongs to a different index or number of rows.
        """
        if index is self.index and num_rows == self.num_rows and _version(index) == self._version:
            return True
        if not torch.compiler.is_compiling() and self.is_of(index, num_rows):
            return True
        if not is_direct(index, self.index) or not is_direct(self.rowptr):
            return False
        if not self._is_same(index, num_rows):
            refuse_plan(name, index, num_rows, self.rowptr, self.perm)
        self._remember(index)
        return True

    def _is_same(self, index: Tensor, num_rows: int) -> bool:
        if num_rows != self.num_rows or _version(self.index) != self._version or index.shape != self.index.shape:
            return False
        if index.data_ptr() == self.index.data_ptr() and index.stride() == self.index.stride():
            return True
        return index.dtype == self.index.dtype and torch.equal(index, self.index)

    def __repr__(self) -> str:
        order = "sorted" if self.perm is None else "permuted"
        tiles = f", {self.num_tiles:,} tiles" if self.num_tiles else ""
        return f"{type(self).__name__}({self.num_edges:,} edges -> {self.num_rows:,} rows, {order}{tiles})"

    def __reduce__(self) -> tuple[Any, ...]:
        given: dict[str, Any] = {name: getattr(self, name) for name in ("index", "rowptr", "perm", "num_tiles")}
        return partial(type(self), **given), ()


@dataclass(frozen=True, kw_only=True, eq=False)
class EdgePlan:
    """The plans of both ends of the edges: forward passes sum by `dst`, backward passes by `src`.

    Example:
        >>> plan = EdgePlan.from_edge_index(torch.tensor([[1, 0], [0, 1]]), num_nodes=2)
        >>> plan.dst.perm is None, plan.src.perm.tolist()
        (True, [1, 0])
    """

    src: ScatterPlan
    dst: ScatterPlan

    @classmethod
    def from_edge_index(cls, edge_index: Tensor, num_nodes: int) -> "EdgePlan":
        """Make the plans of `edge_index[0]` (sources) and `edge_index[1]` (destinations). [2, num_edges]."""
        check_ends(edge_index)
        return cls(
            src=ScatterPlan.from_index(edge_index[0], num_nodes), dst=ScatterPlan.from_index(edge_index[1], num_nodes)
        )


def _version(index: Tensor) -> int:
    """Return the number of changes in place; -1 if torch does not count them (inference, compilation)."""
    return -1 if torch.compiler.is_compiling() or index.is_inference() else index._version


def _check(index: Tensor, num_rows: int) -> None:
    check_index("index", index, index.numel(), index)
    check_least(0, num_rows=num_rows)


def _plan(index: Tensor, num_rows: int) -> tuple[Tensor, Tensor, bool]:
    """Return row pointer, order, and whether the index is sorted. For a sorted index the order is not filled."""
    _check(index, num_rows)
    num_edges = index.shape[0]
    if max(num_edges, num_rows) >= _MAX_INT32:
        raise ValueError(f"{num_edges} edges and {num_rows} rows do not fit the int32 of a plan: use smaller batches.")
    if index.is_cuda:
        return *sum_on_device.plan(index, num_rows), False
    if not library.is_available() or index.device.type != "cpu":
        return _plan_in_torch(index, num_rows)
    rowptr = index.new_empty(num_rows + 1, dtype=torch.int32)
    perm = index.new_empty(num_edges, dtype=torch.int32)
    return rowptr, perm, fill_order(as_int64(index), rowptr, perm)


def fill_order(index: Tensor, rowptr: Tensor, perm: Tensor) -> bool:
    """Fill the row pointer and, unless the index is sorted, the order; return whether the index is sorted.

    Raises:
        ValueError: an index is out of range.
    """
    native = library.packed("popgeo_plan")
    assert native is not None
    num_rows, head = rowptr.shape[0] - 1, (ctypes.c_int32 * 2)()
    pointers = library.address(index), rowptr.data_ptr(), perm.data_ptr(), ctypes.addressof(head)
    if status := native(_pack_plan(*pointers, index.shape[0], num_rows)):
        refuse_index("index", index, num_rows)
        raise MemoryError(f"popgeo_plan failed with {status}")
    return bool(head[0])


def _plan_in_torch(index: Tensor, num_rows: int) -> tuple[Tensor, Tensor, bool]:
    refuse_index("index", index, num_rows)
    rowptr = torch.zeros(num_rows + 1, dtype=torch.int32, device=index.device)
    rowptr[1:] = torch.bincount(index, minlength=num_rows).cumsum(0)
    perm = torch.argsort(index, stable=True).int()
    return rowptr, perm, bool((index[1:] >= index[:-1]).all())


def _kernel(index: Tensor, num_rows: int) -> tuple[Tensor, Tensor]:
    rowptr, perm, is_sorted = _plan(index, num_rows)
    return rowptr, torch.arange(perm.shape[0], out=perm) if is_sorted else perm


def _fake(index: Tensor, num_rows: int) -> tuple[Tensor, Tensor]:
    _check(index, num_rows)
    return index.new_empty(num_rows + 1, dtype=torch.int32), index.new_empty(index.shape, dtype=torch.int32)


register("plan(Tensor index, SymInt num_rows) -> (Tensor rowptr, Tensor perm)", kernel=_kernel, fake=_fake)
