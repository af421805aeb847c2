"""Everything that a training run needs to go on as if it had never stopped."""

import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from popgeo.ipu.cache import write_atomically

_FORMAT = "popgeo checkpoint 1"


def save_checkpoint(path: str | os.PathLike[str], content: Mapping[str, Any]) -> None:
    """Writes tensors and numbers to a file that is, at any moment, the old one or the new one."""
    buffer = io.BytesIO()
    torch.save({"format": _FORMAT, **content}, buffer)
    write_atomically(Path(path), buffer.getvalue())


def load_checkpoint(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What `save_checkpoint` wrote; nothing in the file is run.

    Raises:
        ValueError: the file is not such a checkpoint.
    """
    try:
        content = torch.load(path, weights_only=True, map_location="cpu")
    except (RuntimeError, EOFError, KeyError, ValueError, TypeError) as error:
        raise ValueError(f"{path} is no checkpoint of popgeo: {error}") from error
    except Exception as error:  # torch raises pickle's own error for what it refuses to load
        if type(error).__name__ != "UnpicklingError":
            raise
        raise ValueError(
            f"{path} is no checkpoint of popgeo: it holds objects that are not tensors or numbers"
        ) from error
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise ValueError(f"{path} is no checkpoint of popgeo; it was written by something else.")
    return content
