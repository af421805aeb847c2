"""A reader of the entries of an LMDB file. The library LMDB would end the process if the file is cut off."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

# The format of LMDB 0.9 on a 64-bit machine. A page starts with its number, two private bytes, its flags, and the start
# and the end of its free room, or the number of pages of a long value.
_PAGE = struct.Struct("=QHHHH")
_META = struct.Struct("=II16x48x" + "IHHQQQQQ" + "QQ")  # magic, version, ..., the main database, last page, transaction
_NODE = struct.Struct("=HHHH")  # halves of a size or page number; flags, or more of the page number; size of the key
_MAGIC, _VERSION = 0xBEEFC0DE, 1
_BRANCH, _LEAF, _OVERFLOW, _META_PAGE = 1, 2, 4, 8
_BIG, _LONG_NUMBER = 1, struct.Struct("=Q")
_NOTHING, _DEEPEST = 2**64 - 1, 64


def entries_of(path: Path) -> Iterator[tuple[bytes, int, int]]:
    """Yield the key of each entry, in order, with the first byte and the length of its value in the file.

    Raises:
        ValueError: the file is not an LMDB, is cut off, or is damaged.
    """
    with path.open("rb") as file:
        size = path.stat().st_size
        page_bytes, depth, num_entries, root = _newest(file, size)
        if root == _NOTHING:
            return
        seen, left, found = set[int](), [(root, 1)], 0
        while left:
            number, level = left.pop()
            if number in seen or level > min(depth, _DEEPEST):
                raise ValueError(f"it is damaged: page {number} is reached twice")
            seen.add(number)
            flags, nodes = _nodes(_exactly(file, size, number * page_bytes, page_bytes), number)
            if flags & _BRANCH:
                left += [(low | high << 16 | top << 32, level + 1) for low, high, top, _, _ in reversed(nodes)]
                continue
            for low, high, kind, key, start in nodes:
                where, length = number * page_bytes + start, low | high << 16
                if kind & _BIG:
                    (overflow,) = _LONG_NUMBER.unpack_from(_exactly(file, size, where, 8))
                    where = overflow * page_bytes + _PAGE.size
                if kind & ~_BIG or where + length > size:
                    raise ValueError(f"it is cut off or damaged: the value of {key[:50]!r} is not in the file")
                found += 1
                yield key, where, length
        if found != num_entries:
            raise ValueError(f"it is damaged: it has {found:,} entries, but declares {num_entries:,}")


def _newest(file: BinaryIO, size: int) -> tuple[int, int, int, int]:
    """Return the size of a page, and the depth, number of entries and root of the newest state."""
    states, page_bytes = [], 0
    for number in range(2):  # the second state is one page after the first, which has the size of a page
        data = _exactly(file, size, number * page_bytes, _PAGE.size + _META.size)
        flags = _PAGE.unpack_from(data)[2]
        magic, version, *main, _, transaction = _META.unpack_from(data, _PAGE.size)
        if not flags & _META_PAGE or magic != _MAGIC or version != _VERSION:
            raise ValueError("it is not an LMDB of a machine like this one, or it is damaged at its start")
        if not number:
            (page_bytes,) = struct.unpack_from("=I", data, _PAGE.size + 24)
            if page_bytes & (page_bytes - 1) or not 256 <= page_bytes <= 1 << 16:
                raise ValueError(f"it is damaged: it has pages of {page_bytes} bytes")
        states.append((transaction, main))
    _, (_, flags, depth, *_, num_entries, root) = max(states, key=lambda state: state[0])
    if flags:
        raise ValueError("it is not an aselmdb, because it sorts its keys or keeps several values per key")
    return page_bytes, depth, num_entries, root


def _nodes(page: bytes, number: int) -> tuple[int, list[tuple[int, int, int, bytes, int]]]:
    """Return the flags of a page, and the header numbers, key and start of the value of each node in the page."""
    itself, _, flags, lower, upper = _PAGE.unpack_from(page)
    if itself != number or flags not in (_BRANCH, _LEAF) or not _PAGE.size <= lower <= upper <= len(page):
        raise ValueError(f"it is damaged: page {number} is not a page of keys")
    nodes = []
    for (place,) in struct.iter_unpack("=H", page[_PAGE.size : lower - lower % 2]):
        if not lower <= place <= len(page) - _NODE.size:
            raise ValueError(f"it is damaged: a key is beyond page {number}")
        *numbers, key_size = _NODE.unpack_from(page, place)
        end = place + _NODE.size + key_size
        if end > len(page):
            raise ValueError(f"it is damaged: a key is beyond page {number}")
        nodes.append((*numbers, page[end - key_size : end], end))
    return flags, nodes


def _exactly(file: BinaryIO, size: int, start: int, length: int) -> bytes:
    if start + length > size:
        raise ValueError(f"it is cut off: it has {size:,} bytes, and more than {start:,} are needed")
    file.seek(start)
    return file.read(length)
