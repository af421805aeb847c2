"""Sorting of the edges of a graph by row: a counting sort, compiled if the library is available."""

import struct

import numpy as np
import torch
from torch import Tensor

from popgeo.native import library


def compress(rows: Tensor, cols: Tensor, num_rows: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor | None]:
    """Sort edges by row; edges of one row keep their order.

    Args:
        rows: The row of each edge, from 0 to num_rows - 1. int32 or int64 [num_edges]
        cols: The neighbor at the other end of each edge. The same dtype [num_edges]
        num_rows: The number of rows.
        dtype: The dtype of the results: torch.int32 or torch.int64.

    Returns:
        The start of each row, and the end [num_rows + 1]; neighbors [num_edges]; the number of each edge [num_edges],
        or None if the edges were in order.

    Example:
        >>> compress(torch.tensor([1, 0, 1]), torch.tensor([5, 6, 7]), 2, torch.int32)[2].tolist()
        [1, 0, 2]
    """
    if bool((rows[1:] >= rows[:-1]).all()):
        rowptr = torch.searchsorted(rows, torch.arange(num_rows + 1, dtype=rows.dtype)).to(dtype)
        return rowptr, cols.to(dtype, copy=True), None
    native = library.packed("popgeo_compress")
    if native is None:
        _, perm = torch.sort(rows, stable=True)
        rowptr = torch.cat([torch.zeros(1, dtype=torch.int64), torch.bincount(rows, minlength=num_rows).cumsum(0)])
        return rowptr.to(dtype), cols[perm].to(dtype), perm.to(dtype)
    rowptr, col, perm = (_empty(size, dtype) for size in (num_rows + 1, len(rows), len(rows)))
    sizes = (len(rows), num_rows, rows.element_size(), rowptr.element_size())
    addresses = (library.address(tensor) for tensor in (rows, cols, rowptr, col, perm))
    native(struct.pack("9q", *addresses, *sizes))
    return rowptr, col, perm


def sort_rows(rowptr: Tensor, key: Tensor, col: Tensor, perm: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Sort each row by a key and return the key, the neighbors and the edge numbers; equal keys stay in order.

    Args:
        rowptr: The start of each row, and the end. [num_rows + 1]
        key: The key of each edge. int64 [num_edges]
        col: Neighbors. [num_edges]
        perm: The number of each edge. Default: its place. [num_edges]

    Example:
        >>> rowptr, key, col = torch.tensor([0, 3, 5]), torch.tensor([9, 7, 9, 4, 5]), torch.tensor([0, 1, 2, 3, 4])
        >>> [tensor.tolist() for tensor in sort_rows(rowptr, key, col, None)]
        [[7, 9, 9, 4, 5], [1, 0, 2, 3, 4], [1, 0, 2, 3, 4]]
    """
    native = library.packed("popgeo_order_rows")
    if native is None:
        row = torch.repeat_interleave(torch.arange(len(rowptr) - 1), rowptr.diff())
        order = torch.from_numpy(np.lexsort((key.numpy(), row.numpy())))
    else:
        order = _empty(len(key), torch.int64)
        addresses = (library.address(tensor) for tensor in (rowptr, key, order))
        if native(struct.pack("5q", *addresses, len(rowptr) - 1, rowptr.element_size())):
            raise MemoryError(f"No memory to sort the longest row of {len(rowptr) - 1:,} by time.")
    perm = order.to(col.dtype) if perm is None else perm[order]
    return key[order], col[order], perm


def _empty(size: int, dtype: torch.dtype) -> Tensor:
    """Return memory for `size` numbers; numpy asks for large pages, which makes random access faster."""
    return torch.from_numpy(np.empty(size, np.int32 if dtype is torch.int32 else np.int64))
