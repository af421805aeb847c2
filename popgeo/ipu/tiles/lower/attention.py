"""Lowers attention: a tile takes whole heads of a sample, since heads are independent of each other."""

import itertools

import numpy as np

from popgeo.capture.op_graph import Op
from popgeo.capture.schemas import argument_of
from popgeo.ipu.tiles.lower.builder import Scope, cuts
from popgeo.ipu.tiles.lower.elementwise import operands
from popgeo.ipu.tiles.lower.in_parts import in_parts
from popgeo.ipu.tiles.steps import Region


def divides(scope: Scope, op: Op) -> bool:
    """Check whether no probabilities are dropped out, and every head has its own keys and values."""
    query, key = (scope.graph.values[argument_of(op, name).value].shape for name in ("query", "key"))
    return len(query) == 4 and query[:2] == key[:2] and not argument_of(op, "dropout_p")


def lower_attention(scope: Scope, op: Op) -> None:
    """Add a vertex for the heads of each tile; every tensor is cut by sample and head."""
    given, arguments, keywords = operands(scope, op)
    samples, heads = next(r.elements.shape[:2] for r in given if r.elements.ndim == 4)
    regions = [_by_head(region, samples, heads) for region in given]
    results = [None if v is None else scope.region(v) for v in op.outputs]
    # Samples first, heads if there are fewer samples than tiles.
    sample_cuts = cuts(samples, min(samples, scope.builder.num_tiles))
    head_cuts = cuts(heads, min(heads, max(1, scope.builder.num_tiles // len(sample_cuts))))
    parts = dict(enumerate(itertools.product(sample_cuts, head_cuts)))
    in_parts(scope, op.target, regions, results, parts, arguments, keywords=keywords)


def _by_head(region: Region, samples: int, heads: int) -> Region:
    """Return a region with samples and heads as its first dimensions, also for a mask without them."""
    elements = region.elements[None, None] if region.elements.ndim == 2 else region.elements
    whole = np.broadcast_to(elements, (samples, heads, *elements.shape[2:]))
    return Region(variable=region.variable, elements=whole)
