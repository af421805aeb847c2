"""Compiled steps as bytes: JSON and raw numbers, so that reading a file never runs anything in it."""

import io
import json
import sys
import zipfile
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from popgeo.ipu.compiled_step import CompiledStep
from popgeo.ipu.op_graph import Op, OpGraph, Ref, Value
from popgeo.ipu.structure import Fixed, Node, Slot, Structure

_KINDS: dict[str, type] = {"tuple": tuple, "list": list, "dict": dict}
_TORCH = {"dtype": torch.dtype, "layout": torch.layout, "memory_format": torch.memory_format, "device": torch.device}


def to_bytes(step: CompiledStep) -> bytes:
    """The step as a zip file.

    Raises:
        TypeError: the model returns, or an operation takes, something that JSON cannot hold.
    """
    graph = step.graph
    document = {
        "result": _structure_out(step.result),
        "trained": step.trained,
        "row_indices": sorted(step.row_indices),
        "captured_ops": step.captured_ops,
        "inputs": list(graph.inputs.items()),
        "outputs": graph.outputs,
        "values": [
            [v.shape, v.stride, v.offset, _name(v.dtype), v.storage, v.producer] for v in graph.values
        ],
        "ops": [
            [
                op.target, _out(op.args), {key: _out(arg) for key, arg in op.kwargs.items()}, op.outputs, op.writes,
                op.phase, op.module, op.source,
            ]
            for op in graph.ops
        ],
        "constants": [[v, list(t.shape), _name(t.dtype)] for v, t in graph.constants.items()],
    }  # fmt: skip
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("step.json", json.dumps(document))
        for v, tensor in graph.constants.items():
            archive.writestr(f"constant/{v}", tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return buffer.getvalue()


def from_bytes(data: bytes) -> CompiledStep:
    """The step that `to_bytes` wrote.

    Raises:
        ValueError, KeyError, TypeError, IndexError, zipfile.BadZipFile: the bytes are something else, or damaged.
    """
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        if archive.testzip() is not None:
            raise ValueError("the file is damaged")
        document = json.loads(archive.read("step.json"))
        constants = {v: _constant(archive, v, shape, dtype) for v, shape, dtype in document["constants"]}
    graph = OpGraph(
        ops=tuple(_op(fields) for fields in document["ops"]),
        values=tuple(_value(fields) for fields in document["values"]),
        inputs=dict(document["inputs"]),
        outputs=tuple(document["outputs"]),
        constants=constants,
    )
    return CompiledStep(
        graph=graph,
        result=_structure_in(document["result"]),
        trained=tuple(document["trained"]),
        row_indices=frozenset(document["row_indices"]),
        captured_ops=document["captured_ops"],
    )


def _constant(archive: zipfile.ZipFile, v: int, shape: list[int], dtype: str) -> Tensor:
    raw = bytearray(archive.read(f"constant/{v}"))
    if not raw:
        return torch.empty(shape, dtype=_torch("dtype", dtype))
    return torch.frombuffer(raw, dtype=_torch("dtype", dtype)).view(shape)


def _op(fields: list[Any]) -> Op:
    target, args, kwargs, outputs, writes, phase, module, source = fields
    return Op(
        target=target, args=_in(args), kwargs={key: _in(arg) for key, arg in kwargs.items()}, outputs=tuple(outputs),
        writes=tuple(writes), phase=phase, module=module, source=source,
    )  # fmt: skip


def _value(fields: list[Any]) -> Value:
    shape, stride, offset, dtype, storage, producer = fields
    return Value(
        shape=tuple(shape), stride=tuple(stride), offset=offset, dtype=_torch("dtype", dtype), storage=storage,
        producer=producer,
    )  # fmt: skip


def _out(argument: Any) -> Any:
    if isinstance(argument, Ref):
        return {"ref": argument.value}
    if isinstance(argument, list | tuple):
        return [_out(item) for item in argument]
    for kind, cls in _TORCH.items():
        if isinstance(argument, cls):
            return {kind: _name(argument)}
    if argument is None or isinstance(argument, bool | int | float | str):
        return argument
    raise TypeError(f"{type(argument).__name__} cannot be written as JSON")


def _in(argument: Any) -> Any:
    if isinstance(argument, list):
        return [_in(item) for item in argument]
    if isinstance(argument, Mapping):
        ((kind, held),) = argument.items()
        return Ref(held) if kind == "ref" else _torch(kind, held)
    return argument


def _name(thing: Any) -> str:
    return str(thing).removeprefix("torch.")


def _torch(kind: str, name: str) -> Any:
    if kind == "device":
        return torch.device(name)
    found = getattr(torch, name)
    if not isinstance(found, _TORCH[kind]):
        raise ValueError(f"{name} is no {kind}")
    return found


def _structure_out(structure: Structure) -> Any:
    if isinstance(structure, Slot):
        return ["slot", structure.shape, _name(structure.dtype)]
    if isinstance(structure, Fixed):
        return ["fixed", _out(structure.value)]
    return [
        _kind_out(structure.kind),
        [_out(key) for key in structure.keys],
        [_structure_out(p) for p in structure.parts],
    ]


def _kind_out(kind: type) -> Any:
    if _KINDS.get(kind.__name__) is kind:
        return kind.__name__
    place = [kind.__module__, kind.__qualname__]
    if not hasattr(kind, "_fields") or _named_tuple(*place) is not kind:
        raise TypeError(f"{kind.__name__} cannot be written as JSON")
    return place


def _named_tuple(module: str, name: str) -> type | None:
    """A class of named tuples that this process has; nothing is imported for it."""
    found = getattr(sys.modules.get(module), name, None)
    return found if isinstance(found, type) and issubclass(found, tuple) and hasattr(found, "_fields") else None


def _kind_in(kind: Any) -> type:
    if isinstance(kind, str):
        return _KINDS[kind]
    found = _named_tuple(*kind)
    if found is None:
        raise ValueError(f"the result is a {'.'.join(kind)}, which this process does not have")
    return found


def _structure_in(fields: list[Any]) -> Structure:
    kind, *rest = fields
    if kind == "slot":
        return Slot(tuple(rest[0]), _torch("dtype", rest[1]))
    if kind == "fixed":
        return Fixed(_in(rest[0]))
    return Node(_kind_in(kind), tuple(rest[0]), tuple(_structure_in(part) for part in rest[1]))
