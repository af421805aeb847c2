"""Sealed files: they end with their kind, their version and a checksum, so that every changed bit is noticed."""

import hashlib
import os
import re
from pathlib import Path

from popgeo.atomic_write import write_atomically

CHECKSUM_DIGITS = 64
SEAL_BYTES = 108
_SEAL = re.compile(rb" *popgeo ([a-z ]+) (\d+) sha256 ")


def sealed(content: bytes, kind: str, version: int, *, is_archive: bool = False) -> bytes:
    """Return the content followed by its seal.

    Args:
        content: Bytes to seal.
        kind: Kind of the file, in lower case.
        version: Version of the format.
        is_archive: Whether the content is a zip archive without a comment. The seal becomes its comment.
    """
    if is_archive:  # an archive ends with the length of its comment
        content = content[:-2] + SEAL_BYTES.to_bytes(2, "little")
    seal = f"popgeo {kind} {version} sha256 ".rjust(SEAL_BYTES - CHECKSUM_DIGITS).encode()
    return _with_checksum(content + seal)


def _with_checksum(data: bytes) -> bytes:
    """Return the bytes followed by their checksum as hexadecimal digits."""
    return data + hashlib.sha256(data).hexdigest().encode()


def has_checksum(data: bytes) -> bool:
    """Check whether the last bytes are the checksum of all bytes before them."""
    return _with_checksum(data[:-CHECKSUM_DIGITS]) == data


def kind_of(data: bytes) -> tuple[str, int] | None:
    """Return the kind and the version in a file's seal; None without a seal."""
    found = _SEAL.fullmatch(data[-SEAL_BYTES:-CHECKSUM_DIGITS])
    return None if found is None else (found[1].decode(), int(found[2]))


def unsealed(data: bytes, path: str | os.PathLike[str], kind: str, version: int) -> bytes:
    """Return the content of a sealed file.

    Args:
        data: All bytes of the file.
        path: Path of the file, for messages.
        kind: Expected kind of the file.
        version: Expected version of the format.

    Raises:
        ValueError: The checksum does not match, or the kind or the version differs.

    Example:
        >>> unsealed(sealed(b"one epoch", "note", 1), "a.note", "note", 1)
        b'one epoch'
    """
    if not has_checksum(data):
        raise ValueError(
            f"{path} is truncated, damaged or not a {kind} of popgeo: its checksum does not match. Copy the file "
            "again, or write it again."
        )
    found = kind_of(data)
    if found != (kind, version):
        what = "not sealed by popgeo" if found is None else f"a {found[0]} of version {found[1]}"
        raise ValueError(f"{path} is {what}; a {kind} of version {version} is needed. Write the file again.")
    return data[:-SEAL_BYTES]


def write_sealed(path: str | os.PathLike[str], content: bytes, kind: str, version: int, **choices: bool) -> None:
    """Write a sealed file as a whole, see `write_atomically`.

    Args:
        path: Path of the file.
        content: Bytes to seal.
        kind: Kind of the file, in lower case.
        version: Version of the format.
        choices: `is_archive` of `sealed`, and `is_private` of `write_atomically`.

    Raises:
        OSError: The file cannot be written.
    """
    is_private = choices.pop("is_private", False)
    write_atomically(Path(path), sealed(content, kind, version, **choices), is_private=is_private)
