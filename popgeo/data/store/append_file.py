"""One array on disk that grows graph after graph, and continues where a killed writer has left it."""

import os
import shutil
import zlib
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from popgeo.data.store.manifest import ArrayFile, sums_of_file

_COPIED_AT_ONCE = 1 << 22


def memory_of(values: Tensor) -> Any:
    """The elements one after the other, as bytes, since numpy has no bfloat16.

    Example:
        >>> len(memory_of(torch.ones(1).expand(3)))
        12
    """
    # One element alone counts as contiguous whatever its stride, and can then not be seen as bytes.
    flat = values.contiguous().flatten().as_strided((values.numel(),), (1,))
    return flat.view(torch.uint8).numpy() if values.numel() else b""


class AppendFile:
    """An array that grows along one dimension.

    What lies before that dimension, such as both rows of an `edge_index`, grows in files of its own, which `finish`
    puts together; so nothing is ever moved in memory.

    Args:
        folder: Where the files are.
        entry: The rows written so far: none, or those that an earlier writer noted.
        dim: The dimension that grows.

    Raises:
        ValueError: what an earlier writer has left is damaged.
    """

    def __init__(self, folder: Path, entry: ArrayFile, dim: int) -> None:
        self.entry, self.dim = entry, dim
        self.paths = [folder / (entry.file if i == 0 else f"{entry.file}.row{i}") for i in range(len(entry.crc32))]
        self._files: list[BinaryIO] = []
        num_bytes = self.num_rows * torch.Size(entry.shape[dim + 1 :]).numel() * entry.torch_dtype.itemsize
        for path, checksum in zip(self.paths, entry.crc32, strict=True):
            file = open_here(path)
            self._files.append(file)
            file.truncate(min(num_bytes, path.stat().st_size))  # what came after the note was not noted
            if path.stat().st_size != num_bytes or sums_of_file(path, 1)[0] != (checksum,):
                self.close()
                raise ValueError(f"{path} was left damaged. Remove the folder {path.parent} to start again.")
            file.seek(0, os.SEEK_END)

    @property
    def num_rows(self) -> int:
        """Rows that have been written."""
        return self.entry.shape[self.dim]

    def append(self, values: Tensor) -> None:
        """Adds rows."""
        num_parts, sums = len(self._files), []
        for file, part, checksum in zip(
            self._files, values.reshape(num_parts, values.numel() // num_parts), self.entry.crc32, strict=True
        ):
            data = memory_of(part)
            file.write(data)
            sums.append(zlib.crc32(data, checksum))
        shape = list(self.entry.shape)
        shape[self.dim] += values.shape[self.dim]
        self.entry = replace(self.entry, shape=tuple(shape), crc32=tuple(sums))

    def last(self) -> int:
        """The last number, of an array of int64 on its own."""
        self.flush()
        with self.paths[0].open("rb") as file:
            file.seek(-8, os.SEEK_END)
            return int.from_bytes(file.read(), "little")

    def flush(self) -> None:
        """Hands to the system what was appended."""
        for file in self._files:
            file.flush()

    def finish(self) -> None:
        """Puts the parts together, on disk for good; those that went in are left where they are."""
        self.flush()
        whole = self._files[0]
        for path in self.paths[1:]:
            with path.open("rb") as part:
                shutil.copyfileobj(part, whole, _COPIED_AT_ONCE)
        whole.flush()
        os.fsync(whole.fileno())
        self.close()

    def close(self) -> None:
        """Closes the files; `flush` reports what could not be written."""
        for file in self._files:
            with suppress(OSError):  # the disk is full
                file.close()
        self._files = []


def open_here(path: Path) -> BinaryIO:
    """Opens a file to be written, as it is or empty.

    Raises:
        ValueError: it is a link, which may lead elsewhere.
    """
    if path.is_symlink():
        raise ValueError(f"{path} is a link, which no writer has made. Remove the folder {path.parent} to start again.")
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666), "r+b")
