"""A folder of captured steps, so that the next start skips the capture.

Only the user's own folder and files are read. A seal finds damaged files; the operations of a step are not checked.
"""

import json
import os
import stat
import warnings
from pathlib import Path

from torch import nn

from popgeo.capture import serialize
from popgeo.capture.arguments import Arguments
from popgeo.capture.captured_step import CapturedStep
from popgeo.capture.fingerprint import fingerprint, hash_files
from popgeo.capture.outside_values import UnknownStateError
from popgeo.sealed_file import unsealed, write_sealed

KIND, VERSION = "kept step", 2
Folder = str | os.PathLike[str] | None


def key_of(model: nn.Module, *choices: object) -> str | None:
    """Return the file name of a model's step; None if the model holds an object that cannot be read.

    Args:
        model: Captured model.
        choices: Everything else that the step depends on.
    """
    try:
        return fingerprint(model, *choices)
    except UnknownStateError:
        return None


def load(folder: Folder, key: str | None, arguments: Arguments) -> CapturedStep | None:
    """Return the step kept under a key; None if it is missing, or if a source file of the model has changed.

    A warning says why a damaged file, or a file of a different kind, is ignored.

    Args:
        folder: Folder of the kept steps; None if no steps are kept.
        key: Key of the step, from `key_of`.
        arguments: Arguments of the model. Graph data in the results are made like graph data among the arguments.

    Raises:
        ValueError: the folder belongs to a different user, or other users can write to it.
    """
    if folder is None or key is None:
        return None
    path = Path(folder) / f"{key}.popgeo"
    try:
        _require_own(os.stat(folder), folder, "Name a folder of your own, or take their rights away: chmod go-w")
    except OSError:
        return None
    try:
        head, _, body = unsealed(_read(path), path, KIND, VERSION).partition(b"\n")
        noted = json.loads(head)
        if noted["key"] != key:
            raise ValueError("it is the step of a different model")
        unchanged = hash_files(noted["files"]) == noted["files"]
        return serialize.from_bytes(body, arguments.graph_data) if unchanged else None
    except FileNotFoundError:
        return None
    except Exception as error:  # a file of another kind may raise any error
        warnings.warn(f"{path} is not a compiled step ({error}); compiling again and replacing it.", stacklevel=2)
        return None


def save(folder: Folder, key: str | None, step: CapturedStep) -> None:
    """Keep a step if there are a folder and a key; other processes see the whole file or no file.

    A missing folder is made for its owner alone. A warning says why a step cannot be written.
    """
    if folder is None or key is None:
        return
    try:
        body = serialize.to_bytes(step)
        head = {"key": key, "files": hash_files(step.files)}
        for place in reversed([place for place in (Path(folder), *Path(folder).parents) if not place.exists()]):
            place.mkdir(mode=0o700, exist_ok=True)
        content = json.dumps(head).encode() + b"\n" + body
        write_sealed(Path(folder) / f"{key}.popgeo", content, KIND, VERSION, is_private=True)
    except (OSError, TypeError, ValueError) as error:
        warnings.warn(f"The compiled step is not kept in {folder}: {error}.", stacklevel=2)


def _read(path: Path) -> bytes:
    """Return the bytes of a file; raise if it is not a plain file of the user."""
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("it is not a file")
        _require_own(status, path, "If it is yours after all, chown it and chmod go-w")
        return file.read()


def _require_own(status: os.stat_result, name: str | os.PathLike[str], remedy: str) -> None:
    """Check that only this user and the administrator can have written a file or a folder.

    Raises:
        ValueError: a different user owns it or can write to it.
    """
    is_others = status.st_uid not in (os.geteuid(), 0)
    if is_others or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        problem = f"belongs to user {status.st_uid}" if is_others else "can be written to by other users"
        raise ValueError(f"{name} {problem}, who could choose what runs here. {remedy} {name}")
