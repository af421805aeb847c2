"""Writes files that are whole at any moment."""

import os
import tempfile
from pathlib import Path


def write_atomically(path: Path, data: bytes) -> None:
    """Writes a file so that at any moment there is the old one or the new one, also when the machine stops.

    Its folder is made where there is none.

    Raises:
        OSError: it cannot be written; what was there before stays, and nothing half written.

    Example:
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_atomically(Path(folder) / "run" / "notes.txt", b"one epoch")
        ...     (Path(folder) / "run" / "notes.txt").read_bytes()
        b'one epoch'
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
