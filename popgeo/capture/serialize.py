"""Captured steps as bytes: a line of JSON, then the constants in torch's file format.

Reading the bytes runs nothing in them. The operations of a step are not checked: it is the user's own file.
"""

import io
import json
import sys
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from popgeo.capture.captured_step import CapturedStep
from popgeo.capture.op_graph import BlockMark, Input, Op, OpGraph, Ref, Value, overload
from popgeo.capture.pytree import Container, FixedValue, Leaf, Structure, other_keys
from popgeo.torch_archive import entries_of, load_tensors

_TORCH = {"dtype": torch.dtype, "layout": torch.layout, "memory_format": torch.memory_format, "device": torch.device}


def to_bytes(step: CapturedStep) -> bytes:
    """Return a step as JSON with its constants after it; torch writes memory that constants share once.

    Raises:
        TypeError: JSON cannot hold a result of the model or an argument of an operation.
        ValueError: a value is a conjugate or a negative view.
    """
    graph = step.graph
    if any(any(value.marks) for value in graph.values):
        raise ValueError("conjugate and negative views cannot be written")
    document = {
        "result": structure_out(step.result),
        "trained": step.trained,
        "written": list(map(str, step.written)),
        "row_indices": sorted(map(str, step.row_indices)),
        "captured_ops": step.captured_ops,
        **_graph_out(graph),
        "constants": list(graph.constants),
    }
    constants = io.BytesIO()
    torch.save(list(graph.constants.values()), constants)
    return b"\n".join([json.dumps(document).encode(), constants.getvalue()])


def from_bytes(data: bytes, arguments: Sequence[Any] = ()) -> CapturedStep:
    """Return the step that `to_bytes` wrote.

    Args:
        data: Bytes from `to_bytes`.
        arguments: Graph data among the arguments of this call; graph data among the results is made like it.

    Raises:
        ValueError: this process lacks an operation or a class of the step, or the constants are damaged.
        KeyError, TypeError, IndexError: `to_bytes` did not write the bytes.
    """
    head, _, raw = data.partition(b"\n")
    document = json.loads(head)
    constants = dict(zip(document["constants"], load_tensors(entries_of(raw)), strict=True))
    return CapturedStep(
        graph=_graph_in(document, constants),
        result=structure_in(document["result"], arguments),
        written=tuple(map(Input.parse, document["written"])),
        trained=tuple(document["trained"]),
        row_indices=frozenset(map(Input.parse, document["row_indices"])),
        captured_ops=document["captured_ops"],
    )


def _graph_out(graph: OpGraph) -> dict[str, Any]:
    """Return a graph as plain data, without its constants. Bodies of loops and branches have no constants."""
    return {
        "inputs": [[str(given), v] for given, v in graph.inputs.items()],
        "outputs": graph.outputs,
        "values": [[v.shape, v.stride, v.offset, torch_name(v.dtype), v.storage, v.producer] for v in graph.values],
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
        ops=tuple(_op(*fields) for fields in document["ops"]),
        values=tuple(
            Value(
                shape=tuple(shape), stride=tuple(stride), offset=offset, dtype=torch_thing("dtype", dtype),
                storage=storage, producer=producer,
            )
            for shape, stride, offset, dtype, storage, producer in document["values"]
        ),
        inputs={Input.parse(text): v for text, v in document["inputs"]},
        outputs=tuple(document["outputs"]),
        constants=constants,
    )  # fmt: skip


def _op(
    target: str, args: Any, kwargs: Any, outputs: Any, writes: Any, phase: str, module: str, source: str, bodies: Any,
    block: Any,
) -> Op:  # fmt: skip
    if not bodies:
        overload(target)  # raises if the library that defines the operation is not imported
    return Op(
        target=target, args=tuple(from_json(args)), kwargs={key: from_json(arg) for key, arg in kwargs.items()},
        outputs=tuple(outputs), writes=tuple(writes), phase=phase, module=module, source=source,
        bodies=tuple(_graph_in(body, {}) for body in bodies), block=None if block is None else BlockMark(*block),
    )  # fmt: skip


def structure_out(structure: Structure) -> Any:
    """Return a nest of results as plain data for JSON.

    Raises:
        TypeError: JSON cannot hold the nest, or graph data in the results has the structure of no argument.
    """
    if isinstance(structure, Leaf):
        return ["slot", structure.shape, torch_name(structure.dtype)]
    if isinstance(structure, FixedValue):
        return ["fixed", to_json(structure.value)]
    return [_kind_out(structure), list(map(to_json, structure.keys)), list(map(structure_out, structure.parts))]


def structure_in(fields: list[Any], arguments: Sequence[Any]) -> Structure:
    """Return the nest that `structure_out` wrote.

    Args:
        fields: Plain data from `structure_out`.
        arguments: Graph data among the arguments of this call.

    Raises:
        ValueError: this process does not have a class that the results need.
    """
    kind, *rest = fields
    if kind == "slot":
        return Leaf(tuple(rest[0]), torch_thing("dtype", rest[1]))
    if kind == "fixed":
        return FixedValue(from_json(rest[0]))
    parts = tuple(structure_in(part, arguments) for part in rest[1])
    if isinstance(kind, Mapping):
        from torch_geometric.data import Data

        template = Data() if kind["like"] is None else arguments[kind["like"]]
        keys = tuple((tuple(place) if isinstance(place, list) else place, name) for place, name in rest[0])
        return Container(type(template), keys, parts, template, kind["like"])
    return Container(_kind_in(kind), tuple(rest[0]), parts)


def _kind_out(container: Container) -> Any:
    if container.template is not None:
        from torch_geometric.data import Data

        if container.like is None and (container.kind is not Data or other_keys(container.template, container.keys)):
            raise TypeError(f"{container.kind.__name__} has the structure of no argument, so JSON cannot hold it")
        return {"like": container.like}
    kind = container.kind
    if issubclass(kind, Mapping) and container.original is None:
        return "OrderedDict" if kind is OrderedDict else "dict"
    if kind in (tuple, list):
        return kind.__name__
    place = [kind.__module__, kind.__qualname__]
    if container.original is not None or _named_tuple(*place) is not kind:
        raise TypeError(f"{kind.__name__} cannot be written as JSON")
    return place


def _kind_in(kind: Any) -> type:
    if isinstance(kind, str):
        return {"tuple": tuple, "list": list, "dict": dict, "OrderedDict": OrderedDict}[kind]
    found = _named_tuple(*kind)
    if found is None:
        raise ValueError(f"the result is a {'.'.join(kind)}, which this process does not have")
    return found


def _named_tuple(module: str, name: str) -> type | None:
    """Return a named tuple class from an imported module; None if the module is not imported or lacks the class."""
    found = vars(sys.modules[module]).get(name) if module in sys.modules else None  # `getattr` might run code
    return found if isinstance(found, type) and issubclass(found, tuple) and hasattr(found, "_fields") else None


def to_json(argument: Any) -> Any:
    """Return an argument of an operation as plain data for JSON.

    Raises:
        TypeError: JSON cannot hold the argument.

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
    """Return the argument that `to_json` wrote; tuples come back as lists.

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
    """Return the name of a dtype, layout, memory format or device."""
    return str(thing).removeprefix("torch.")


def torch_thing(kind: str, name: str) -> Any:
    """Return the dtype, layout, memory format or device with this name.

    Raises:
        ValueError: torch has no such object.
    """
    found = torch.device("cpu") if (kind, name) == ("device", "cpu") else vars(torch).get(name)
    if not isinstance(found, _TORCH[kind]):
        raise ValueError(f"{name!r:.100} is not a {kind} that a file may name")
    return found
