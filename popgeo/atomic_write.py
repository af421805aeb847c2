"""Functions that write a file as a whole: at any moment there is the old file or the new one."""

import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SECONDS_TO_WRITE = 3600.0  # an older temporary file belongs to a process that was killed
_LEFT = r"\.popgeo-(\d+)-[0-9a-f]{16}\.part"
_NAME_LENGTH = 50  # characters of the file's name that its temporary file repeats: names have a limit
NO_LINKS = getattr(os, "O_NOFOLLOW", 0)


@contextmanager
def written_whole(path: Path, *, is_private: bool = False) -> Iterator[Path]:
    """Yield a temporary path that replaces the file when the block ends without an error.

    At any moment there is the old file or the new one, also if the machine stops. A missing folder is made. Temporary
    files of killed processes are deleted after an hour. A private file can be read by its owner only. Another file
    keeps its permissions; the umask decides the permissions of a new one.

    Raises:
        OSError: The file cannot be written. The error names the file, and the old file stays.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with written_whole(Path(folder) / "notes.txt") as partial:
        ...         _ = partial.write_text("one epoch")
        ...     (Path(folder) / "notes.txt").read_text()
        'one epoch'
    """
    partial = path.with_name(f"{path.name[:_NAME_LENGTH]}.popgeo-{os.getpid()}-{secrets.token_hex(8)}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_left(path)
        os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_LINKS, 0o600 if is_private else 0o666))
        if path.exists() and not is_private:
            partial.chmod(stat.S_IMODE(path.stat().st_mode))
        yield partial
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException as error:
        partial.unlink(missing_ok=True)
        if isinstance(error, OSError):
            name_file(error, path, partial)
        raise


def write_atomically(path: Path, data: bytes, *, is_private: bool = False) -> None:
    """Write bytes to a file as a whole, see `written_whole`.

    Raises:
        OSError: The file cannot be written. The error names the file, and the old file stays.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_atomically(Path(folder) / "run" / "notes.txt", b"one epoch")
        ...     (Path(folder) / "run" / "notes.txt").read_bytes()
        b'one epoch'
    """
    with written_whole(path, is_private=is_private) as partial:
        partial.write_bytes(data)


def name_file(error: OSError, path: Path, partial: Path | None = None) -> None:
    """Put the path of a file into an operating system error that names no file or a temporary file."""
    if error.errno is not None and error.filename in (None, str(partial)):
        error.filename = str(path)


def _remove_left(path: Path) -> None:
    """Delete temporary files of this path that are an hour old and belong to no living process."""
    of_this_path = re.compile(re.escape(path.name[:_NAME_LENGTH]) + _LEFT)
    for left in path.parent.iterdir():
        found = of_this_path.fullmatch(left.name)
        if found is None:
            continue
        try:
            known = left.lstat()
            is_old = stat.S_ISREG(known.st_mode) and time.time() - known.st_mtime > _SECONDS_TO_WRITE
            if is_old and not _is_alive(int(found[1])):
                left.unlink()
        except OSError:  # the file belongs to another user, or is gone by now
            continue


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # the process belongs to another user
        return True
    return True
