"""Files as read-only memory-mapped tensors, shared by all processes, and the pickling of such tensors."""

import mmap
import os
import warnings
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class FileReference:
    """A reference to a whole mapped file, pickled in place of the numbers of the tensor.

    Args:
        path: The file.
        dtype: The dtype of the tensor.
        shape: The shape of the tensor.
        stamp: The length and the time of the last change (ns); a changed file does not match.
        num_parts: The number of equal parts of the file, each with checksums.
        sums: The CRC-32 of each block of each part, 4 bytes each; empty if nothing is compared.
    """

    path: Path
    dtype: torch.dtype
    shape: tuple[int, ...]
    stamp: tuple[int, int]
    num_parts: int = 1
    sums: bytes = b""


class MappedFile(mmap.mmap):
    """A mapped file, with a record of the blocks that this process has compared with their checksums."""

    reference: FileReference
    address: int
    sums: np.ndarray
    seen: np.ndarray
    left: np.ndarray

    def check_length(self) -> None:
        """Check that no other program has shortened the file; reading beyond its end would end the process.

        Raises:
            ValueError: the file became shorter.
        """
        if self.size() < len(self):
            raise ValueError(f"{self.reference.path} was cut off to {self.size():,} bytes. Copy or write it again.")


_MAPPED: "weakref.WeakValueDictionary[int, MappedFile]" = weakref.WeakValueDictionary()
"""The mapped files by their start addresses."""


def map_file(path: Path, dtype: torch.dtype, shape: Sequence[int], num_parts: int = 1, sums: bytes = b"") -> Tensor:
    """Return a file as a memory-mapped tensor; pages are read at their first use.

    The tensor is read-only. Writing to it ends the process, so users get copies.

    Args:
        path: The file.
        dtype: The dtype of the tensor.
        shape: The shape of the tensor, which covers the whole file.
        num_parts: See `FileReference`.
        sums: See `FileReference`.

    Raises:
        OSError: the file cannot be mapped.
    """
    if not path.stat().st_size:
        return torch.empty(*shape, dtype=dtype)  # an empty file cannot be mapped
    with path.open("rb") as file:
        pages = MappedFile(file.fileno(), 0, access=mmap.ACCESS_READ)
        status = os.fstat(file.fileno())
    stamp = (status.st_size, status.st_mtime_ns)
    pages.reference = FileReference(path.resolve(), dtype, tuple(shape), stamp, num_parts, sums)
    pages.sums = np.frombuffer(sums, "<u4")
    pages.seen, pages.left = np.zeros(len(pages.sums), np.uint8), np.array(len(pages.sums))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable")
        tensor = torch.from_numpy(np.frombuffer(pages, np.uint8)).view(dtype).view(*shape)
    pages.address = tensor.data_ptr()
    _MAPPED[pages.address] = pages
    return tensor


def mapped_file(tensor: Any) -> MappedFile | None:
    """Return the mapped file of a tensor that covers the whole file; None for any other tensor."""
    if not isinstance(tensor, Tensor) or tensor.device.type != "cpu":
        return None
    file = _MAPPED.get(tensor.data_ptr())
    shown = (tensor.dtype, tuple(tensor.shape))
    return file if file is not None and (file.reference.dtype, file.reference.shape) == shown else None


def file_of(tensor: Any) -> FileReference | None:
    """Return a reference to the mapped file of a tensor that covers the whole file; None for any other tensor."""
    file = mapped_file(tensor)
    return None if file is None else file.reference


class MappedFilesMixin:
    """A base class that pickles references to mapped files in place of their numbers."""

    def __getstate__(self) -> dict[str, Any]:
        return packed(self.__dict__)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(unpacked(state))


def packed(value: Any) -> Any:
    """Return a value for pickling: mapped tensors, also in mappings, become references to their files."""
    if isinstance(value, Mapping):
        return {key: packed(one) for key, one in value.items()}
    return file_of(value) or value


def unpacked(value: Any) -> Any:
    """Return the original value of a result of `packed`; files are mapped again.

    Raises:
        ValueError: a file has changed.
        OSError: a file is missing.
    """
    if isinstance(value, dict):
        return {key: unpacked(one) for key, one in value.items()}
    if not isinstance(value, FileReference):
        return value
    status = value.path.stat()
    if (status.st_size, status.st_mtime_ns) != value.stamp:
        raise ValueError(f"{value.path} has changed since the store was opened. Open the store again.")
    return map_file(value.path, value.dtype, value.shape, value.num_parts, value.sums)
