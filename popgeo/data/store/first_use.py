"""Comparison of a store on disk with its checksums, block by block, at the first use of each block."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from popgeo.data.axes import Axis, Level, ends_of
from popgeo.data.columns import Columns
from popgeo.data.store.manifest import damaged, sums_of_file
from popgeo.data.store.mapped import MappedFile, mapped_file
from popgeo.data.store.stored_list import StoredList
from popgeo.native import library

_FileRows = tuple[MappedFile, int, int]
"""A file, the bytes per row, and the address of the row pointer; 0 means one row per graph."""


def compare_stored(columns: Columns, graphs: np.ndarray | None = None) -> None:
    """Compare the blocks of some stored graphs, or of all, that this process uses for the first time.

    Without the compiled library a file is compared as a whole, once.

    Raises:
        ValueError: a file differs from its checksums, or became shorter after it was opened.
    """
    if "files" not in columns._cache:
        rows = list(_rows(columns))
        columns._cache["files"] = [file for file, _, _ in rows], np.array([_fields(*row) for row in rows], np.int64)
    files, table = columns._cache["files"]
    if files:
        _compare(files, table, np.arange(columns.num_stored) if graphs is None else graphs)


def compare_file(tensor: Tensor) -> None:
    """Compare a whole mapped file, as `compare_stored` does."""
    if (file := mapped_file(tensor)) is not None:
        fields = _fields(file, len(file) // file.reference.num_parts, 0)
        _compare([file], np.array([fields], np.int64), np.zeros(1, np.int64))


def _compare(files: list[MappedFile], table: np.ndarray, graphs: np.ndarray) -> None:
    for file in files:
        file.check_length()
    entry = library.function("popgeo_compare_blocks", "PqPq", "q")
    if entry is None:
        broken = next((i for i, file in enumerate(files) if file.left and not _is_whole(file)), -1)
    else:
        graphs = np.ascontiguousarray(graphs, dtype=np.int64)
        broken = entry(table.ctypes.data, len(table), graphs.ctypes.data, len(graphs))
    if broken >= 0:
        raise damaged(files[broken].reference.path, "its checksum differs")


def _is_whole(file: MappedFile) -> bool:
    is_whole = sums_of_file(file.reference.path, file.reference.num_parts)[1] == file.reference.sums
    file.left[...] = 0 if is_whole else file.left
    return is_whole


def _fields(file: MappedFile, row_bytes: int, row_pointer: int) -> list[int]:
    """Return the fields of `File` in csrc/checksums.cpp, in its order; each is a 64-bit integer or an address."""
    part = len(file) // file.reference.num_parts
    arrays = (file.sums.ctypes.data, file.seen.ctypes.data, file.left.ctypes.data)
    return [file.address, row_pointer, row_bytes, file.reference.num_parts, part, *arrays]


def _rows(columns: Columns) -> Iterator[_FileRows]:
    """Yield the files with rows of the graphs; row pointers are compared when the store is opened."""
    for attribute in columns.attributes:
        if isinstance(attribute.values, StoredList):
            yield from _rows_of(attribute.values.text, attribute.values.ends)
        else:
            yield from _rows_of(attribute.values, columns.row_pointers[attribute.axis], attribute.dim)
        yield from _rows_of(attribute.increments, None)
    for key, ends in (columns.row_ends or {}).items():
        yield from _rows_of(ends, columns.row_pointers[ends_of(Axis(Level.EDGE, key))[1]])


def _rows_of(tensor: Any, row_pointer: Tensor | None, dim: int = 0) -> Iterator[_FileRows]:
    if (file := mapped_file(tensor)) is not None:
        row_bytes = torch.Size(tensor.shape[dim + 1 :]).numel() * tensor.element_size()
        yield file, row_bytes, 0 if row_pointer is None else row_pointer.data_ptr()
