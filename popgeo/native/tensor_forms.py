"""Comparison of the memory, types, shapes and strides of many tensors with earlier ones, in one call."""

import ctypes
import struct
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._C._dynamo import guards

from popgeo.native import library

_MOST_DIMENSIONS = 8
_FORM_BYTES = 8 * (5 + 2 * _MOST_DIMENSIONS)
_WORDS = range(2, 8)  # words of a tensor's object in which torch may keep the address of the tensor in C++
_PROPERTIES = ("layout", "dtype", "dim", "sizes", "strides", "data_ptr")


def same_forms(tensors: Sequence[Tensor], only_memory: bool = False) -> Callable[[], bool]:
    """Return a function that checks whether tensors still have their present memory, type, shape, strides and class.

    It also compares `requires_grad`. The compiled library reads these properties by torch's stable C interface; without
    the library, torch's guards compare them, which takes longer.

    Args:
        tensors: Tensors to compare.
        only_memory: Whether to compare the address of the memory alone.

    Example:
        >>> weight = torch.nn.Parameter(torch.ones(2, 3))
        >>> is_same = same_forms([weight])
        >>> is_same(), weight.requires_grad_(False) is weight, is_same()
        (True, True, False)
    """
    tensors = list({id(tensor): tensor for tensor in tensors}.values())  # torch's guards refuse a tensor twice
    addresses = list(map(Tensor.data_ptr, tensors))
    sizes: Any = [list(tensor.size()) for tensor in tensors]
    strides: Any = [list(tensor.stride()) for tensor in tensors]
    slowly = guards.TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)
    compare, torchs, places = library.packed("popgeo_same_forms"), _functions_of_torch(), list(map(_places, tensors))
    if compare is None or torchs is None or None in places:
        return lambda: slowly.check(*tensors) and list(map(Tensor.data_ptr, tensors)) == addresses
    kinds, handles = np.array(places, dtype=np.int64).reshape(-1, 2).T.copy()
    forms = np.zeros(len(tensors) * _FORM_BYTES, dtype=np.uint8)
    held = (ctypes.addressof(torchs), len(tensors), *(one.ctypes.data for one in (kinds, handles, forms)))
    compare(struct.pack("7q", *held, only_memory, 1))
    packed = struct.pack("7q", *held, only_memory, 0)
    keeps = (tensors, torchs, kinds, handles, forms)
    return lambda: bool(compare(packed)) and bool(keeps)


@cache
def _functions_of_torch() -> "ctypes.Array[ctypes.c_void_p] | None":
    """Return the addresses of torch's functions; None if this version of torch does not have all of them."""
    try:
        known = ctypes.CDLL(torch._C.__file__)
        found = [getattr(known, f"aoti_torch_get_{name}") for name in _PROPERTIES]
        found.append(known._ZNK3c1010TensorImpl13requires_gradEv)  # c10::TensorImpl::requires_grad() const
    except (AttributeError, OSError):
        return None
    return (ctypes.c_void_p * len(found))(*(ctypes.cast(one, ctypes.c_void_p).value for one in found))


def _places(tensor: Tensor) -> tuple[int, int] | None:
    """Return the addresses of an object's class and of its tensor in C++; None if they are elsewhere than usual."""
    words = (ctypes.c_int64 * _WORDS.stop).from_address(id(tensor))
    is_usual = tensor.layout is torch.strided and not tensor.is_complex() and tensor.dim() <= _MOST_DIMENSIONS
    if not is_usual or words[1] != id(type(tensor)):
        return None
    found = [number for number in _WORDS if words[number] == tensor._cdata]
    return (id(tensor) + 8, id(tensor) + 8 * found[0]) if found else None
