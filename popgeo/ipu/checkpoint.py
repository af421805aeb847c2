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
    except OSError:
        raise
    except Exception as error:  # what is no such file may break the reader in any way
        reason = str(error).partition("\n")[0][:200]
        raise ValueError(f"{path} is no checkpoint of popgeo: {reason}") from error
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise ValueError(f"{path} is no checkpoint of popgeo; it was written by something else.")
    return content
