"""Rewrites of a graph that keep every value, bit by bit."""

import functools
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from popgeo.capture.op_graph import Input, Number, Op, OpGraph, Ref, Role, Value, overload, substitute
from popgeo.capture.schemas import only_raises

# Bytes. Computing a larger tensor at each run is cheaper than keeping it.
_LARGEST_CONSTANT = 2**26
GATHER, SCATTER = "aten.index_select.default", "aten.index_add.default"


def merge_equal_values(graph: OpGraph) -> OpGraph:
    """Compute equal values once, and keep one view of each part of memory.

    Two operations are equal if they have the same name and arguments, draw no random numbers, and neither read nor
    return memory that an operation changes in place. Two values are one if they are the same part of the same memory.
    """
    mutated = graph.mutated_storages()
    stands_for: dict[int, int] = {}
    made: dict[Any, tuple[int, ...]] = {}
    shown: dict[Any, int] = {}
    moved: dict[int, int] = {}  # views of a removed value move to the memory of the value that replaces it
    for number in [*graph.inputs.values(), *graph.constants]:
        shown.setdefault((graph.values[number].storage, graph.values[number].layout), number)
    kept = []
    for old in graph.ops:
        op = replace_values(old, stands_for)
        touched = {graph.values[v].storage for v in (*op.reads(), *op.makes())}
        key = (op.target, _hashable(op.args), _hashable(tuple(sorted(op.kwargs.items()))))
        if not op.writes and not op.bodies and not is_random(op) and not touched & mutated:
            if key in made:
                for v, w in zip(op.makes(), made[key], strict=True):
                    stands_for[v] = stands_for.get(w, w)
                    left, kept_one = (_moved_to(graph.values[x].storage, moved) for x in (v, w))
                    if left != kept_one:  # views of equal values may lie in one memory already
                        moved[left] = kept_one
                continue
            made[key] = op.makes()
        if op.writes:  # a value that is changed in place keeps its number as a result
            own = tuple(stands_for.get(v, v) if v is not None else None for v in op.outputs)
            op = replace(op, outputs=own) if own != op.outputs and {*own} <= {None, *op.reads()} else op
        views = {v: shown.setdefault((graph.values[v].storage, graph.values[v].layout), v) for v in op.makes()}
        stands_for |= {v: w for v, w in views.items() if v != w}
        if op.writes or any(v == w for v, w in views.items()) or not views:
            kept.append(op)
    outputs = [stands_for.get(v, v) if v is not None else None for v in graph.outputs]
    return with_ops(graph, kept, outputs, values=[at_storage(value, moved) for value in graph.values])


def drop_unused(graph: OpGraph) -> OpGraph:
    """Remove operations on which neither results nor state depend.

    Random draws stay, to keep the stream of numbers. Operations that only raise errors stay, too.
    """
    values = graph.values
    needed = {v for v in graph.outputs if v is not None}
    seen = {values[v].storage for v in [*needed, *graph.inputs.values()]}
    kept = []
    for op in reversed(graph.ops):
        changes = any(values[v].storage in seen for v in op.writes)
        draws = is_random(op) and op.target != "popgeo.random_state.default"  # it only reads the state
        if changes or draws or _stays(op.target) or any(v in needed for v in op.makes()):
            kept.append(op)
            needed.update(op.reads())
            seen.update(values[v].storage for v in op.reads())
    return with_ops(graph, kept[::-1], graph.outputs)


def simplified(graph: OpGraph) -> OpGraph:
    """Return the graph with equal values merged and unused operations removed."""
    return drop_unused(merge_equal_values(graph))


