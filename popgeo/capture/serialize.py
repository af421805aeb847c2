"""Captured steps as bytes: a line of JSON, then torch's file of the constants; reading never runs anything in them."""

import io
import json
import sys
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from popgeo.capture.captured_step import CapturedStep
from popgeo.capture.check_read import require_operations
from popgeo.capture.op_graph import BlockMark, Input, Op, OpGraph, Ref, Value
from popgeo.capture.pytree import Container, FixedValue, Leaf, Structure, besides
from popgeo.torch_archive import entries_of, load_tensors

_TORCH = {"dtype": torch.dtype, "layout": torch.layout, "memory_format": torch.memory_format, "device": torch.device}
_PHASES = ("forward", "backward", "update")


def to_bytes(step: CapturedStep) -> bytes:
    """The step as JSON, with its constants behind it, which torch writes once where several look at one memory.

    Raises:
        TypeError: the model returns, or an operation takes, something that JSON cannot hold.
        ValueError: `from_bytes` would refuse it, such as for an operation of an unknown library.
    """
    graph = step.graph
    require_operations(graph)
    document = {
        "result": structure_out(step.result),
        "trained": step.trained,
        **({"written": list(map(str, step.written))} if step.written else {}),
        "row_indices": sorted(map(str, step.row_indices)),
        "captured_ops": step.captured_ops,
        **_graph_out(graph),
        "constants": list(graph.constants),
    }
    constants = io.BytesIO()
    torch.save(list(graph.constants.values()), constants)
    return b"\n".join([json.dumps(document).encode(), constants.getvalue()])


def from_bytes(data: bytes, arguments: Sequence[Any] = ()) -> CapturedStep:
    """The step that `to_bytes` wrote, with the graph data among the arguments of now.

    Each operation is one of a list, takes what torch's schema of it says, and makes what the file says that it makes.

    Raises:
        ValueError, KeyError, TypeError, IndexError, AttributeError, RuntimeError: the bytes are something else, or
            damaged, or no capture has made them.
    """
    head, _, raw = data.partition(b"\n")
    document = json.loads(head)
    values = tuple(_value(fields) for fields in document["values"])
    graph = _graph_in(document, values, _constants(raw, values, _whole(*document["constants"])))
    require_operations(graph)
    return CapturedStep(
        graph=graph,
        result=structure_in(document["result"], arguments),
        written=tuple(map(Input.parse, document.get("written", ()))),
        trained=tuple(document["trained"]),
        row_indices=frozenset(map(Input.parse, document["row_indices"])),
        captured_ops=document["captured_ops"],
    )


def _constants(raw: bytes, values: Sequence[Value], numbers: Sequence[int]) -> dict[int, Tensor]:
    """The constants of these numbers, which look at memory together as they did when the step was written.

    Raises:
        ValueError: torch cannot read them, or one lies in memory otherwise than its value says.
    """
    try:
        found = dict(zip(numbers, load_tensors(entries_of(raw)), strict=True))
    except (ValueError, TypeError) as error:
        raise ValueError("its constants cannot be read") from error
    if any(tensor.stride() != values[v].stride or not tensor.is_cpu for v, tensor in found.items()):
        raise ValueError("a constant lies in memory otherwise than its value says")
    return found


def _graph_out(graph: OpGraph) -> dict[str, Any]:
    """What a graph holds in addition its constants; bodies of loops and branches have none."""
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


def _graph_in(document: Mapping[str, Any], values: tuple[Value, ...], constants: Mapping[int, Tensor]) -> OpGraph:
    ops, inputs = tuple(map(_op, document["ops"])), {Input.parse(text): v for text, v in document["inputs"]}
    outputs = _whole_or_none(document["outputs"])
    return OpGraph(ops=ops, values=values, inputs=inputs, outputs=outputs, constants=constants)


def _op(fields: list[Any]) -> Op:
    target, args, kwargs, outputs, writes, phase, module, source, bodies, block = fields
    if phase not in _PHASES or {type(target), type(module), type(source)} != {str}:
        raise ValueError(f"{target!r} of phase {phase!r} is not an operation of a step")
    return Op(
        target=target, args=tuple(from_json(args)), kwargs={key: from_json(arg) for key, arg in kwargs.items()},
        outputs=_whole_or_none(outputs), writes=_whole(*writes), phase=phase, module=module, source=source,
        bodies=tuple(_graph_in(body, tuple(map(_value, body["values"])), {}) for body in bodies),
        block=None if block is None else BlockMark(str(block[0]), *_whole_or_none(block[1:])),
    )  # fmt: skip


def _value(fields: list[Any]) -> Value:
    shape, stride, offset, dtype, storage, producer = fields
    (offset, storage), (producer,) = _whole(offset, storage), _whole_or_none([producer])
    return Value(
        shape=_whole(*shape), stride=_whole(*stride), offset=offset, dtype=torch_thing("dtype", dtype),
        storage=storage, producer=producer,
    )  # fmt: skip


def _whole(*numbers: Any) -> tuple[int, ...]:
    """The numbers, if they are whole ones: a text or a 1.0 in the place of a number is not a capture's."""
    if any(type(number) is not int for number in numbers):
        raise ValueError(f"{numbers!r:.100} are not whole numbers")
    return numbers


def _whole_or_none(numbers: Iterable[Any]) -> tuple[int | None, ...]:
    return tuple(None if number is None else _whole(number)[0] for number in numbers)


def structure_out(structure: Structure) -> Any:
    """A nest of results as what JSON holds.

    Raises:
        TypeError: JSON cannot hold it, or graph data among the results is like none of the arguments.
    """
    if isinstance(structure, Leaf):
        return ["slot", structure.shape, torch_name(structure.dtype)]
    if isinstance(structure, FixedValue):
        return ["fixed", to_json(structure.value)]
    return [_kind_out(structure), list(map(to_json, structure.keys)), list(map(structure_out, structure.parts))]


def structure_in(fields: list[Any], arguments: Sequence[Any]) -> Structure:
    """The nest that `structure_out` was given, with the graph data among the arguments of now.

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

        if container.like is None and (container.kind is not Data or besides(container.template, container.keys)):
            raise TypeError(f"{container.kind.__name__} is like none of the arguments, so it cannot be written as JSON")
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
    """A class of named tuples that this process has; nothing is imported for it."""
    found = vars(sys.modules[module]).get(name) if module in sys.modules else None  # `getattr` may run a module's own
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
        return Ref(*_whole(held)) if kind == "ref" else torch_thing(kind, held)
    return argument


def torch_name(thing: Any) -> str:
    """The name of a dtype, layout, memory format or device."""
    return str(thing).removeprefix("torch.")


def torch_thing(kind: str, name: str) -> Any:
    """What has this name.

    Raises:
        ValueError: torch has no such thing.
    """
    found = torch.device("cpu") if (kind, name) == ("device", "cpu") else vars(torch).get(name)
    if not isinstance(found, _TORCH[kind]):
        raise ValueError(f"{name!r:.100} is not a {kind} that a file may name")
    return found
