"""Which line of the user's model asked for an operation."""

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
# What captures, runs and accounts, and the operations that it sees as one; models in `nn` are the user's, as any are.
_OURS = tuple(os.path.join(_PACKAGE, folder) + os.sep for folder in ("capture", "compat", "engine", "ipu", "ops"))


@functools.cache
def owner_of(code: CodeType) -> str:
    """Whose code it is: `user`, `pyg`, `popgeo` or `torch`."""
    path = code.co_filename
    # PyG writes the propagate() of each layer into a file of its own, named after the module.
    if path.startswith(_PYG) or os.path.basename(path).startswith("torch_geometric."):
        return "pyg"
    if path.startswith(_OURS):
        return "popgeo"
    return "torch" if path.startswith(_TORCH) or path.startswith("<") else "user"


def frames(frame: FrameType | None, stop: CodeType | None = None) -> Iterator[FrameType]:
    """A frame and its callers, innermost first, down to the function whose code is `stop`."""
    while frame is not None and frame.f_code is not stop:
        yield frame
        frame = frame.f_back


def model_frame(stop: CodeType) -> FrameType | None:
    """The innermost frame of the user's own code below the function whose code is `stop`.

    Where the model is PyG's or ours from top to bottom, its own innermost frame; if it is torch's, the outermost.
    """
    library: FrameType | None = None
    torchs: FrameType | None = None
    for frame in frames(sys._getframe(1), stop):
        owner = owner_of(frame.f_code)
        if owner == "user":
            return frame
        if owner == "pyg" and library is None:
            library = frame
        if frame.f_code.co_filename.startswith(_LAYERS) and not frame.f_code.co_filename.endswith("module.py"):
            torchs = frame
    return library or torchs


def line_of_error(error: BaseException) -> str:
    """`file:line in function: code` of the user's innermost line that an error came through; empty if none is.

    If one error came while another was handled, the line is that of the first.
    """
    while error.__context__ is not None:
        error = error.__context__
    found = library = ""
    for frame, lineno in traceback.walk_tb(error.__traceback__):
        owner = owner_of(frame.f_code)
        if owner == "user" and frame.f_code.co_name != "__torch_dispatch__":  # of a mode, not of the model
            found = _line(frame.f_code, lineno)
        elif owner == "pyg":
            library = _line(frame.f_code, lineno)
    return found or library


def files(stop: CodeType) -> set[str]:
    """The source files of all functions on the stack below the one whose code is `stop`, torch's own left out."""
    codes = (frame.f_code for frame in frames(sys._getframe(1), stop))
    return {code.co_filename for code in codes if _is_hashed(code)}


@functools.cache
def _is_hashed(code: CodeType) -> bool:
    # What PyG generates has a name of its own in each process, and PyG's version says what is in it.
    return owner_of(code) != "torch" and not os.path.basename(code.co_filename).startswith("torch_geometric.")


def describe(frame: FrameType | None) -> str:
    """`file:line in function: code` of the line that a frame is at; empty for no frame."""
    return "" if frame is None else _line(frame.f_code, frame.f_lineno)


@functools.lru_cache(maxsize=4096)
def _line(code: CodeType, lineno: int) -> str:
    text = linecache.getline(code.co_filename, lineno).strip()
    return f"{code.co_filename}:{lineno} in {code.co_name}: {text}"
