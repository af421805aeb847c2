"""Keeps captured steps in a folder of one's own, for the next start."""

import json
import os
import stat
import warnings
from collections.abc import Sequence
from pathlib import Path

from torch import nn

from popgeo.capture import serialize
from popgeo.capture.arguments import Arguments
from popgeo.capture.captured_step import CapturedStep
from popgeo.capture.check_read import require_fit
from popgeo.capture.fingerprint import UnknownStateError, fingerprint, hash_files
from popgeo.capture.held_state import module_state
from popgeo.capture.op_graph import Input, Role
from popgeo.capture.structures import leaves
from popgeo.sealed_file import unsealed, write_sealed

KIND, VERSION = "kept step", 1
Folder = str | os.PathLike[str] | None


def key_of(model: nn.Module, *choices: object) -> str | None:
    """The name to keep a model's step under; None if the content of the model cannot be identified.

    Args:
        model: The captured model.
        choices: What else the step depends on.
    """
    try:
        return fingerprint(model, *choices)
    except UnknownStateError:
        return None


def load(
    folder: Folder, key: str | None, model: nn.Module, arguments: Arguments, trained: Sequence[str]
) -> CapturedStep | None:
    """The step kept under a key, if it is there, whole, of this model, and made from the source files as they are now.

    A damaged file, or one of another kind, is ignored with a warning. Reading never runs anything in the file.

    Args:
        folder: Where steps are kept; None for nowhere.
        key: The step's name; None for none.
        model: Whose weights the step takes.
        arguments: What the model is called with, which results may be like.
        trained: The parameters that the step is to train.

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
            raise ValueError("it is that of a different model")
        if hash_files(noted["files"]) != noted["files"]:
            return None  # the model's source has changed since
        step = serialize.from_bytes(body, arguments.graph_data)
        given = {Input(Role.ARGUMENT, name): leaf for name, leaf in leaves(arguments.structure)}
        require_fit(step, module_state(model), given, trained)
        return step
    except FileNotFoundError:
        return None
    except Exception as error:  # a file of another kind may break the reader in any way
        warnings.warn(f"{path} is not a compiled step ({error}); compiling again and replacing it.", stacklevel=2)
        return None


def save(folder: Folder, key: str | None, step: CapturedStep) -> None:
    """Keeps a step if it has a place and a name; other processes see the whole file or none.

    Where the step cannot be written down, or the folder not written to, a warning says so. A folder that is missing is
    made for its owner alone.
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
    """What a file holds, if it is a file of one's own."""
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("it is not a file")
        _require_own(status, path, "If it is yours after all, chown it and chmod go-w")
        return file.read()


def _require_own(status: os.stat_result, name: str | os.PathLike[str], remedy: str) -> None:
    """Rejects what a user other than this one and the administrator may have written.

    Raises:
        ValueError: a different user owns it or can write to it.
    """
    is_others = status.st_uid not in (os.geteuid(), 0)
    if is_others or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        whose = f"belongs to user {status.st_uid}" if is_others else "can be written to by other users"
        raise ValueError(f"{name} {whose}, who could choose what runs here. {remedy} {name}")