def fold_constants(graph: OpGraph, changeable: Set[int] = frozenset()) -> OpGraph:
    """Compute all values that depend on no input, and make them constants of the graph.

    Args:
        graph: The graph.
        changeable: Constants that the user may change in place; values that depend on them are not computed.
    """
    mutated = graph.mutated_storages()
    known = {v: tensor for v, tensor in graph.constants.items() if v not in changeable}
    kept = []
    for op in graph.ops:
        storages = {graph.values[v].storage for v in (*op.reads(), *op.makes())}
        small = sum(graph.values[v].nbytes for v in op.makes()) <= _LARGEST_CONSTANT
        has_numbers = any(isinstance(argument, Number) for argument in op.args)
        varies = op.writes or op.bodies or is_random(op) or storages & mutated or has_numbers
        if varies or not small or not all(v in known for v in op.reads()):
            kept.append(op)
        else:
            with torch.no_grad():
                known |= run_op(op, known)
    used = {v for op in kept for v in op.reads()} | {v for v in graph.outputs if v is not None}
    known |= graph.constants
    return with_ops(graph, kept, graph.outputs, {v: tensor for v, tensor in known.items() if v in used})


def run_op(op: Op, values: Mapping[int, Any]) -> dict[int, Any]:
    """Run an operation on known tensors; return each result by the number of its value.

    Example:
        >>> run_op(Op(target="aten.relu.default", args=(Ref(0),), outputs=(1,)), {0: torch.tensor([-1.0, 1.0])})
        {1: tensor([0., 1.])}
    """
    args, kwargs = (substitute(given, values.__getitem__) for given in (op.args, op.kwargs))
    made = overload(op.target)(*args, **kwargs)
    results = made if isinstance(made, tuple | list) else (made,) if op.outputs else ()  # a check has no result
    return {v: result for v, result in zip(op.outputs, results, strict=True) if v is not None}


def is_random(op: Op) -> bool:
    """Check whether an operation draws random numbers.

    Example:
        >>> is_random(Op(target="aten.bernoulli.default", args=(), outputs=()))
        True
    """
    return any(is_random(inner) for body in op.bodies for inner in body.ops) if op.bodies else _draws(op.target)


@functools.cache
def _draws(target: str) -> bool:
    # Every pass asks for each operation, and torch's lookup of a name is slow.
    if target.startswith("native."):  # an operation of the engine, which torch does not know
        return False
    return torch.Tag.nondeterministic_seeded in overload(target).tags  # type: ignore[attr-defined]


@functools.cache
def _stays(target: str) -> bool:
    # Cached as `_draws` is. Loops and branches have no overload.
    return target.startswith("aten.") and only_raises(overload(target))


def replace_values(op: Op, stands_for: Mapping[int, int]) -> Op:
    """Return the same operation on other values."""
    if stands_for.keys().isdisjoint((*op.reads(), *op.writes)):
        return op
    return renumbered(op, lambda v: stands_for.get(v, v), lambda v: v)


def renumbered(op: Op, read: Callable[[int], int], made: Callable[[int], int], **changes: Any) -> Op:
    """Return an operation with other numbers for the values that it reads and makes."""
    args, kwargs = (substitute(given, lambda v: Ref(read(v))) for given in (op.args, op.kwargs))
    outputs = tuple(None if v is None else made(v) for v in op.outputs)
    return replace(op, args=args, kwargs=kwargs, outputs=outputs, writes=tuple(map(read, op.writes)), **changes)


def with_ops(
    graph: OpGraph,
    ops: Sequence[Op],
    outputs: Sequence[int | None],
    constants: Mapping[int, Tensor] | None = None,
    values: Sequence[Value] | None = None,
) -> OpGraph:
    """Return the graph with other operations; the producer of each value is set again."""
    known = graph.constants if constants is None else constants
    given = {*known, *graph.inputs.values()}
    numbered = with_producers(graph.values if values is None else values, ops, given)
    return replace(graph, ops=tuple(ops), values=numbered, outputs=tuple(outputs), constants=dict(known))


def with_producers(values: Sequence[Value], ops: Sequence[Op], given: Set[int]) -> tuple[Value, ...]:
    """Return the values with the first operation that makes each as its producer; None for given values."""
    producer = {v: index for index, op in reversed([*enumerate(ops)]) for v in op.makes() if v not in given}
    return tuple(value.made_by(producer.get(v)) for v, value in enumerate(values))


