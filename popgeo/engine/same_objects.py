"""Compares nested lists and dictionaries at the speed of Python's own `==`, with tensors compared by identity."""

import ctypes
import operator
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from torch._C import (
    _get_function_stack_at,
    _len_torch_function_stack,
    _pop_torch_function_stack,
    _push_on_torch_function_stack,
)
from torch.overrides import TorchFunctionMode

from popgeo.native import library


class _IdentityComparison(TorchFunctionMode):
    """A mode of torch in which `==` of two tensors raises, so that a tensor equals only itself.

    An interrupt right after the mode was entered can leave it active. It then changes nothing, since `comparing` is
    False, and the next comparison removes it.
    """

    comparing = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.comparing:
            raise ValueError("Tensors are compared by identity here.")
        return func(*args, **(kwargs or {}))


def holds_the_same(one: Any, other: Any) -> bool:
    """Return whether two nests of lists and dictionaries contain the same tensor objects and equal other values.

    Python's `==` compares identity first and equality only after that, all in C. The mode makes equality of tensors
    fail; without it, two different tensors of one element could count as equal.

    Example:
        >>> import torch
        >>> rate = torch.ones(1)
        >>> holds_the_same({"lr": rate, "eps": [1e-8]}, {"lr": rate, "eps": [1e-8]})
        True
        >>> holds_the_same([rate], [torch.ones(1)])
        False
    """
    while (depth := _len_torch_function_stack()) and isinstance(_get_function_stack_at(depth - 1), _IdentityComparison):
        _pop_torch_function_stack()
    mode = _IdentityComparison()
    _push_on_torch_function_stack(mode)
    try:
        mode.comparing = True
        return bool(one == other)
    except (RuntimeError, TypeError, ValueError):
        return False
    finally:
        mode.comparing = False
        _pop_torch_function_stack()


def same_tables(
    tables: Sequence[dict[Any, Any]], places: Sequence[tuple[dict[str, Any], str]] = (), objects: Sequence[Any] = ()
) -> Callable[[], bool]:
    """Return a function that checks whether dictionaries still hold the same objects, in the same order.

    The compiled library asks Python for all entries in one call.

    Args:
        tables: Dictionaries to compare as a whole.
        places: Dictionaries of which one key is compared.
        objects: Objects whose class is compared.

    Example:
        >>> table, options = {"rate": 0.5}, {"mode": True, "name": ""}
        >>> is_same = same_tables([table], [(options, "mode")])
        >>> options["name"] = "other"
        >>> is_same(), table.pop("rate"), is_same()
        (True, 0.5, False)
    """
    tables, places, objects = list(tables), list(places), list(objects)

    def present() -> list[Any]:
        held = [dict.get(table, key) for table, key in places]
        return [*map(type, objects), *held, *(one for table in tables for entry in table.items() for one in entry)]

    noted, sizes = present(), list(map(len, tables))
    native, kinds = library.packed("popgeo_same_objects"), [_class_of(one) for one in objects]
    if native is None or None in kinds:
        return lambda: list(map(len, tables)) == sizes and all(map(operator.is_, present(), noted))
    entries = [id(one) for table in tables for entry in table.items() for one in entry]
    values = [(id(table), id(key), id(table[key]) if key in table else 0) for table, key in places]
    sized = list(zip(map(id, tables), sizes, strict=True))
    arrays = [np.array(some, np.int64).reshape(-1) for some in (sized, entries, values, kinds)]
    counts = len(tables), len(places), len(objects)
    header = np.array([ctypes.addressof(_functions()), *(one.ctypes.data for one in arrays), *counts], np.int64)
    # Unlike other functions of the library, it needs Python's lock.
    holding = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(ctypes.cast(native, ctypes.c_void_p).value)  # type: ignore[arg-type]
    address, keeps = header.ctypes.data, (header, arrays, noted, tables, places, objects)
    return lambda: bool(holding(address) and keeps)


@cache
def _functions() -> "ctypes.Array[ctypes.c_void_p]":
    """Return the addresses of Python's functions."""
    found = (ctypes.pythonapi.PyDict_Next, ctypes.pythonapi.PyDict_GetItemWithError)
    return (ctypes.c_void_p * 2)(*(ctypes.cast(one, ctypes.c_void_p).value for one in found))


def _class_of(thing: Any) -> tuple[int, int] | None:
    """Return the place of an object's class, and the class, as addresses; None if the place is not the usual one."""
    place = id(thing) + ctypes.sizeof(ctypes.c_void_p)
    return (place, id(type(thing))) if ctypes.c_void_p.from_address(place).value == id(type(thing)) else None
