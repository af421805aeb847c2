"""An array on disk that grows graph after graph; a new writer continues after a killed writer."""

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
    """Return the bytes of all elements in order; numpy has no bfloat16.

    Example:
        >>> len(memory_of(torch.ones(1).expand(3)))
        12
    """
    # torch calls a single element contiguous with any stride, and then cannot view it as bytes.
    flat = values.contiguous().flatten().as_strided((values.numel(),), (1,))
    return flat.view(torch.uint8).numpy() if values.numel() else b""


class AppendFile:
    """An array on disk that grows along one dimension.

    Each index before that dimension, such as each row of an `edge_index`, has a file, and `finish` concatenates the
    files. So no data moves in memory.

    Args:
        folder: The folder of the files.
        entry: The rows written so far: none, or the rows that an earlier writer noted.
        dim: The dimension that grows.

    Raises:
        ValueError: the file of an earlier writer is damaged.
    """

    def __init__(self, folder: Path, entry: ArrayFile, dim: int) -> None:
        self.entry, self.dim = entry, dim
        self.paths = [folder / (entry.file if i == 0 else f"{entry.file}.row{i}") for i in range(len(entry.crc32))]
        self._files: list[BinaryIO] = []
        num_bytes = self.num_rows * torch.Size(entry.shape[dim + 1 :]).numel() * entry.torch_dtype.itemsize
        for path, checksum in zip(self.paths, entry.crc32, strict=True):
            file = open_here(path)
            self._files.append(file)
            file.truncate(min(num_bytes, path.stat().st_size))  # later rows were not noted
            if path.stat().st_size != num_bytes or sums_of_file(path, 1)[0] != (checksum,):
                self.close()
                raise ValueError(f"{path} was left damaged. Remove the folder {path.parent} to start again.")
            file.seek(0, os.SEEK_END)

    @property
    def num_rows(self) -> int:
        """The number of written rows."""
        return self.entry.shape[self.dim]

    def append(self, values: Tensor) -> None:
        """Append rows."""
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
        """Return the last number of a one-dimensional int64 array."""
        self.flush()
        with self.paths[0].open("rb") as file:
            file.seek(-8, os.SEEK_END)
            return int.from_bytes(file.read(), "little")

    def flush(self) -> None:
        """Pass the appended rows to the operating system."""
        for file in self._files:
            file.flush()

    def finish(self) -> None:
        """Concatenate the files on disk durably; the other files stay until the writer removes them."""
        self.flush()
        whole = self._files[0]
        for path in self.paths[1:]:
            with path.open("rb") as part:
                shutil.copyfileobj(part, whole, _COPIED_AT_ONCE)
        whole.flush()
        os.fsync(whole.fileno())
        self.close()

    def close(self) -> None:
        """Close the files; `flush` has reported errors of writing."""
        for file in self._files:
            with suppress(OSError):  # the disk is full
                file.close()
        self._files = []


def open_here(path: Path) -> BinaryIO:
    """Open a file for writing, existing or new.

    Raises:
        ValueError: the file is a link, which may lead to a different folder.
    """
    if path.is_symlink():
        raise ValueError(f"{path} is a link, which a store never has. Remove the folder {path.parent} to start again.")
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666), "r+b")