def at_storage(value: Value, moved: Mapping[int, int]) -> Value:
    """Return a value with the number of its new storage, if its storage was moved."""
    storage = _moved_to(value.storage, moved)
    return value if storage == value.storage else replace(value, storage=storage)


def _moved_to(storage: int, moved: Mapping[int, int]) -> int:
    while storage in moved:
        storage = moved[storage]
    return storage


def _hashable(argument: Any) -> Any:
    """Return a hashable form of an argument that tells 1 from 1.0 and True, and 0.0 from -0.0."""
    if isinstance(argument, list | tuple):
        return tuple(_hashable(item) for item in argument)
    return argument if isinstance(argument, Ref) else (type(argument), repr(argument))


def use_row_indexing(graph: OpGraph) -> tuple[OpGraph, frozenset[Input]]:
    """Replace `x[index]` by `index_select`, and its gradient by `index_add`, if one index picks rows.

    The results are equal, bit by bit, if no index is negative. So only indices that are part of an input are replaced.

    Returns:
        The graph, and the inputs to check for negative numbers at each run.
    """
    arguments = {graph.values[v].storage: given for given, v in graph.inputs_of(Role.ARGUMENT).items()}
    relied_on, mutated = set[Input](), graph.mutated_storages()
    ops = []
    for op in graph.ops:
        form = _row_form(graph, op)
        if form is not None and op.target != "aten.embedding.default":
            given = arguments.get(graph.values[op.args[1][0].value].storage)
            if given is None or graph.values[graph.inputs[given]].storage in mutated:
                form = None
            else:
                relied_on.add(given)
        ops.append(form or op)
    return with_ops(graph, ops, graph.outputs), frozenset(relied_on)


def without_row_indexing(graph: OpGraph, relied_on: frozenset[Input]) -> OpGraph:
    """Return the graph in the form that also takes negative indices in these inputs."""
    storages = {graph.values[graph.inputs[given]].storage for given in relied_on}
    ops = []
    for op in graph.ops:
        indexed = op.target in (GATHER, SCATTER) and op.args[1] == 0
        if indexed and graph.values[op.args[2].value].storage in storages and op.kwargs.get("alpha", 1) == 1:
            if op.target == GATHER:
                op = replace(op, target="aten.index.Tensor", args=(op.args[0], [op.args[2]]))
            else:
                arguments = (op.args[0], [op.args[2]], op.args[3], True)
                op = replace(op, target="aten.index_put.default", args=arguments, kwargs={})
        ops.append(op)
    return with_ops(graph, ops, graph.outputs)


def _row_form(graph: OpGraph, op: Op) -> Op | None:
    if op.target == "aten.embedding.default" and len(graph.values[op.args[1].value].shape) == 1:
        return replace(op, target=GATHER, args=(op.args[0], 0, op.args[1]), kwargs={})
    if op.target == "aten.index.Tensor" and _picks_rows(graph, op.args[1]):
        return replace(op, target=GATHER, args=(op.args[0], 0, op.args[1][0]))
    accumulates = op.target == "aten.index_put.default" and (*op.args, False)[3] is True
    if accumulates and _picks_rows(graph, op.args[1]):
        into, (index,), rows, _ = op.args
        shape = graph.values[rows.value].shape
        if shape == (graph.values[index.value].shape[0], *graph.values[into.value].shape[1:]):
            return replace(op, target=SCATTER, args=(into, 0, index, rows))
    return None


def _picks_rows(graph: OpGraph, indices: Sequence[Any]) -> bool:
    if len(indices) != 1 or not isinstance(indices[0], Ref):
        return False
    index = graph.values[indices[0].value]
    return len(index.shape) == 1 and index.dtype in (torch.int64, torch.int32)
