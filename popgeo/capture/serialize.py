"""Captured steps as bytes: JSON and raw numbers, so that reading a file never runs anything in it."""

import io
import json
import sys
import zipfile
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from popgeo.capture.captured_step import CapturedStep
from popgeo.capture.op_graph import BlockMark, Input, Op, OpGraph, Ref, Value
from popgeo.capture.pytree import Container, Fixed, Leaf, Structure, besides

_TORCH = {"dtype": torch.dtype, "layout": torch.layout, "memory_format": torch.memory_format, "device": torch.device}


def to_bytes(step: CapturedStep) -> bytes:
    """The step as a zip file.

    Raises:
        TypeError: the model returns, or an operation takes, something that JSON cannot hold.
    """
    graph = step.graph
    document = {
        "result": structure_out(step.result),
        "trained": step.trained,
        **({"written": list(map(str, step.written))} if step.written else {}),
        "row_indices": sorted(map(str, step.row_indices)),
        "captured_ops": step.captured_ops,
        **_graph_out(graph),
        "constants": [[v, list(t.shape), torch_name(t.dtype)] for v, t in graph.constants.items()],
    }
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("step.json", json.dumps(document))
        for v, tensor in graph.constants.items():
            archive.writestr(f"constant/{v}", tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return buffer.getvalue()


def from_bytes(data: bytes, arguments: Sequence[Any] = ()) -> CapturedStep:
    """The step that `to_bytes` wrote, with the graph data among the arguments of now.

    Raises:
        ValueError, KeyError, TypeError, IndexError, zipfile.BadZipFile: the bytes are something else, or damaged.
    """
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        if archive.testzip() is not None:
            raise ValueError("the file is damaged")
        document = json.loads(archive.read("step.json"))
        constants = {v: _constant(archive, v, shape, dtype) for v, shape, dtype in document["constants"]}
    graph = _graph_in(document, constants)
    return CapturedStep(
        graph=graph,
        result=structure_in(document["result"], arguments),
        written=tuple(map(Input.parse, document.get("written", ()))),
        trained=tuple(document["trained"]),
        row_indices=frozenset(map(Input.parse, document["row_indices"])),
        captured_ops=document["captured_ops"],
    )


def _constant(archive: zipfile.ZipFile, v: int, shape: list[int], dtype: str) -> Tensor:
    raw = bytearray(archive.read(f"constant/{v}"))
    if not raw:
        return torch.empty(shape, dtype=torch_thing("dtype", dtype))
    return torch.frombuffer(raw, dtype=torch_thing("dtype", dtype)).view(shape)


def _graph_out(graph: OpGraph) -> dict[str, Any]:
    """What a graph holds besides its constants; bodies of loops and branches have none."""
    return {
        "inputs": [[str(given), v] for given, v in graph.inputs.items()],
        "outputs": graph.outputs,
        "values": [
            [v.shape, v.stride, v.offset, torch_name(v.dtype), v.storage, v.producer] for v in graph.values
        ],
        "ops": [
            [
                op.target, to_json(op.args), {key: to_json(arg) for key, arg in op.kwargs.items()}, op.outputs,
                op.writes, op.phase, op.module, op.source, [_graph_out(body) for body in op.bodies],
                None if op.block is None else [op.block.name, op.block.ipu],
            ]
            for op in graph.ops
        ],
    }  # fmt: skip


def _graph_in(document: Mapping[str, Any], constants: Mapping[int, Tensor]) -> OpGraph:
    return OpGraph(
        ops=tuple(_op(fields) for fields in document["ops"]),
        values=tuple(_value(fields) for fields in document["values"]),
        inputs={Input.parse(text): v for text, v in document["inputs"]},
        outputs=tuple(document["outputs"]),
        constants=constants,
    )


def _op(fields: list[Any]) -> Op:
    target, args, kwargs, outputs, writes, phase, module, source, bodies, block = fields
    return Op(
        target=target, args=tuple(from_json(args)), kwargs={key: from_json(arg) for key, arg in kwargs.items()},
        outputs=tuple(outputs), writes=tuple(writes), phase=phase, module=module, source=source,
        bodies=tuple(_graph_in(body, {}) for body in bodies), block=None if block is None else BlockMark(*block),
    )  # fmt: skip


def _value(fields: list[Any]) -> Value:
    shape, stride, offset, dtype, storage, producer = fields
    return Value(
        shape=tuple(shape), stride=tuple(stride), offset=offset, dtype=torch_thing("dtype", dtype), storage=storage,
        producer=producer,
    )  # fmt: skip


def structure_out(structure: Structure) -> Any:
    """A nest of results as what JSON holds.

    Raises:
        TypeError: JSON cannot hold it, or graph data among the results is like none of the arguments.
    """
    if isinstance(structure, Leaf):
        return ["slot", structure.shape, torch_name(structure.dtype)]
    if isinstance(structure, Fixed):
        return ["fixed", to_json(structure.value)]
    return [
        _kind_out(structure),
        [to_json(key) for key in structure.keys],
        [structure_out(part) for part in structure.parts],
    ]


def structure_in(fields: list[Any], arguments: Sequence[Any]) -> Structure:
    """The nest that `structure_out` was given, with the graph data among the arguments of now.

    Raises:
        ValueError: this process does not have a class that the results need.
    """
    kind, *rest = fields
    if kind == "slot":
        return Leaf(tuple(rest[0]), torch_thing("dtype", rest[1]))
    if kind == "fixed":
        return Fixed(from_json(rest[0]))
    parts = tuple(structure_in(part, arguments) for part in rest[1])
    if isinstance(kind, Mapping):
        template = Data() if kind["like"] is None else arguments[kind["like"]]
        keys = tuple((tuple(place) if isinstance(place, list) else place, name) for place, name in rest[0])
        return Container(type(template), keys, parts, template, kind["like"])
    return Container(_kind_in(kind), tuple(rest[0]), parts)


def _kind_out(container: Container) -> Any:
    if container.template is not None:
        if container.like is None and (container.kind is not Data or besides(container.template, container.keys)):
            raise TypeError(f"{container.kind.__name__} is like none of the arguments, so it cannot be written as JSON")
        return {"like": container.like}
    if container.original is not None:
        raise TypeError(f"{container.kind.__name__} cannot be written as JSON")
    if issubclass(container.kind, Mapping):
        return "OrderedDict" if container.kind is OrderedDict else "dict"
    if container.kind in (tuple, list):
        return container.kind.__name__
    place = [container.kind.__module__, container.kind.__qualname__]
    if _named_tuple(*place) is not container.kind:
        raise TypeError(f"{container.kind.__name__} cannot be written as JSON")
    return place


def _kind_in(kind: Any) -> type:
    if isinstance(kind, str):
        return {"tuple": tuple, "list": list, "dict": dict, "OrderedDict": OrderedDict}[kind]
    found = _named_tuple(*kind)
    if found is None:
        raise ValueError(f"the result is a {'.'.join(kind)}, which this process does not have")
    return found


def _named_tuple(module: str, name: str) -> type | None:
    """A class of named tuples that this process has; nothing is imported for it."""
    found = getattr(sys.modules.get(module), name, None)
    return found if isinstance(found, type) and issubclass(found, tuple) and hasattr(found, "_fields") else None


def to_json(argument: Any) -> Any:
    """An argument of an operation as what JSON holds.

    Raises:
        TypeError: JSON cannot hold it.

    Example:
        >>> to_json([Ref(3), torch.float32, None])
        [{'ref': 3}, {'dtype': 'float32'}, None]
    """
    if isinstance(argument, Ref):
        return {"ref": argument.value}
    if isinstance(argument, list | tuple):
        return [to_json(item) for item in argument]
    for kind, cls in _TORCH.items():
        if isinstance(argument, cls):
            return {kind: torch_name(argument)}
    if argument is None or isinstance(argument, bool | int | float | str):
        return argument
    raise TypeError(f"{type(argument).__name__} cannot be written as JSON")


def from_json(argument: Any) -> Any:
    """What `to_json` was given; tuples come back as lists.

    Example:
        >>> from_json([{"ref": 3}, {"dtype": "float32"}])
        [Ref(value=3), torch.float32]
    """
    if isinstance(argument, list):
        return [from_json(item) for item in argument]
    if isinstance(argument, Mapping):
        ((kind, held),) = argument.items()
        return Ref(held) if kind == "ref" else torch_thing(kind, held)
    return argument


def torch_name(thing: Any) -> str:
    """The name of a dtype, layout, memory format or device."""
    return str(thing).removeprefix("torch.")


def torch_thing(kind: str, name: str) -> Any:
    """What has this name.

    Raises:
        ValueError: torch has it, but it is no such kind.
    """
    if kind == "device":
        return torch.device(name)
    found = getattr(torch, name)
    if not isinstance(found, _TORCH[kind]):
        raise ValueError(f"{name} is no {kind}")
    return found
