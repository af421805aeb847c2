"""Captured steps as bytes: JSON and raw numbers, so that reading a file never runs anything in it."""

import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from popgeo.capture.captured_step import CapturedStep
from popgeo.capture.op_graph import BlockMark, Input, Op, OpGraph, Value
from popgeo.capture.serialize_pytree import structure_in, structure_out
from popgeo.capture.serialize_values import from_json, to_json, torch_name, torch_thing


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
        target=target, args=from_json(args), kwargs={key: from_json(arg) for key, arg in kwargs.items()},
        outputs=tuple(outputs), writes=tuple(writes), phase=phase, module=module, source=source,
        bodies=tuple(_graph_in(body, {}) for body in bodies), block=None if block is None else BlockMark(*block),
    )  # fmt: skip


def _value(fields: list[Any]) -> Value:
    shape, stride, offset, dtype, storage, producer = fields
    return Value(
        shape=tuple(shape), stride=tuple(stride), offset=offset, dtype=torch_thing("dtype", dtype), storage=storage,
        producer=producer,
    )  # fmt: skip
