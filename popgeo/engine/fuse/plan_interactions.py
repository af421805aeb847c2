"""Gives interactions working memory, and leaves out gradients that nothing reads."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily

from popgeo.capture.op_graph import Op, OpGraph, Value, substitute
from popgeo.capture.passes import drop_unused, with_ops
from popgeo.capture.value_list import ValueList
from popgeo.engine.fuse.def_use import DefUse, ref
from popgeo.native import library
from popgeo.ops import interaction_call
from popgeo.ops.interaction_call import InteractionCall
from popgeo.ops.interaction_ops import NUM_ARGUMENTS, serves_second

FORWARD, BACKWARD, SECOND, PLAN = (f"popgeo.interaction{one}.default" for one in ("", "_backward", "_second", "_plan"))
CFCONV = "popgeo.cfconv.default"


def plan_interactions(graph: OpGraph) -> OpGraph:
    """Return the graph with working memory for its interactions, and backward passes that make only needed gradients.

    An interaction that the kernels do not support runs as torch's operation.
    """
    if not any(op.target in (FORWARD, BACKWARD, SECOND) for op in graph.ops) or not interaction_call.is_served():
        return graph
    uses, values = DefUse(graph), ValueList(graph.values)
    ops: list[Op] = []
    for op in graph.ops:
        if op.target in (BACKWARD, SECOND):
            op = _without_unread_gradients(uses, op)
        if op.target in (FORWARD, BACKWARD, SECOND) and _is_served(uses, op):
            nbytes = _stand_in(op, uses).workspace_bytes(is_second=op.target == SECOND)
            op = dataclasses.replace(op, outputs=(*op.outputs, values.new((nbytes,), torch.uint8)))
        ops.append(op)
    return drop_unused(with_ops(graph, ops, graph.outputs, values=values))


def eager_workspace(target: str, args: Sequence[Any]) -> int:
    """Return the bytes of working memory that an operation allocates in eager code, in addition to its results.

    Args:
        target: Name of the operation.
        args: Its arguments; tensors may be stand-ins.
    """
    if target not in (FORWARD, BACKWARD, SECOND) or not interaction_call.is_served():
        return 0
    with unset_fake_temporarily():
        given: list[Any] = [_alike(one) if isinstance(one, Tensor) else one for one in args[:NUM_ARGUMENTS]]
        call = InteractionCall(*given)
        return call.workspace_bytes(is_second=target == SECOND) if call.is_served() else 0


def describe_interactions(joined: OpGraph) -> str:
    """Return a text: how many interactions of a graph have filters on a grid; empty without interactions.

    Args:
        joined: The graph that runs.
    """
    count = sum(op.target == FORWARD for op in joined.ops)
    total = count + len({ref(op.args[1]) for op in joined.ops if op.target == CFCONV})
    text = f"{count} of {total} interactions with filters on a grid" if total else ""
    reason = "" if library.is_available() else " (the compiled kernels are not in use: `popgeo info` says why)"
    return text and text + reason


def _is_served(uses: DefUse, op: Op) -> bool:
    """Return whether the kernels can read the operands: contiguous, and never changed in place."""
    call: Any = InteractionCall(*op.args[:NUM_ARGUMENTS])
    num_edges = uses.graph.values[call.src.value].shape[0]
    values = [(ref(t), uses.graph.values[ref(t)]) for t in (*call.tensors, call.plan, call.weights) if t is not None]
    return (
        call.plan is not None
        and _stand_in(op, uses).is_served()
        and all(uses.is_plain(v, value.shape, value.dtype) for v, value in values)
        and all(uses.is_plain(ref(index), (num_edges,), torch.int64) for index in (call.src, call.dst))
        and (op.target != SECOND or serves_second(*op.args[-3:-1]))
    )


def _stand_in(op: Op, uses: DefUse) -> InteractionCall:
    """Return the call with stand-in tensors, which have a shape and a type but almost no memory."""
    return InteractionCall(*substitute(op.args[:NUM_ARGUMENTS], lambda v: _alike(uses.graph.values[v])))


def _alike(of: Tensor | Value) -> Tensor:
    """Return a tensor of the same shape and type in the memory of one element."""
    return torch.empty(1, dtype=of.dtype).expand(of.shape)


def _without_unread_gradients(uses: DefUse, op: Op) -> Op:
    """Return a backward pass without unread gradients; training, for example, does not read gradients of positions."""
    made = iter(op.outputs)
    kept = [next(made) if is_wanted else None for is_wanted in op.args[-1]]
    kept = [v if v in uses.users or v in uses.returned else None for v in kept]
    wanted = [v is not None for v in kept]
    return dataclasses.replace(op, args=(*op.args[:-1], wanted), outputs=tuple(v for v in kept if v is not None))
