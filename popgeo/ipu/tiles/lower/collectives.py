"""Collectives: sums are added where the result lies, in the order of the shards; all else is moved in a pattern.

The tiles of several IPUs are in a row, so that a transfer may lead from any IPU to any other.
"""

import numpy as np
import torch

from popgeo.capture.op_graph import Op, overload
from popgeo.capture.operations import name_of
from popgeo.ipu.tiles.lower.builder import Lowering, Scope
from popgeo.ipu.tiles.lower.movement import assemble
from popgeo.ipu.tiles.lower.reduce import combine_partials

SUMS = frozenset({"popgeo.all_reduce", "popgeo.reduce_scatter"})


def lowering_of(scope: Scope, op: Op) -> Lowering | None:
    """How a collective is lowered; None where other processes hold some of the shards."""
    source, result = scope.value(op.reads()[0]), scope.value(next(iter(op.makes())))
    held = result.shape[0] if name_of(op.target) in ("popgeo.replicate", "popgeo.shard") else source.shape[0]
    if held != op.args[1]:
        return None
    return _add_up if name_of(op.target) in SUMS else _move


def _add_up(scope: Scope, op: Op) -> None:
    source, out = scope.region(op.reads()[0]), scope.region(op.outputs[0])
    if not out.elements.size:
        return
    shards, *shape = source.elements.shape
    places = torch.arange(int(np.prod(shape))).reshape(shape)
    if name_of(op.target) == "popgeo.reduce_scatter":  # where in the parts each element of the sum lies
        parts = overload("popgeo.shard.default")(places, shards, shards, op.args[2], 1)
        places = torch.argsort(parts.reshape(-1)).reshape(shape)
    where = np.broadcast_to(places.numpy(), source.elements.shape)
    combine_partials(scope, out, source, where, "sum", name="add shards")


def _move(scope: Scope, op: Op) -> None:
    """The pattern is found by moving the numbers of the elements instead of the elements."""
    source = scope.region(op.reads()[0])
    numbers = torch.arange(1, 1 + source.elements.size).reshape(source.elements.shape)
    pattern = overload(op.target)(numbers, *op.args[1:]).numpy().ravel()
    assemble(scope, scope.region(op.outputs[0]), [source], pattern)
