"""The parts of a step in stages: what one pass of one stage runs, takes from others and leaves for them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from popgeo.capture.op_graph import Input, Op, OpGraph, Value
from popgeo.capture.passes import renumbered


@dataclass(frozen=True)
class Kept:
    """Something that one part leaves for later parts of the same micro-batch.

    Attributes:
        value: Its number in the whole step; what owns its memory, never a view.
        before: Whether it is a buffer as it was before this micro-batch changed it.
    """

    value: int
    before: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class StagePart:
    """The operations of one pass of one stage.

    Attributes:
        stage: The stage.
        backward: Whether it is the backward pass.
        graph: Its inputs are parameters and buffers by name, then what it receives, by number; it returns what it
            sends, then the gradients.
        receives: What other parts, or the call, have left for it, in the order of the inputs.
        sends: What it leaves for others.
        saves: Buffers that it changes and that others need as they were: copied before it runs.
        gradients: Names of the parameters whose gradients it finishes.
        draws: Its operations in the whole step that draw random numbers.
    """

    stage: int
    backward: bool
    graph: OpGraph
    receives: tuple[Kept, ...]
    sends: tuple[int, ...]
    saves: Mapping[Kept, Input]
    gradients: tuple[str, ...]
    draws: tuple[int, ...]


def owner_of(graph: OpGraph, v: int) -> int:
    """The value whose memory a value looks at; itself, if it is not a view."""
    while (producer := graph.values[v].producer) is not None and graph.is_view(graph.ops[producer]):
        storage = graph.values[v].storage
        v = next(w for w in graph.ops[producer].reads() if graph.values[w].storage == storage)
    return v


def graph_of(
    values: Sequence[Value],
    ops: Sequence[Op],
    inputs: Mapping[Input, int],
    outputs: Sequence[int],
    constants: Mapping[int, Tensor],
) -> OpGraph:
    """A graph of some of the operations of another, with its values numbered again."""
    used = {*inputs.values(), *constants, *outputs} | {v for op in ops for v in (*op.reads(), *op.makes())}
    number = {v: place for place, v in enumerate(sorted(used))}
    given = {*inputs.values(), *constants}
    producer = {v: index for index, op in enumerate(ops) for v in op.makes() if v not in op.reads() and v not in given}

    return OpGraph(
        ops=tuple(renumbered(op, number.__getitem__, number.__getitem__) for op in ops),
        values=tuple(values[v].made_by(producer.get(v)) for v in number),
        inputs={given: number[v] for given, v in inputs.items()},
        outputs=tuple(number[v] for v in outputs),
        constants={number[v]: tensor for v, tensor in constants.items()},
    )
