"""Finds and loads the one compiled library of popgeo, or says why it is not there."""

import contextlib
import ctypes
import functools
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch  # loaded first, so that the library shares torch's own OpenMP pool and obeys set_num_threads
from torch import Tensor

import popgeo.forked  # noqa: F401  kernels of several threads would wait forever in a forked child

_PATH = Path(__file__).with_name("_popgeo.so")
_CSRC = Path(__file__).with_name("csrc")
_STRUCTURE = (ctypes.c_char_p,)
_switched_off = False


@functools.cache
def _open() -> tuple[ctypes.CDLL | None, str]:
    """The library and an empty string, or None and the reason in one sentence."""
    if not _PATH.exists():
        return (
            None,
            f"{_PATH.name} was not built: no C++17 compiler (GCC or Clang) was found when popgeo was installed.",
        )
    try:
        library = ctypes.CDLL(str(_PATH))
    except OSError as error:
        return None, f"{_PATH} could not be loaded: {error}"
    if _built_from(library) != sources_checksum():
        return None, f"{_PATH} was built from other sources. Run python setup.py build_ext --inplace, or install again."
    return library, ""


def sources_checksum() -> int:
    """Of the C++ files that belong to these Python files; `setup.py` builds the same into the library."""
    return zlib.crc32(b"".join(path.read_bytes() for path in sorted(_CSRC.glob("*.[ch]*"))))


def _built_from(library: ctypes.CDLL) -> int:
    """The checksum of the sources that the library was built from; -1 if it does not say."""
    try:
        entry = library.popgeo_sources
    except AttributeError:
        return -1
    entry.restype = ctypes.c_uint32
    return int(entry())


@functools.cache
def _bind(name: str, argtypes: tuple[Any, ...], restype: Any) -> Callable[..., Any] | None:
    library, _ = _open()
    if library is None:
        return None
    entry = getattr(library, name)
    entry.argtypes, entry.restype = argtypes, restype
    return entry


def function(name: str, argtypes: Sequence[Any], restype: Any = None) -> Callable[..., Any] | None:
    """A C function of the library, or None where the caller must take its pure-torch path.

    Ask at each call (the answer is cached): `without_native` must be able to change it.
    """
    return None if _switched_off else _bind(name, tuple(argtypes), restype)


def packed(name: str) -> Callable[[bytes], int] | None:
    """A C function that takes one structure of 64-bit numbers, or None where the caller must take its pure-torch path.

    `struct.pack` and one argument take a fifth of the time that ctypes needs for fourteen.
    """
    return None if _switched_off else _bind(name, _STRUCTURE, ctypes.c_int64)


def address(tensor: Tensor) -> int:
    """Where the elements of a tensor lie, for a C function to read them.

    Raises:
        ValueError: they lie nowhere: the tensor wraps another one, or its memory was given back; or what lies there is
            to be negated.

    Example:
        >>> address(torch.empty(2, device="meta"))
        Traceback (most recent call last):
            ...
        ValueError: A Tensor of shape [2] on meta has no memory of its own. Pass a plain tensor with values.
    """
    place = tensor.data_ptr()
    if not place and tensor.numel():
        where = f"A {type(tensor).__name__} of shape {list(tensor.shape)} on {tensor.device}"
        raise ValueError(f"{where} has no memory of its own. Pass a plain tensor with values.")
    if tensor.is_neg():
        raise ValueError("A tensor is a negated view of another one. Pass tensor.resolve_neg().")
    return place


def as_read(tensor: Tensor) -> Tensor:
    """The tensor contiguous, at an address that its type allows: one over the bytes of a file may begin at any byte.

    Example:
        >>> as_read(torch.frombuffer(bytearray(9), dtype=torch.int64, offset=1))
        tensor([0])
    """
    is_aligned = tensor.data_ptr() % tensor.element_size() == 0
    return tensor.contiguous() if is_aligned else tensor.clone(memory_format=torch.contiguous_format)


def is_available() -> bool:
    """Whether the compiled library is in use.

    Example:
        >>> from popgeo.native import library
        >>> library.is_available() or library.reason() != ""
        True
    """
    return not _switched_off and _open()[0] is not None


def reason() -> str:
    """Why the compiled library is not in use; empty when it is."""
    return "It is switched off by without_native()." if _switched_off else _open()[1]


@contextlib.contextmanager
def without_native() -> Iterator[None]:
    """Runs a block as on a machine without a compiler; results are the same, only slower. For tests and benchmarks."""
    global _switched_off
    before, _switched_off = _switched_off, True
    try:
        yield
    finally:
        _switched_off = before
