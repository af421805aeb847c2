"""Native calls: C functions of one structure, to which the operations of a bound graph are lowered."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from popgeo.capture.op_graph import Op, OpGraph
from popgeo.native import library


@dataclass(frozen=True, kw_only=True, eq=False)
class NativeCall:
    """A call of a C function of the compiled library.

    The function takes the address of a structure of 64-bit words and returns a status. A status other than 0 means that
    it has not computed the results; torch then runs the operation, and raises its own error for invalid operands.

    Attributes:
        function: Name of the C function.
        words: The structure. Addresses in it may move: a program adjusts each word that is an address in the memory of
            an input. int64 [num_words]
        tables: Further arrays of words with addresses, to which the structure points. int64
        num_threads: Index of the word with the number of threads; None if the function follows OpenMP's own number.
        numbers: Numbers that change from run to run: the array that holds a number, its index there, and its slot.
        is_fixed: Whether the call reads inputs at the addresses of the given tensors alone.
        held: Other objects that must live as long as the call, such as arrays to which the structure points.
    """

    function: str
    words: np.ndarray
    tables: Sequence[np.ndarray] = ()
    num_threads: int | None = None
    numbers: Sequence[tuple[np.ndarray, int, int]] = ()
    is_fixed: bool = False
    held: Any = field(default=None, repr=False)


def native_call(function: str, *words: Tensor | float | None, num_threads: int | None = None) -> NativeCall:
    """Return a call of a C function with one word per argument: an address, a whole number, or the bits of a float."""
    structure = np.array([_word(word) for word in words], np.int64)
    return NativeCall(function=function, words=structure, num_threads=num_threads)


def is_plain(tensor: Tensor) -> bool:
    """Check whether a tensor is contiguous in the processor's memory, and shows its elements unchanged."""
    return tensor.is_cpu and tensor.is_contiguous() and not (tensor.is_neg() or tensor.is_conj())


def _word(word: Tensor | float | None) -> int:
    if isinstance(word, float):
        return int(np.float64(word).view(np.int64))
    return library.address(word) if word is None or isinstance(word, Tensor) else int(word)


# A function that lowers an operation to a native call. It takes the graph, the operation, and the tensor of each
# value; it returns None if torch must run the operation.
Lower = Callable[[OpGraph, Op, Mapping[int, Tensor]], NativeCall | None]

LOWERINGS: dict[str, Lower] = {}
"""For the name of each operation with a kernel, the function that lowers it."""
