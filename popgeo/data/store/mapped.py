"""Files as tensors: mapped, read-only, shared by all processes; and how such tensors travel to another process."""

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
    """A whole mapped file as a tensor: what travels to another process in place of its numbers.

    Args:
        path: The file.
        dtype: The type of its numbers.
        shape: The shape of the tensor.
        stamp: Bytes and the time of the last change (ns), so that another file is never taken for this one.
        num_parts: Equal parts of the file that have checksums of their own.
        sums: The CRC-32 of each block of each of these parts, 4 bytes each; empty if none is to be compared.
    """

    path: Path
    dtype: torch.dtype
    shape: tuple[int, ...]
    stamp: tuple[int, int]
    num_parts: int = 1
    sums: bytes = b""


class MappedFile(mmap.mmap):
    """The pages of a file, and which of its blocks have been compared with their checksums in this process."""

    reference: FileReference
    address: int
    sums: np.ndarray
    seen: np.ndarray
    left: np.ndarray

    def check_length(self) -> None:
        """Checks that no other program has cut the file off; to read what is not there ends the process.

        Raises:
            ValueError: the file is shorter than it was.
        """
        if self.size() < len(self):
            raise ValueError(f"{self.reference.path} was cut off to {self.size():,} bytes. Copy or write it again.")


_MAPPED: "weakref.WeakValueDictionary[int, MappedFile]" = weakref.WeakValueDictionary()
"""The files that are mapped now, by the address that each starts at."""


def map_file(path: Path, dtype: torch.dtype, shape: Sequence[int], num_parts: int = 1, sums: bytes = b"") -> Tensor:
    """A file as a tensor that takes no memory of its own: pages are read when first used, and given up when others are.

    The tensor is read-only: writing to it ends the process, so what is handed to users must be a copy.

    Args:
        path: The file.
        dtype: Of its numbers.
        shape: How they are arranged; one after the other they are the whole file.
        num_parts: See `FileReference`.
        sums: See `FileReference`.

    Raises:
        OSError: the file cannot be mapped.
    """
    if not path.stat().st_size:
        return torch.empty(*shape, dtype=dtype)  # nothing can be mapped
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
    """The file that a tensor shows as a whole, or None where its numbers lie in memory."""
    if not isinstance(tensor, Tensor) or tensor.device.type != "cpu":
        return None
    file = _MAPPED.get(tensor.data_ptr())
    shown = (tensor.dtype, tuple(tensor.shape))
    return file if file is not None and (file.reference.dtype, file.reference.shape) == shown else None


def file_of(tensor: Any) -> FileReference | None:
    """What tells another process of the file that a tensor shows, or None where its numbers lie in memory."""
    file = mapped_file(tensor)
    return None if file is None else file.reference


class MappedFilesMixin:
    """What travels to another process with references to its mapped files in place of their numbers."""

    def __getstate__(self) -> dict[str, Any]:
        return packed(self.__dict__)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(unpacked(state))


def packed(value: Any) -> Any:
    """What to pickle for a value: mapped tensors, also those in a mapping, become references to their files."""
    if isinstance(value, Mapping):
        return {key: packed(one) for key, one in value.items()}
    return file_of(value) or value


def unpacked(value: Any) -> Any:
    """The value that `packed` has packed; files are mapped again.

    Raises:
        ValueError: a file has changed since.
        OSError: a file is gone.
    """
    if isinstance(value, dict):
        return {key: unpacked(one) for key, one in value.items()}
    if not isinstance(value, FileReference):
        return value
    status = value.path.stat()
    if (status.st_size, status.st_mtime_ns) != value.stamp:
        raise ValueError(f"{value.path} has changed since the store was opened. Open the store again.")
    return map_file(value.path, value.dtype, value.shape, value.num_parts, value.sums)
