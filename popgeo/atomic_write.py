"""Writes files that are whole at any moment."""

import glob
import os
import tempfile
import time
from pathlib import Path

_SECONDS_TO_WRITE = 3600.0  # a file that was begun longer ago will not be ended


def write_atomically(path: Path, data: bytes, *, is_private: bool = False) -> None:
    """Writes a file so that at any moment there is the old one or the new one, also when the machine stops.

    Its folder is made where there is none; what killed writers of the file have left there an hour ago is removed. A
    private file is for its owner alone; another has the permissions of the umask.

    Raises:
        OSError: it cannot be written; what was there before stays, and nothing half written.

    Example:
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_atomically(Path(folder) / "run" / "notes.txt", b"one epoch")
        ...     (Path(folder) / "run" / "notes.txt").read_bytes()
        b'one epoch'
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for left in path.parent.glob(f"{glob.escape(path.name)}*.part"):
        if left.is_file() and time.time() - left.stat().st_mtime > _SECONDS_TO_WRITE:
            left.unlink(missing_ok=True)  # of a writer that was killed
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            if not is_private:
                os.fchmod(file.fileno(), _mode_of(path))
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _mode_of(path: Path) -> int:
    """The permissions of a file, or of a new one, as the umask has them; those of a temporary file are narrower."""
    if path.exists():
        return path.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
