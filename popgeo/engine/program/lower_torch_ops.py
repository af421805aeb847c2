"""Lowers operations of torch to calls of torch's own kernels from C, if no kernel of popgeo has the same bits.

Torch's stable C functions run any operation by name, in half a microsecond more than the kernel itself takes.
"""

import ctypes
import functools
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from popgeo.capture.op_graph import Op, OpGraph, Ref, overload
from popgeo.engine.program.native_call import LOWERINGS, NativeCall, native_call

# Overloads that write into given memory. Results of all others are copied.
_OUT = {
    f"aten.{name}.default": "out"
    for name in ("_softmax", "_softmax_backward_data", "_log_softmax", "_log_softmax_backward_data")
}
_NORMS = (
    "native_layer_norm", "native_layer_norm_backward", "native_batch_norm", "native_batch_norm_backward",
    "_native_batch_norm_legit", "native_group_norm", "native_group_norm_backward",
)  # fmt: skip
_FUNCTIONS = (
    "torch_call_dispatcher", "aoti_torch_new_tensor_handle", "aoti_torch_delete_tensor_object",
    "aoti_torch_get_data_ptr", "torch_new_list_reserve_size", "torch_list_push_back",
)  # fmt: skip
_NUMBER, _TENSOR, _SOME, _LIST = range(4)  # kinds of arguments, as in run_torch.cpp


@functools.cache
def _torch_library() -> ctypes.CDLL | None:
    """Return torch's library; None if this version of torch lacks a function."""
    for path in sorted((Path(torch.__file__).parent / "lib").glob("libtorch_cpu.*")):
        found = ctypes.CDLL(str(path))
        if all(hasattr(found, name) for name in _FUNCTIONS):
            return found
    return None


class _Handles:
    """Tensors as torch's C functions know them, which own the tensors as long as this object exists."""

    def __init__(self) -> None:
        self._capsules: list[Any] = []
        weakref.finalize(self, _free, self._capsules)

    def of(self, tensor: Tensor) -> int:
        """Return the handle of a tensor."""
        self._capsules.append(torch._C._aoti.unsafe_alloc_void_ptr_from_tensor(tensor))
        pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
        pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
        return pointer_of(self._capsules[-1], None) or 0


def _free(capsules: Sequence[Any]) -> None:
    for capsule in capsules:
        torch._C._aoti.alloc_tensor_by_stealing_from_void_ptr(capsule)


def lower_with_torch(graph: OpGraph, op: Op, tensors: Mapping[int, Tensor]) -> NativeCall | None:
    """Lower an operation to a call of torch's kernel; None if an operand is not contiguous."""
    torch_itself = _torch_library()
    plain = all(tensors[v].is_cpu and tensors[v].is_contiguous() for v in {*op.reads(), *op.makes()})
    if torch_itself is None or not plain:
        return None
    namespace, name, kind = op.target.split(".")
    kind = _OUT.get(op.target, kind)
    schema, handles = overload(f"{namespace}.{name}.{kind}")._schema, _Handles()  # type: ignore[attr-defined]
    encoded = [_encode(one.type, given, tensors, handles) for one, given in _arguments(schema, op)]
    words = [word for one in encoded if one is not None for word in one]
    if None in encoded:
        return None
    known = {None, *op.reads(), *(op.makes() if op.target in _OUT else ())}  # results that need no copy
    places = [(0, 0) if v is None or v in known else (tensors[v].data_ptr(), tensors[v].nbytes) for v in op.outputs]
    tables = np.array(words, np.int64), np.array(places, np.int64).reshape(-1)
    texts = [ctypes.create_string_buffer(one.encode()) for one in (f"{namespace}::{name}", kind.replace("default", ""))]
    functions = [ctypes.cast(getattr(torch_itself, one), ctypes.c_void_p).value or 0 for one in _FUNCTIONS]
    pointers = *map(ctypes.addressof, texts), *(table.ctypes.data for table in tables)
    call = native_call("popgeo_call_torch", *functions, *pointers, len(encoded), len(places))
    return replace(call, is_fixed=True, held=(handles, texts, tables))


def _arguments(schema: Any, op: Op) -> Iterator[tuple[Any, Any]]:
    """Yield each argument of a schema with what the operation passes; places for results come last."""
    made = iter(op.makes())
    for position, one in enumerate(schema.arguments):
        if one.is_out:
            yield one, Ref(next(made))
        else:
            is_given = position < len(op.args)
            yield one, op.args[position] if is_given else op.kwargs.get(one.name, one.default_value)


def _encode(kind: Any, given: Any, tensors: Mapping[int, Tensor], handles: _Handles) -> list[int] | None:
    """Return an argument as words for `popgeo_call_torch`; None if it cannot be passed."""
    if isinstance(kind, torch.OptionalType):
        if given is None:
            return [_NUMBER, 0]
        inner = _encode(kind.getElementType(), given, tensors, handles)
        return None if inner is None else [_SOME, *inner]
    if isinstance(kind, torch.ListType) and isinstance(given, Sequence):
        items = [_encode(kind.getElementType(), item, tensors, handles) for item in given]
        words = [word for item in items if item is not None for word in item]
        return None if None in items else [_LIST, len(items), *words]
    if isinstance(kind, torch.TensorType) and isinstance(given, Ref):
        return [_TENSOR, handles.of(tensors[given.value])]
    if isinstance(kind, torch.FloatType) and isinstance(given, int | float):
        return [_NUMBER, int(np.float64(given).view(np.int64))]
    if isinstance(kind, torch.IntType) and isinstance(given, torch.dtype):
        number_of = getattr(_torch_library(), f"aoti_torch_dtype_{str(given).removeprefix('torch.')}")
        return [_NUMBER, number_of()]
    if isinstance(kind, torch.IntType | torch.BoolType) and isinstance(given, int):
        return [_NUMBER, int(given)]
    return None


LOWERINGS |= dict.fromkeys([*_OUT, *(f"aten.{name}.default" for name in _NORMS)], lower_with_torch)
