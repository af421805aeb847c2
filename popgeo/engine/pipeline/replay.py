"""Finds the operations of a forward pass that can run again before the backward pass with the same results."""

from collections.abc import Sequence, Set

from popgeo.capture.op_graph import OpGraph, Role
from popgeo.engine.pipeline.random_draws import draws
from popgeo.engine.pipeline.staging import Recompute

_SEEN_OUTSIDE = ("popgeo.print_tensor.default",)  # a user would see it twice


def replayable(graph: OpGraph, own: Sequence[int], recompute: Recompute, *, is_last: bool = False) -> set[int]:
    """Return the operations of a pass that may run twice without drawing, printing or changing anything twice.

    The second run changes a copy in place, which needs all other operations that change the same memory to run again
    too. An operation that draws random numbers does not run again: its result is kept.

    Args:
        graph: The whole step.
        own: The operations of the pass.
        recompute: The layers whose results are kept.
        is_last: Whether the pass ends with the loss. Default: False.
    """
    kept = kept_results(graph, own, recompute, is_last=is_last)
    found = {i for i in own if i not in kept and not draws(graph.ops[i]) and not _is_seen(graph, i)}
    makers: dict[int, set[int]] = {}  # operations that make or change each storage
    for index, op in enumerate(graph.ops):
        for v in () if graph.is_view(op) else (*op.makes(), *op.writes):
            makers.setdefault(graph.values[v].storage, set()).add(index)
    arguments = {graph.values[v].storage for v in graph.inputs_of(Role.ARGUMENT).values()}
    ops, values, changed = graph.ops, graph.values, graph.mutated_storages()
    while True:  # each removal may make further operations unsafe
        unsafe = {storage for storage in changed if storage in arguments or not makers[storage] <= found}
        broken = {i for i in found if any(values[v].storage in unsafe for v in (*ops[i].reads(), *ops[i].makes()))}
        if not broken:
            return found
        found -= broken


def _is_seen(graph: OpGraph, index: int) -> bool:
    op = graph.ops[index]
    inner = [one.target for body in op.bodies for one in body.ops]
    return any(target in _SEEN_OUTSIDE for target in (op.target, *inner))


def kept_results(graph: OpGraph, own: Sequence[int], recompute: Recompute, *, is_last: bool) -> set[int]:
    """Return the operations of a repeated pass with results that are kept; see `replayable` for the arguments."""
    kept = leaving(graph, recompute)
    return kept | before_the_loss(graph, own, kept) if is_last and not recompute.last_stage else kept


def before_the_loss(graph: OpGraph, own: Sequence[int], kept: Set[int]) -> set[int]:
    """Return the operations of the last stage on which no kept result depends: they lead to the loss only.

    PopART keeps their results as well ("operations are run twice in a row with no benefit to liveness",
    willow/src/transforms/pipeline.cpp, `setFinalFwdStageRecomputation`), and so does TensorFlow.

    Args:
        graph: The whole step.
        own: The operations of the last stage's forward pass, in order.
        kept: The operations whose results are kept.
    """
    leading: set[int] = set()  # storages that a kept result depends on
    found = set()
    for index in reversed(own):
        op = graph.ops[index]
        if index in kept or not leading.isdisjoint(graph.values[v].storage for v in (*op.makes(), *op.writes)):
            leading |= {graph.values[v].storage for v in op.reads()}
        else:
            found.add(index)
    return found


def leaving(graph: OpGraph, recompute: Recompute) -> set[int]:
    """Return the operations with results that leave a layer in `recompute.layers`."""
    if not recompute.layers:
        return set()
    maker: dict[int, int] = {}  # operation that made each storage
    kept = set()
    for index, op in enumerate(graph.ops):
        if graph.is_view(op):
            continue
        for v in op.reads() if op.phase == "forward" else ():
            made = maker.get(graph.values[v].storage)
            layer = "" if made is None else recompute.keeps(graph.ops[made].module)
            if made is not None and layer and recompute.keeps(op.module) != layer:
                kept.add(made)
        maker |= {graph.values[v].storage: index for v in op.makes()}
    return kept
