"""A lock that keeps a second process from writing a folder; it ends with the process that holds it."""

import contextlib
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from popgeo.atomic_write import NO_LINKS

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LOCK = ".popgeo-lock"
_TAKEN = {errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES, errno.EDEADLK}


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Lock a folder for one writer while the block runs.

    The system ends the lock when the process ends, also when it is killed. On a file system without locks the block
    runs without a lock.

    Raises:
        ValueError: Another process, or another block in this process, holds the lock; or the lock file is a link.
        OSError: The folder cannot be written to.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, folder_lock(Path(folder)):
        ...     with folder_lock(Path(folder)):
        ...         pass
        Traceback (most recent call last):
            ...
        ValueError: Another process is writing ... Wait until it ends, or name a different folder.
    """
    handle = _locked(folder)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.unlink(folder / LOCK)  # before the lock ends, so that a waiting process sees that the file is gone
        os.close(handle)
        with contextlib.suppress(OSError):
            if fcntl is None:  # Windows cannot delete an open file
                os.unlink(folder / LOCK)


def _locked(folder: Path) -> int:
    path = folder / LOCK
    while True:
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | NO_LINKS, 0o666)
        except OSError as error:
            if path.is_symlink():
                raise ValueError(f"{path} is a link; popgeo never writes links. Remove it.") from error
            raise
        try:
            if fcntl is None:
                import msvcrt

                msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
                return handle
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _TAKEN:  # the file system has no locks
                return handle
            os.close(handle)
            raise ValueError(
                f"Another process is writing {folder}. Wait until it ends, or name a different folder."
            ) from error
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), os.stat(path)):
                return handle
        os.close(handle)  # the previous holder has deleted this file
