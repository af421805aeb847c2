"""A safe reader of programs of `torch.export`; torch's own reader evaluates strings and unpickles."""

import json
import operator
import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from popgeo.capture.safe_operations import (
    has_rule,
    needs_forward,
    require_fitting,
    require_types,
    safe_operation,
)

# Types of arguments, by their keys in the file. Sizes are numbers, never expressions.
_PLAIN = {"as_bool": bool, "as_int": int, "as_float": float, "as_string": str}
# Numbers in the format. Torch has the same tables, but importing them takes a second.
DTYPES = {
    1: torch.uint8, 2: torch.int8, 3: torch.int16, 4: torch.int32, 5: torch.int64, 6: torch.float16, 7: torch.float32,
    8: torch.float64, 9: torch.complex32, 10: torch.complex64, 11: torch.complex128, 12: torch.bool,
    13: torch.bfloat16, 28: torch.uint16, 29: torch.float8_e4m3fn, 30: torch.float8_e5m2, 31: torch.float8_e4m3fnuz,
    32: torch.float8_e5m2fnuz, 33: torch.float8_e8m0fnu, 34: torch.uint32, 35: torch.uint64,
}  # fmt: skip
MEMORY_FORMATS = {
    1: torch.contiguous_format, 2: torch.channels_last, 3: torch.channels_last_3d, 4: torch.preserve_format
}  # fmt: skip
_OF_TORCH: dict[str, Mapping[int, Any]] = {
    "as_scalar_type": DTYPES,
    "as_layout": {7: torch.strided},
    "as_memory_format": MEMORY_FORMATS,
}
_NUMBERS = {"Infinity", "-Infinity", "NaN"}  # as torch writes them
_STATE = {"buffer": "buffer_name", "parameter": "parameter_name", "tensor_constant": "tensor_constant_name"}


def read_program(entries: Mapping[str, bytes], name: str, inputs: Mapping[str, Tensor]) -> fx.GraphModule:
    """Read one program from a file that may contain only allowed operations.

    Args:
        entries: Entries of the archive, by names without the first folder.
        name: Name of the program.
        inputs: Example tensors of the program's inputs, in order.

    Raises:
        ValueError: the program has an operation that is not allowed, or anything but operations, numbers and tensors.
        LookupError, TypeError, AttributeError: an entry is missing, or of a wrong type.
    """
    held = json.loads(entries[f"models/{name}.json"], object_pairs_hook=_fixed)
    if held["range_constraints"]:
        raise ValueError("it has sizes that vary, which a fixed program does not need")
    held = held["graph_module"]
    signature, graph, module = held["signature"], fx.Graph(), nn.Module()
    weights = _weights(entries, "weights", name) | _weights(entries, "constants", name)
    nodes: dict[str, fx.Node] = {}
    for spec in signature["input_specs"]:
        ((kind, of),) = spec.items()
        if kind == "user_input":
            called = of["arg"]["as_tensor"]["name"]
            nodes[called] = graph.placeholder(f"input_{len(nodes)}")
        else:
            called = of["arg"]["name"]
            module.register_buffer(f"state_{len(nodes)}", weights[of[_STATE[kind]]])
            nodes[called] = graph.get_attr(f"state_{len(nodes)}")
    for node in held["graph"]["nodes"]:
        _add(graph, nodes, node)
    results = [nodes[spec["user_output"]["arg"]["as_tensor"]["name"]] for spec in signature["output_specs"]]
    graph.output(tuple(results))
    made = fx.GraphModule(module, graph)
    if any(has_rule(str(node.target)) for node in graph.nodes):
        with FakeTensorMode() as mode, torch.no_grad():
            _Sizes(made, mode).run(*(torch.empty(one.shape, dtype=one.dtype) for one in inputs.values()))
    return made


