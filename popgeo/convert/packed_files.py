"""Compressed files, with limits on the unpacked size and on the memory of the decoder."""

import bz2
import gzip
import io
import lzma
import zipfile
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
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


def unpacked_parts(path: Path) -> Iterator[bytes]:
    """Yield the unpacked content of a compressed file in parts.

    Raises:
        ValueError: the unpacked size is more than a hundred times the size, or unpacking needs too much memory.
    """
    left = most_unpacked(path.stat().st_size)
    with _opened(path) as file:
        while part := file.read(_PART):
            if (left := left - len(part)) < 0:
                raise ValueError("it unpacks to more than a hundred times its size; unpack it yourself if you trust it")
            yield part


def require_unpacked(path: Path) -> None:
    """Check a file that may be compressed by unpacking it once, see `unpacked_parts`."""
    if path.suffix.lower() in PACKED:
        deque(unpacked_parts(path), maxlen=0)


def open_unpacked(path: Path) -> IO[bytes]:
    """Open the unpacked content of a file that may be compressed by gzip, bzip2, xz, zip (with one file) or zstd.

    Raises:
        ValueError: the unpacked size is more than a hundred times the size, or the file is a different kind of archive.
    """
    kind = path.suffix.lower()
    if kind in _REFUSED:
        raise ValueError(f"a file that ends in {kind} is not unpacked. Unpack it, or compress it by gzip.")
    if kind in (".zip", ".zst"):
        return io.BytesIO(b"".join(unpacked_parts(path)))
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


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open the unpacked content of a compressed file."""
    kind = path.suffix.lower()
    with ExitStack() as opened:
        packed = opened.enter_context(path.open("rb"))
        if kind == ".xz":
            yield _XZ(packed)
        elif kind == ".zip":
            archive = opened.enter_context(zipfile.ZipFile(packed))
            if len(entries := [one for one in archive.infolist() if not one.is_dir()]) != 1:
                raise ValueError(f"it holds {len(entries)} files. Put one file into it.")
            yield opened.enter_context(archive.open(entries[0]))
        elif kind == ".zst":
            try:
                from compression import zstd  # since Python 3.14
            except ImportError:
                import zstandard as zstd
            yield opened.enter_context(zstd.open(packed, "rb"))
        else:
            yield opened.enter_context(PACKED[kind](packed, "rb"))
