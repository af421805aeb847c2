"""Writes a graph as one straight-line Python function."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from popgeo.capture.op_graph import Number, Op, OpGraph, Ref
from popgeo.engine import out_variants
from popgeo.engine.fuse.prepared import PREPARED, late_arguments
from popgeo.engine.memory_plan import laid_out

Check = Callable[[Op, list[Any], list[Any]], None]


def emit(
    graph: OpGraph, tensors: Mapping[int, Tensor], check: Check | None = None
) -> Callable[[], list[Tensor | None]]:
    """Return a function that runs the graph once.

    Args:
        graph: The graph to run.
        tensors: The tensors of values with a fixed place. Operations write there; views of the tensors need no code.
        check: Function to call after each operation with the operation, its operands and its results. Default: none.
    """
    writer = _Writer(graph, tensors, check)
    for index, op in enumerate(graph.ops):
        writer.add(index, op)
    return writer.function()


class _Writer:
    def __init__(self, graph: OpGraph, tensors: Mapping[int, Tensor], check: Check | None) -> None:
        self._graph, self._tensors, self._check = graph, tensors, check
        self._names: dict[str, Any] = {f"t{v}": tensor for v, tensor in tensors.items()} | {"laid_out": laid_out}
        self._looked_at = {graph.values[v].storage for op in graph.ops if graph.is_view(op) for v in op.makes()}
        self._lines = ["def run():"]
        self._dies: dict[int, list[int]] = {}
        last = {v: index for index, op in enumerate(graph.ops) for v in (*op.reads(), *op.makes())}
        for v, index in last.items():
            if v not in tensors and v not in graph.outputs:
                self._dies.setdefault(index, []).append(v)

    def add(self, index: int, op: Op) -> None:
        line = self._line(index, op)
        if line is not None:
            self._lines.append(f"    {line}")
            if self._check is not None:
                self._names["check"], self._names[f"op{index}"] = self._check, op
                operands, results = (", ".join(map(self._value, values)) for values in (op.reads(), op.makes()))
                self._lines.append(f"    check(op{index}, [{operands}], [{results}])")
        dead = [self._value(v) for v in self._dies.get(index, ())]
        if dead:
            self._lines.append(f"    del {', '.join(dead)}")

    def function(self) -> Callable[[], list[Tensor | None]]:
        outputs = ", ".join("None" if v is None else self._value(v) for v in self._graph.outputs)
        self._lines.append(f"    return [{outputs}]")
        exec(compile("\n".join(self._lines), "<popgeo step>", "exec"), self._names)
        return self._names["run"]

    def _line(self, index: int, op: Op) -> str | None:
        prepared = self._prepared(index, op)
        if prepared is not None:
            return prepared
        made = op.makes()
        placed = bool(made) and not op.writes and all(v in self._tensors for v in made)
        if placed and self._graph.is_view(op):
            return None
        simple = out_variants.copy_or_fill(op) if placed else None
        if simple is not None:
            return simple.format(*map(self._value, (*made, *op.reads()))) or None
        into = out_variants.into_place(self._graph, op) if placed else None
        if into is None:
            return self._call(index, op)
        function, names = into
        return self._call_of(index, op, function, dict(zip(names, made, strict=True)))

    def _prepared(self, index: int, op: Op) -> str | None:
        """Return the source of a call of the operation's prepared function; None if the operation has none."""
        prepare = PREPARED.get(op.target)
        call = prepare(self._graph, op, self._tensors) if prepare is not None else None
        if call is None:
            return None
        self._names[f"f{index}"] = call
        operands, numbers = late_arguments(op, self._tensors)
        return f"f{index}({', '.join([*map(self._value, operands), *map(self._text, numbers)])})"

    def _call(self, index: int, op: Op) -> str:
        """Return the source of a call that makes new tensors and copies results to their fixed places."""
        known = {None, *op.reads()}  # an operation also returns the operands that it changes in place
        targets = ", ".join("_" if v in known else f"v{v:d}" for v in op.outputs)
        if len(op.outputs) == 1 and out_variants.returns_list(op.target):
            targets = f"({targets},)"
        copies = [f"t{v}.copy_(v{v})" for v in op.makes() if v in self._tensors and v not in known]
        if not self._graph.is_view(op):  # views of a result rely on its strides
            turned = {v: self._graph.values[v] for v in op.makes() if v not in self._tensors and v not in known}
            copies += [f"v{v} = laid_out(v{v}, {x.stride})" for v, x in turned.items() if x.storage in self._looked_at]
        call = self._call_of(index, op, out_variants.plain(op.target), {})
        return "; ".join([f"{targets + ' = ' if op.outputs else ''}{call}", *copies])

    def _call_of(self, index: int, op: Op, function: Callable[..., Any], outs: Mapping[str, int]) -> str:
        """Return a call of a function with the operation's arguments, and with `outs`, the values to write to."""
        self._names[f"f{index}"] = function
        named = {key: self._text(argument) for key, argument in op.kwargs.items()}
        named |= {key: self._value(v) for key, v in outs.items()}
        arguments = [*map(self._text, op.args), *(f"{_identifier(key)}={text}" for key, text in named.items())]
        return f"f{index}({', '.join(arguments)})"

    def _value(self, v: int) -> str:
        return f"t{v:d}" if v in self._tensors else f"v{v:d}"

    def _text(self, argument: Any) -> str:
        if isinstance(argument, Ref):
            return self._value(argument.value)
        if isinstance(argument, list | tuple):
            return "[" + ", ".join(self._text(item) for item in argument) + "]"
        if argument is None or type(argument) in (int, bool, str):
            return repr(argument)
        if isinstance(argument, Number):
            name, argument = f"n{argument.slot}", argument.value
        else:
            name = f"c{len(self._names)}"
        self._names[name] = argument
        return name


def _identifier(name: str) -> str:
    """Return the name if it is an identifier, since no other text of a graph may enter the source code."""
    if not name.isidentifier():
        raise ValueError(f"{name!r:.100} is not the name of an argument.")
    return name