def _fixed(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object, or raise if it contains an expression, which torch's own reader would evaluate."""
    found = dict(pairs)
    if "as_expr" in found or len(found) < len(pairs):
        raise ValueError("a size is an expression, or a name occurs twice, which a fixed program does not need")
    return found


class _Sizes(fx.Interpreter):
    """An interpreter that runs a program on fake tensors and checks sizes that kernels do not check."""

    def __init__(self, module: fx.GraphModule, mode: FakeTensorMode) -> None:
        super().__init__(module)
        self._mode = mode

    def fetch_attr(self, target: str) -> Any:
        """Return a weight as a fake tensor."""
        return self._mode.from_tensor(super().fetch_attr(target))

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operation after a check of its sizes."""
        if isinstance(target, torch._ops.OpOverload):
            require_fitting(target, args, kwargs)
        return super().call_function(target, args, kwargs)


def _add(graph: fx.Graph, nodes: dict[str, fx.Node], node: Mapping[str, Any]) -> None:
    """Add one operation to the graph, and its results to `nodes`."""
    target = node["target"].removeprefix("torch.ops.")
    func = safe_operation(target)
    if needs_forward(target):
        raise ValueError(f"{target} takes indices that no operation has checked")
    given = {one["name"]: (_argument(one["arg"], nodes), one["kind"]) for one in node["inputs"]}
    declared = [one.name for one in func._schema.arguments]
    positions = [name for name in declared if name in given and given[name][1] == 1]
    if unknown := {*given} - {*declared} or {*declared[: len(positions)]} - {*positions}:
        raise ValueError(f"{target} has no such arguments: {', '.join(sorted(unknown)):.100}")
    args = tuple(given[name][0] for name in positions)
    named = {name: one for name, (one, kind) in given.items() if kind != 1}
    require_types(func, args, named, fx.Node)
    made = graph.call_function(func, args, named)
    outputs, makes = node["outputs"], [str(one.type) for one in func._schema.returns]
    is_list = makes != ["Tensor"]  # by torch's schema, not by the file, which could confuse a tensor with a list
    several = outputs[0]["as_tensors"] if makes == ["List[Tensor]"] else [one.get("as_tensor") for one in outputs]
    if makes != ["List[Tensor]"] and len(several) != len(makes):
        raise ValueError(f"{target} makes {len(makes)} tensors, and the file names {len(several)}")
    for position, one in enumerate(several):
        if one is not None:
            nodes[one["name"]] = graph.call_function(operator.getitem, (made, position)) if is_list else made


def _argument(held: Any, nodes: Mapping[str, fx.Node]) -> Any:
    """Return an argument of an operation: a node, a number, a torch object such as a dtype, or a list of these."""
    ((kind, value),) = held.items()
    if kind == "as_none":
        return None
    if kind == "as_tensor":
        return nodes[value["name"]]
    if kind in _OF_TORCH:
        return _OF_TORCH[kind][value]
    if kind == "as_complex":
        return complex(*(_argument({"as_float": value[part]}, nodes) for part in ("real", "imag")))
    if kind == "as_device" and value["type"] == "cpu":
        return torch.device("cpu")
    if isinstance(value, list) and kind.endswith("s"):
        is_held = kind.startswith(("as_sym_", "as_optional_"))
        return [_argument(one if is_held else {kind.removesuffix("s"): one}, nodes) for one in value]
    if kind.startswith("as_sym_"):
        return _argument(value, nodes)
    if kind == "as_float" and (type(value) in (int, float) or value in _NUMBERS):
        return float(value)
    if kind not in _PLAIN or type(value) is not _PLAIN[kind]:
        raise ValueError(f"an argument is {held!r:.100}, which a fixed program on a processor does not need")
    return value


def _weights(entries: Mapping[str, bytes], kind: str, name: str) -> dict[str, Tensor]:
    """Read the weights of a program. Weights that shared memory when the file was written share memory again."""
    config = json.loads(entries[f"data/{kind}/{name}_{kind}_config.json"])["config"]
    if config and entries.get("byteorder", b"little").decode() != sys.byteorder:
        raise ValueError("its weights have a different byte order than this processor")
    memory: dict[tuple[str, torch.dtype], Tensor] = {}
    found = {}
    for called, one in config.items():
        meta, path = one["tensor_meta"], one["path_name"]
        if one["use_pickle"] is not False or meta["device"]["type"] != "cpu":
            raise ValueError(f"{called!r:.100} is a pickle, which could execute code, or is for a different device")
        dtype, data = DTYPES[meta["dtype"]], entries[f"data/{kind}/{path}"]
        if (path, dtype) not in memory:
            plain = torch.empty(0, dtype=dtype)
            memory[path, dtype] = torch.frombuffer(bytearray(data), dtype=dtype) if data else plain
        size, stride = (_argument({"as_sym_ints": meta[part]}, {}) for part in ("sizes", "strides"))
        # raises if the weight goes beyond the entry
        found[called] = memory[path, dtype].as_strided(size, stride, _argument(meta["storage_offset"], {}))
    return found
