"""Runs an `OpGraph`: the one stateful part of the executor."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from popgeo.ipu.op_graph import OpGraph, Ref, overload


class Engine:
    """Runs a graph as one straight-line function.

    Args:
        graph: What to run.
        state: Tensors of the graph's parameters and buffers, by input name; buffers change in place.
    """

    def __init__(self, graph: OpGraph, state: Mapping[str, Tensor]) -> None:
        self.graph = graph
        self.buffer_bytes = 0
        self._run = _compile(graph, state)

    def run(self, inputs: Sequence[Tensor]) -> list[Tensor | None]:
        """The graph's outputs for these inputs, in the order in which the graph names those that are not state."""
        with torch.no_grad(), torch._C._AutoDispatchBelowAutograd():
            return self._run(*inputs)  # type: ignore[no-any-return]


def _compile(graph: OpGraph, state: Mapping[str, Tensor]) -> Any:
    names = {f"v{v}": tensor for v, tensor in graph.constants.items()}
    names |= {f"v{v}": state[name].detach() for name, v in graph.inputs.items() if name in state}
    arguments = [f"v{v}" for name, v in graph.inputs.items() if name not in state]
    last_use = {
        v: index for index, op in enumerate(graph.ops) for v in (*op.reads(), *(o for o in op.outputs if o is not None))
    }
    keep = {v for v in graph.outputs if v is not None}
    lines = [f"def run({', '.join(arguments)}):"]
    for index, op in enumerate(graph.ops):
        names[f"f{index}"] = overload(op.target)._op  # type: ignore[attr-defined]
        args = [_text(arg, names) for arg in op.args] + [f"{key}={_text(arg, names)}" for key, arg in op.kwargs.items()]
        known = {None, *op.reads()}  # what an operation changes in place it also returns
        targets = ", ".join("_" if v in known else f"v{v}" for v in op.outputs)
        left = f"{targets} = " if op.outputs else ""
        lines.append(f"    {left}f{index}({', '.join(args)})")
        dead = [f"v{v}" for v, last in last_use.items() if last == index and v not in keep and f"v{v}" not in names]
        if dead:
            lines.append(f"    del {', '.join(dead)}")
    lines.append(f"    return [{', '.join('None' if v is None else f'v{v}' for v in graph.outputs)}]")
    exec("\n".join(lines), names)
    return names["run"]


def _text(argument: Any, names: dict[str, Any]) -> str:
    if isinstance(argument, Ref):
        return f"v{argument.value}"
    if isinstance(argument, list | tuple):
        return "[" + ", ".join(_text(item, names) for item in argument) + "]"
    if argument is None or type(argument) in (int, bool, str):
        return repr(argument)
    name = f"c{len(names)}"
    names[name] = argument
    return name
