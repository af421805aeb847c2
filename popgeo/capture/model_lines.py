"""The line of the user's model that called an operation."""

import functools
import linecache
import os
import sys
import traceback
from collections.abc import Iterator
from importlib.util import find_spec
from types import CodeType, FrameType

import torch

_TORCH = os.path.dirname(torch.__file__) + os.sep
_LAYERS = os.path.join(_TORCH, "nn") + os.sep
_PYG = os.path.dirname(str(find_spec("torch_geometric").origin)) + os.sep  # type: ignore[union-attr]
_PACKAGE = os.path.dirname(os.path.dirname(__file__))
# The folders of popgeo's own machinery. Models in `nn` count as the user's.
_OURS = tuple(os.path.join(_PACKAGE, folder) + os.sep for folder in ("capture", "compat", "engine", "ipu", "ops"))


@functools.cache
def owner_of(path: str) -> str:
    """Return the owner of a source file: `user`, `pyg`, `popgeo` or `torch`."""
    # PyG writes the propagate() of each layer into a separate file, named after the module.
    if path.startswith(_PYG) or os.path.basename(path).startswith("torch_geometric."):
        return "pyg"
    if path.startswith(_OURS):
        return "popgeo"
    return "torch" if path.startswith(_TORCH) or path.startswith("<") else "user"


def frames(frame: FrameType | None, stop: CodeType | None = None) -> Iterator[FrameType]:
    """Yield a frame and its callers, innermost first, up to the function with the code `stop`, which is left out."""
    while frame is not None and frame.f_code is not stop:
        yield frame
        frame = frame.f_back


def model_frame(stop: CodeType) -> FrameType | None:
    """Return the innermost frame of user code that the function with the code `stop` has called.

    For a model of PyG or of popgeo without user code, return its innermost frame; for a model of torch, its outermost.
    """
    library: FrameType | None = None
    torchs: FrameType | None = None
    for frame in frames(sys._getframe(1), stop):
        owner = owner_of(frame.f_code.co_filename)
        if owner == "user":
            return frame
        if owner == "pyg" and library is None:
            library = frame
        if frame.f_code.co_filename.startswith(_LAYERS) and not frame.f_code.co_filename.endswith("module.py"):
            torchs = frame
    return library or torchs


_OF_MODES = ("__torch_dispatch__", "__torch_function__")  # methods of a mode, not of the model


def line_of_error(error: BaseException) -> str:
    """Return the innermost line of user code that an error came through, or an empty text.

    The text is `file:line in function: code`. If one error came while another was handled, the line is that of the
    first.
    """
    while error.__context__ is not None:
        error = error.__context__
    found = library = ""
    for frame, lineno in traceback.walk_tb(error.__traceback__):
        owner = owner_of(frame.f_code.co_filename)
        if owner == "user" and frame.f_code.co_name not in _OF_MODES:
            found = _line(frame.f_code.co_filename, lineno, frame.f_code.co_name)
        elif owner == "pyg":
            library = _line(frame.f_code.co_filename, lineno, frame.f_code.co_name)
    return found or library


def files(stop: CodeType) -> set[str]:
    """Return the source files of all functions on the stack above the code `stop`, without torch's own."""
    return set(filter(_is_hashed, {frame.f_code.co_filename for frame in frames(sys._getframe(1), stop)}))


@functools.cache
def _is_hashed(path: str) -> bool:
    # The files that PyG generates have new names in each process; PyG's version determines their content.
    return owner_of(path) != "torch" and not os.path.basename(path).startswith("torch_geometric.")


def describe(frame: FrameType | None) -> str:
    """Return the line of a frame as `file:line in function: code`, or an empty text for None."""
    return "" if frame is None else _line(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


@functools.lru_cache(maxsize=4096)
def _line(path: str, lineno: int, function: str) -> str:
    return f"{path}:{lineno} in {function}: {linecache.getline(path, lineno).strip()}"
