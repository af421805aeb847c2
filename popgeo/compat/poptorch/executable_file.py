"""Files of `compileAndExport`, which contain the input of a later compilation for the same arguments."""

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
    """Content of a file.

    Attributes:
        form: Structure, shapes and types of the arguments.
        options: Options of the model.
        model: Module. None if it was not exported.
        optimizer: Optimizer of the module. None if it was not exported.
        training: Whether the model trains. None if the module was not exported.
        rng_state: State of the random numbers.
    """

    form: Structure
    options: Options
    model: nn.Module | None = None
    optimizer: Optimizer | None = None
    training: bool | None = None
    rng_state: Sequence[int] | None = None


def write(filename: str | os.PathLike[str], executable: Executable) -> None:
    """Write a file and its missing folders. For an existing folder, the file is `model.poptorch` inside it."""
    path = Path(filename)
    path = path / "model.poptorch" if path.is_dir() else path
    path.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    torch.save(executable, content)  # writes shared memory once
    write_atomically(path, _HEAD + content.getvalue())


def read(filename: str | os.PathLike[str]) -> Executable:
    """Read a file. Like PopTorch's files it is a pickle: load only files from sources that you trust.

    Raises:
        ValueError: Another program wrote the file, or another version of its classes.
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
