"""The compiled library of popgeo: functions that find and load it, or return the reason why it is missing."""

import contextlib
import ctypes
import functools
import sys
import warnings
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch  # imported first, so that the library shares torch's OpenMP pool and obeys set_num_threads
from torch import Tensor

import popgeo.forked  # noqa: F401  without it, kernels of several threads would wait forever in a forked child

_PATH = Path(__file__).with_name("_popgeo.so")
_CSRC = Path(__file__).with_name("csrc")
_SETUP = Path(__file__).parents[2] / "setup.py"  # it exists if Python runs in a source folder
_TYPES: dict[str, Any] = {
    "": None, "P": ctypes.c_void_p, "s": ctypes.c_char_p,
    "q": ctypes.c_int64, "Q": ctypes.c_uint64, "i": ctypes.c_int, "I": ctypes.c_uint32,
}  # fmt: skip
_LOWEST = 1 << 40  # the memory of a process rarely has lower addresses
_switched_off = False


@functools.cache
def _open() -> tuple[ctypes.CDLL | None, str]:
    """Return the library and an empty string; or None, and the reason with a remedy.

    If Python runs in a source folder, the folder's library may be missing, or built from different sources. An
    installed library is then used if it was built from the same sources.
    """
    installed = (Path(folder, *_PATH.parts[-3:]) for folder in sys.path)
    reasons = []
    for path in filter(Path.is_file, dict.fromkeys([_PATH, *installed])):
        library, reason = _load(path)
        if library is not None:
            return library, ""
        reasons.append(reason)
    missing = f"popgeo's kernels were not compiled: {_PATH} is missing."
    return None, f"{reasons[0] if reasons else missing} {_remedy()}"


def _load(path: Path) -> tuple[ctypes.CDLL | None, str]:
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        return None, f"{path} could not be loaded: {error}."
    built_from = getattr(library, "popgeo_sources", None)
    is_same = built_from is not None and built_from() & 0xFFFFFFFF == sources_checksum()  # ctypes returns a signed int
    return (library, "") if is_same else (None, f"{path} was built from other sources than these.")


def _remedy() -> str:
    if _SETUP.is_file():
        return f"Run `pip install -e .` in {_SETUP.parent}; it needs a C++17 compiler, GCC or Clang."
    return (
        "Install a C++17 compiler, GCC or Clang, and then popgeo again: `pip install --force-reinstall --no-deps "
        "--no-cache-dir` and what you installed it from."
    )


@functools.cache
def _warn_once(reason: str) -> None:
    """Warn that a source folder runs without kernels; after an installation without a compiler there is no warning."""
    if _SETUP.is_file():
        warnings.warn(f"popgeo runs without its compiled kernels, which is slower. {reason}", stacklevel=2)


def sources_checksum() -> int:
    """Return the checksum of the C++ files next to this file; `setup.py` builds the same number into the library."""
    return zlib.crc32(b"".join(path.read_bytes() for path in sorted(_CSRC.glob("*.[ch]*"))))


@functools.cache
def _bind(name: str, argtypes: str, restype: str) -> Callable[..., Any] | None:
    library, reason = _open()
    if library is None:
        _warn_once(reason)
        return None
    entry = getattr(library, name)
    entry.argtypes, entry.restype = [_TYPES[one] for one in argtypes], _TYPES[restype]
    return entry


def function(name: str, argtypes: str, restype: str = "") -> Callable[..., Any] | None:
    """Return a C function of the library, or None if the caller must use pure torch.

    Types are letters, as in `struct`: "P" is an address, "s" bytes, "q" and "Q" are integers of 64 bits, "i" and "I" of
    32 bits; upper case means unsigned. A function that returns nothing has an empty `restype`.

    Call it for each use (the result is cached), because `without_native` may change the result.
    """
    return None if _switched_off else _bind(name, argtypes, restype)


def packed(name: str) -> Callable[[bytes], int] | None:
    """Return a C function of one structure of 64-bit numbers, or None if the caller must use pure torch.

    `struct.pack` and one argument take a fifth of the time that ctypes needs for fourteen arguments.
    """
    return None if _switched_off else _bind(name, "s", "q")


def address(tensor: Tensor | None) -> int:
    """Return the address of a tensor's elements for a C function; 0 for None.

    Raises:
        ValueError: the tensor has no memory, because it wraps another tensor or its memory was freed; or it is a
            negated view of another tensor.

    Example:
        >>> address(torch.empty(2, device="meta"))
        Traceback (most recent call last):
            ...
        ValueError: A Tensor of shape [2] on meta has no memory of its own. Pass a plain tensor with values.
    """
    if tensor is None:
        return 0
    place = tensor.data_ptr()
    # The address of a view into freed memory is its offset.
    if place < _LOWEST and tensor.numel() and place == tensor.storage_offset() * tensor.element_size():
        where = f"A {type(tensor).__name__} of shape {list(tensor.shape)} on {tensor.device}"
        raise ValueError(f"{where} has no memory of its own. Pass a plain tensor with values.")
    if tensor.is_neg():
        raise ValueError("A tensor is a negated view of another tensor. Pass tensor.resolve_neg().")
    return place


def as_read(tensor: Tensor) -> Tensor:
    """Return the tensor contiguous and aligned; a tensor over the bytes of a file may begin at any byte.

    Example:
        >>> as_read(torch.frombuffer(bytearray(9), dtype=torch.int64, offset=1))
        tensor([0])
    """
    is_aligned = tensor.data_ptr() % tensor.element_size() == 0
    return tensor.contiguous() if is_aligned else tensor.clone(memory_format=torch.contiguous_format)


def is_available() -> bool:
    """Check whether the compiled library is in use.

    Example:
        >>> from popgeo.native import library
        >>> library.is_available() or library.reason() != ""
        True
    """
    return not _switched_off and _open()[0] is not None


def reason() -> str:
    """Return the reason why the compiled library is not in use; empty if it is."""
    return "It is switched off by without_native()." if _switched_off else _open()[1]


@contextlib.contextmanager
def without_native() -> Iterator[None]:
    """Run a block without the compiled library: with the same results, but slower. For tests and benchmarks."""
    global _switched_off
    before, _switched_off = _switched_off, True
    try:
        yield
    finally:
        _switched_off = before
