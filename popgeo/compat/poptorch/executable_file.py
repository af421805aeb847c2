"""Files of `compileAndExport`: what it takes to compile a model again for the same arguments."""

import io
import os
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.optim import Optimizer

from popgeo.atomic_write import write_atomically
from popgeo.capture.pytree import Structure
from popgeo.compat.poptorch.options import Options

_HEAD = b"popgeo poptorch executable 1\n"


@dataclass(frozen=True, kw_only=True)
class Executable:
    """What a file holds.

    Attributes:
        form: How the arguments nest, with their shapes and types.
        options: Those that the model was compiled with.
        model: The module, if it was exported.
        optimizer: Its optimizer, if it was exported.
        training: Whether it was a training model; None where the module was not exported.
        rng_state: Where random numbers continue.
    """

    form: Structure
    options: Options
    model: nn.Module | None = None
    optimizer: Optimizer | None = None
    training: bool | None = None
    rng_state: Sequence[int] | None = None


def write(filename: str | os.PathLike[str], executable: Executable) -> None:
    """Writes a file, and its folder if that is missing; in a folder that is there it is `model.poptorch`."""
    path = Path(filename)
    path = path / "model.poptorch" if path.is_dir() else path
    path.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    torch.save(executable, content)  # which writes memory that weights share once
    write_atomically(path, _HEAD + content.getvalue())


def read(filename: str | os.PathLike[str]) -> Executable:
    """What a file holds. Like PopTorch's own it is a pickle: load only files from those whom you trust.

    Raises:
        ValueError: the file was written by something else, or by another version of its classes.
    """
    data = Path(filename).read_bytes()
    if not data.startswith(_HEAD):
        raise ValueError(f"Invalid file {filename}: it was not written by compileAndExport() of popgeo's PopTorch.")
    try:
        found = torch.load(io.BytesIO(data[len(_HEAD) :]), weights_only=False)
    except (RuntimeError, pickle.UnpicklingError, EOFError, AttributeError, ImportError) as error:
        raise ValueError(f"Invalid file {filename}: {error}") from error
    assert isinstance(found, Executable), type(found)
    return found
