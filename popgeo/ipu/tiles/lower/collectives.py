"""Lowers collectives: the tiles of the result add shards in their order; other collectives only move elements.

The tiles of several IPUs are numbered in a row, so a transfer may lead from any IPU to any other.
"""

import numpy as np
import torch

from popgeo.capture.op_graph import Op, overload
from popgeo.capture.operations import name_of
from popgeo.ipu.tiles.lower.builder import Scope
from popgeo.ipu.tiles.lower.movement import lower_pattern
from popgeo.ipu.tiles.lower.reduce import combine_partials


def divides(scope: Scope, op: Op) -> bool:
    """Check whether this process holds all shards."""
    source, result = scope.graph.values[op.reads()[0]], scope.graph.values[op.makes()[0]]
    held = result.shape[0] if name_of(op.target) in ("popgeo.replicate", "popgeo.shard") else source.shape[0]
    return held == op.args[1]


def lower_sum_of_shards(scope: Scope, op: Op) -> None:
    """Lower popgeo.all_reduce and popgeo.reduce_scatter: each tile sums its elements."""
    source, out = scope.region(op.reads()[0]), scope.region(op.outputs[0])
    if not out.elements.size:
        return
    shards, *shape = source.elements.shape
    places = torch.arange(int(np.prod(shape))).reshape(shape)
    if name_of(op.target) == "popgeo.reduce_scatter":  # the place of each element of the sum in the parts
        parts = overload("popgeo.shard.default")(places, shards, shards, op.args[2], 1)
        places = torch.argsort(parts.reshape(-1)).reshape(shape)
    where = np.broadcast_to(places.numpy(), source.elements.shape)
    combine_partials(scope, out, source, where, "sum", name="add shards")


lower_collectives = lower_pattern  # of a collective that only moves elements
