"""Keeps captured steps in a folder, for the next start."""

import json
import os
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from popgeo.atomic_write import write_atomically
from popgeo.capture import serialize
from popgeo.capture.captured_step import CapturedStep
from popgeo.capture.fingerprint import Unknown, fingerprint, hash_files


def key_of(model: nn.Module, *choices: object) -> str | None:
    """The name to keep a model's step under; None where what the model holds cannot be told from something else.

    Args:
        model: What is captured.
        choices: What else the step depends on.
    """
    try:
        return fingerprint(model, *choices)
    except Unknown:
        return None


def load(folder: str | os.PathLike[str] | None, key: str | None, graph_data: Sequence[Any] = ()) -> CapturedStep | None:
    """The step kept under a key, if it is there, whole, and made from the source files as they are now.

    A damaged file, or one of another kind, is ignored with a warning. Reading never runs anything in the file.

    Args:
        folder: Where steps are kept; None for nowhere.
        key: The step's name; None for none.
        graph_data: The graph data that the model is called with, which results may be like.
    """
    if folder is None or key is None:
        return None
    path = _path(folder, key)
    try:
        head, _, body = path.read_bytes().partition(b"\n")
        if hash_files(json.loads(head)) != json.loads(head):
            return None  # the model's source has changed since
        return serialize.from_bytes(body, graph_data)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, zipfile.BadZipFile) as error:
        warnings.warn(f"{path} is no compiled step ({error}); compiling anew and replacing it.", stacklevel=2)
        return None


def save(folder: str | os.PathLike[str] | None, key: str | None, step: CapturedStep) -> None:
    """Keeps a step if it has a place and a name; other processes see the whole file or none.

    Where the step cannot be written down, or the folder not written to, a warning says so.
    """
    if folder is None or key is None:
        return
    path = _path(folder, key)
    try:
        data = json.dumps(hash_files(step.files)).encode() + b"\n" + serialize.to_bytes(step)
        write_atomically(path, data)
    except (OSError, TypeError) as error:
        warnings.warn(f"The compiled step is not kept in {folder}: {error}.", stacklevel=2)


def _path(folder: str | os.PathLike[str], key: str) -> Path:
    return Path(folder) / f"{key}.popgeo"
