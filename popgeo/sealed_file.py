"""Files that end with their kind, their version and a checksum of all bytes before it."""

import hashlib
import os
import re
from pathlib import Path

from popgeo.atomic_write import write_atomically

CHECKSUM_DIGITS = 64
SEAL_BYTES = 108
_SEAL = re.compile(rb" *popgeo ([a-z ]+) (\d+) sha256 ")


def sealed(content: bytes, kind: str, version: int, *, is_archive: bool = False) -> bytes:
    """The content with its seal after it.

    Args:
        content: The content.
        kind: What the file is, in lower case.
        version: Of the format.
        is_archive: Whether the content is a zip archive without a comment. The seal becomes its comment.
    """
    if is_archive:  # which ends with the length of the comment
        content = content[:-2] + SEAL_BYTES.to_bytes(2, "little")
    seal = f"popgeo {kind} {version} sha256 ".rjust(SEAL_BYTES - CHECKSUM_DIGITS).encode()
    return _with_checksum(content + seal)


def _with_checksum(data: bytes) -> bytes:
    """The bytes, and the checksum of all of them as hexadecimal digits."""
    return data + hashlib.sha256(data).hexdigest().encode()


def has_checksum(data: bytes) -> bool:
    """Whether bytes end with the checksum of all bytes before it."""
    return _with_checksum(data[:-CHECKSUM_DIGITS]) == data


def kind_of(data: bytes) -> tuple[str, int] | None:
    """The kind and the version that a file's seal names; None if there is no seal."""
    found = _SEAL.fullmatch(data[-SEAL_BYTES:-CHECKSUM_DIGITS])
    return None if found is None else (found[1].decode(), int(found[2]))


def unsealed(data: bytes, path: str | os.PathLike[str], kind: str, version: int) -> bytes:
    """The content of a sealed file.

    Args:
        data: All bytes of the file.
        path: Named in errors.
        kind: What the file has to be.
        version: Its version.

    Raises:
        ValueError: the checksum does not match, or the file is of a different kind or version.

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
    """Writes a sealed file that is, at any moment, the old one or the new one.

    Args:
        path: The file.
        content: The content.
        kind: See `sealed`.
        version: See `sealed`.
        choices: `is_archive` of `sealed`, and `is_private` of `write_atomically`.

    Raises:
        OSError: the file cannot be written.
    """
    is_private = choices.pop("is_private", False)
    write_atomically(Path(path), sealed(content, kind, version, **choices), is_private=is_private)
