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
    """A whole mapped file as a tensor: what travels to another process in place of its numbers."""

    path: Path
    dtype: torch.dtype
    shape: tuple[int, ...]
    stamp: tuple[int, int]
    """Bytes and the time of the last change (ns), so that another file is never taken for this one."""


_MAPPED: dict[int, FileReference] = {}
"""The files that are mapped now, by the address that each starts at."""


def map_file(path: Path, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
    """A file as a tensor that takes no memory of its own: pages are read when first used, and given up when others are.

    The tensor is read-only: writing to it ends the process, so what is handed to users must be a copy.

    Raises:
        OSError: the file cannot be mapped.
    """
    if not path.stat().st_size:
        return torch.empty(*shape, dtype=dtype)  # nothing can be mapped
    with path.open("rb") as file:
        pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        status = os.fstat(file.fileno())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable")
        tensor = torch.from_numpy(np.frombuffer(pages, np.uint8)).view(dtype).view(*shape)
    address = tensor.data_ptr()
    _MAPPED[address] = FileReference(path.resolve(), dtype, tuple(shape), (status.st_size, status.st_mtime_ns))
    weakref.finalize(pages, _MAPPED.pop, address, None)
    return tensor


def file_of(tensor: Any) -> FileReference | None:
    """The file that a tensor shows as a whole, or None where its numbers lie in memory."""
    if not isinstance(tensor, Tensor) or tensor.device.type != "cpu":
        return None
    reference = _MAPPED.get(tensor.data_ptr())
    same = reference is not None and (reference.dtype, reference.shape) == (tensor.dtype, tuple(tensor.shape))
    return reference if same else None


class ByReference:
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
    """The value that `packed` has packed; files are mapped anew.

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
    return map_file(value.path, value.dtype, value.shape)
