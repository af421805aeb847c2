"""Lowers operations without a kernel of popgeo to calls of torch's own kernels from C.

Torch's stable C functions run any operation by name, in half a microsecond more than the kernel itself takes.
"""

import ctypes
import functools
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from popgeo.capture.op_graph import Op, OpGraph, Ref, overload
from popgeo.capture.passes import is_random
from popgeo.engine import out_variants
from popgeo.engine.program.native_call import NativeCall, is_plain, native_call

_FUNCTIONS = (
    "torch_call_dispatcher", "aoti_torch_new_tensor_handle", "aoti_torch_delete_tensor_object",
    "aoti_torch_get_data_ptr", "aoti_torch_is_contiguous", "aoti_torch_get_numel", "aoti_torch_get_dtype",
    "torch_new_list_reserve_size", "torch_list_push_back",
)  # fmt: skip
_FROM_MEMORY = "aoti_torch_create_tensor_from_blob"
# Operations whose bits depend on the number of threads; these run in one thread.
_SERIAL = (
    "native_layer_norm_backward", "native_batch_norm", "native_batch_norm_backward", "_native_batch_norm_legit",
    "native_group_norm_backward", "mean", "sum", "var", "std", "linalg_vector_norm", "prod", "logsumexp",
    "_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data",
)  # fmt: skip
_NUMBER, _TENSOR, _SOME, _LIST = range(4)  # kinds of arguments, as in run_torch.cpp


@functools.cache
def _torch_library() -> ctypes.CDLL | None:
    """Return torch's library; None if this version of torch lacks a function."""
    for path in sorted((Path(torch.__file__).parent / "lib").glob("libtorch_cpu.*")):
        found = ctypes.CDLL(str(path))
        if all(hasattr(found, name) for name in (*_FUNCTIONS, _FROM_MEMORY)):
            return found
    return None


class _Handles:
    """Tensors of torch's C functions on the memory of given tensors, as long as this object exists."""

    def __init__(self, torch_itself: ctypes.CDLL) -> None:
        self._torch, self.held = torch_itself, list[Tensor]()
        self._made: list[ctypes.c_void_p] = []
        weakref.finalize(self, _free, torch_itself, self._made)

    def knows(self, dtype: torch.dtype) -> bool:
        """Return whether torch's C functions know a type; they do not know quantized numbers."""
        return hasattr(self._torch, _name_of(dtype))

    def number_of(self, dtype: torch.dtype) -> int:
        """Return torch's number for a type."""
        return getattr(self._torch, _name_of(dtype))()

    def of(self, tensor: Tensor) -> int:
        """Return the handle of a contiguous tensor."""
        made, sizes = ctypes.c_void_p(), (ctypes.c_int64 * tensor.dim())(*tensor.shape)
        strides, dtype = (ctypes.c_int64 * tensor.dim())(*tensor.stride()), self.number_of(tensor.dtype)
        place, rank = ctypes.c_void_p(tensor.data_ptr()), ctypes.c_int64(tensor.dim())
        create = getattr(self._torch, _FROM_MEMORY)
        if create(place, rank, sizes, strides, ctypes.c_int64(0), dtype, 0, 0, ctypes.byref(made)):
            raise RuntimeError(f"torch made no tensor of shape {list(tensor.shape)}.")
        self._made.append(made)
        self.held.append(tensor)
        return made.value or 0


def _name_of(dtype: torch.dtype) -> str:
    return f"aoti_torch_dtype_{str(dtype).removeprefix('torch.')}"


def _free(torch_itself: ctypes.CDLL, made: Sequence[ctypes.c_void_p]) -> None:
    for handle in made:
        torch_itself.aoti_torch_delete_tensor_object(handle)


def lower_with_torch(graph: OpGraph, op: Op, tensors: Mapping[int, Tensor]) -> NativeCall | None:
    """Return the native call that runs torch's kernel of an operation; None if its arguments cannot be passed."""
    torch_itself = _torch_library()
    if torch_itself is None or not op.target.startswith("aten.") or is_random(op):
        return None
    handles = _Handles(torch_itself)
    if not all(handles.knows(tensors[v].dtype) for v in (*op.reads(), *op.makes())):
        return None
    placed = not op.writes and None not in op.outputs and out_variants.into_place(graph, op) is not None
    found = out_variants.into_overload(op.target) if placed else None
    namespace, name, kind = op.target.split(".")
    kind, outs = (kind, ()) if found is None else found
    schema = overload(f"{namespace}.{name}.{kind}")._schema  # type: ignore[attr-defined]
    passed = {one.name: value for one, value in zip(schema.arguments, op.args, strict=False)}
    passed |= {**op.kwargs, **dict(zip(outs, map(Ref, op.makes()), strict=False))}
    encoded = [_encode(one.type, passed.get(one.name, one.default_value), tensors, handles) for one in schema.arguments]
    known = op.reads() if found is None else op.makes()  # these need no copy
    copied = [None if v is None or v in known else tensors[v] for v in op.outputs]
    if (
        None in encoded
        or out_variants.returns_list(op.target)
        or not all(one is None or is_plain(one) for one in [*handles.held, *copied])
    ):
        return None
    words = [word for one in encoded if one is not None for word in one]
    places = [[0] * 4 if one is None else _place(one, handles) for one in copied]
    tables = np.array(words, np.int64), np.array(places, np.int64)
    texts = [ctypes.create_string_buffer(one.encode()) for one in (f"{namespace}::{name}", kind.replace("default", ""))]
    functions = [ctypes.cast(getattr(torch_itself, one), ctypes.c_void_p).value or 0 for one in _FUNCTIONS]
    pointers = *map(ctypes.addressof, texts), *(table.ctypes.data for table in tables)
    call = native_call("popgeo_call_torch", *functions, *pointers, len(encoded), len(places), name in _SERIAL)
    return replace(call, is_fixed=True, held=(handles, texts, tables, copied))


def _place(tensor: Tensor, handles: _Handles) -> list[int]:
    """Return the place to which a result of this form is copied: address, bytes, elements and torch's type."""
    return [tensor.data_ptr(), tensor.nbytes, tensor.numel(), handles.number_of(tensor.dtype)]


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
    if isinstance(kind, torch.IntType) and isinstance(given, torch.dtype) and handles.knows(given):
        return [_NUMBER, handles.number_of(given)]
    if isinstance(kind, torch.IntType | torch.BoolType) and isinstance(given, int):
        return [_NUMBER, int(given)]
    return None
