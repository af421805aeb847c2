"""Compressed files, unpacked to at most a hundred times their size and with a dictionary of usual size."""

import bz2
import gzip
import io
import lzma
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

_RATIO, _LEAST = 100, 1 << 16
_PART = 1 << 20
_DICTIONARY = 1 << 27  # largest dictionary in bytes; `xz -9` needs half of it
PACKED: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_REFUSED = {".tar", ".tgz", ".7z", ".rar", ".lz4", ".br", ".z", ".lzma"}


def most_unpacked(size: int) -> int:
    """Return the largest allowed number of unpacked bytes for a packed size."""
    return _RATIO * max(size, _LEAST)


def require_unpacked(path: Path) -> None:
    """Check the unpacked size of a compressed file by unpacking it once.

    Raises:
        ValueError: the unpacked size is more than a hundred times the size, or unpacking needs too much memory.
    """
    kind = path.suffix.lower()
    if kind in PACKED:
        with path.open("rb") as packed, _parts_of(kind, packed) as file:
            left = most_unpacked(path.stat().st_size)
            while part := file.read(_PART):
                if (left := left - len(part)) < 0:
                    raise ValueError(
                        "it unpacks to more than a hundred times its size; unpack it yourself if you trust it"
                    )


def open_unpacked(path: Path) -> IO[bytes]:
    """Open the unpacked content of a file that may be compressed by gzip, bzip2, xz, zip (with one file) or zstd.

    Raises:
        ValueError: the unpacked size is more than a hundred times the size, or the file is a different kind of archive.
    """
    kind = path.suffix.lower()
    if kind in _REFUSED:
        raise ValueError(f"a file that ends in {kind} is not unpacked. Unpack it, or compress it by gzip.")
    if kind == ".zip":
        return io.BytesIO(_only_entry(path))
    if kind == ".zst":
        return io.BytesIO(_of_zstd(path))
    require_unpacked(path)
    return PACKED.get(kind, open)(path, "rb")


class _XZ(io.RawIOBase):
    """The unpacked content of an .xz file; a file that needs a large dictionary raises an error."""

    def __init__(self, packed: IO[bytes]) -> None:
        self._parts = self._unpack(packed)

    def _unpack(self, packed: IO[bytes]) -> Iterator[bytes]:
        unpacking, data = lzma.LZMADecompressor(memlimit=_DICTIONARY), b""
        while data or (data := packed.read(_PART)):
            if unpacking.eof:  # another stream follows, after zeros
                if not (data := data.lstrip(b"\0")):
                    continue
                unpacking = lzma.LZMADecompressor(memlimit=_DICTIONARY)
            yield unpacking.decompress(data, _PART)
            while not unpacking.eof and not unpacking.needs_input:
                yield unpacking.decompress(b"", _PART)
            data = unpacking.unused_data

    def read(self, size: int = -1) -> bytes:
        """Return the next non-empty part, of any size."""
        try:
            return next(filter(None, self._parts), b"")
        except lzma.LZMAError as error:
            if "limit" in str(error):
                raise ValueError(f"it needs a dictionary of over {_DICTIONARY:,} bytes. Unpack it yourself.") from error
            raise


def _parts_of(kind: str, packed: IO[bytes]) -> Any:
    return _XZ(packed) if kind == ".xz" else PACKED[kind](packed, "rb")


def _only_entry(path: Path) -> bytes:
    with zipfile.ZipFile(path) as archive:
        if len(entries := [one for one in archive.infolist() if not one.is_dir()]) != 1:
            raise ValueError(f"it holds {len(entries)} files. Put one file into it.")
        with archive.open(entries[0]) as file:
            return _limited(file, path)


def _of_zstd(path: Path) -> bytes:
    try:
        from compression import zstd  # since Python 3.14

        with zstd.open(path, "rb") as file:
            return _limited(file, path)
    except ImportError:
        import zstandard

        with zstandard.open(path, "rb") as file:
            return _limited(file, path)


def _limited(file: IO[bytes], path: Path) -> bytes:
    found = file.read((most := most_unpacked(path.stat().st_size)) + 1)
    if len(found) > most:
        raise ValueError("it unpacks to more than a hundred times its size; unpack it yourself if you trust it")
    return found
