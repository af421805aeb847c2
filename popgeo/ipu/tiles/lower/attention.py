"""Attention: a tile takes the heads of a sample whole, since they are independent of each other."""

from collections.abc import Iterator

import numpy as np

from popgeo.capture.op_graph import Op, substitute
from popgeo.ipu.tiles.lower.builder import Lowering, Scope, cuts, part
from popgeo.ipu.tiles.lower.movement import copy
from popgeo.ipu.tiles.steps import Operand, Region, Vertex


def lowering_of(scope: Scope, op: Op) -> Lowering | None:
    """How attention is lowered; None where probabilities are dropped out or heads share keys and values."""
    position = 3 if op.target.startswith("aten._scaled_dot_product_flash_attention_for_cpu.") else 6
    is_dropped = len(op.args) > position and op.args[position] > 0
    first = 0 if position == 3 else 1
    query, key = (scope.value(op.args[k].value).shape for k in (first, first + 1))
    alike = len(query) == 4 and query[:2] == key[:2]
    return _lower if alike and not is_dropped else None


def _lower(scope: Scope, op: Op) -> None:
    """One compute set: a vertex for the part of each tile, every tensor cut by sample and head."""
    builder = scope.builder
    given = [scope.region(v) for v in op.reads()]
    samples, heads = next(r.elements.shape[:2] for r in given if r.elements.ndim == 4)
    if not samples * heads:
        return
    regions = [_by_head(region, samples, heads) for region in given]
    order = iter(range(len(regions)))
    arguments = substitute(op.args, lambda v: Operand(next(order)))
    keywords = {key: substitute(argument, lambda v: Operand(next(order))) for key, argument in op.kwargs.items()}
    results = [None if v is None else scope.region(v) for v in op.outputs]
    head_cuts = list(_head_cuts(samples, heads, builder.num_tiles))
    made = [
        None if r is None else builder.partial(scope.label, builder.dtype(r), _holders(r, head_cuts)) for r in results
    ]
    builder.compute(
        scope.label,
        [
            Vertex(
                tile=tile,
                operation=op.target,
                reads=tuple(part(region, *where) for region in regions),
                writes=tuple(None if r is None else part(r, *where) for r in made),
                arguments=arguments,
                keywords=keywords,
            )
            for tile, where in enumerate(head_cuts)
        ],
    )
    for result, here in zip(results, made, strict=True):
        if result is not None and here is not None:
            copy(scope, result, here)


def _by_head(region: Region, samples: int, heads: int) -> Region:
    """A mask for every sample and head; other tensors have these dimensions first."""
    elements = region.elements[None, None] if region.elements.ndim == 2 else region.elements
    whole = np.broadcast_to(elements, (samples, heads, *elements.shape[2:]))
    return Region(variable=region.variable, elements=whole)


def _head_cuts(samples: int, heads: int, tiles: int) -> Iterator[tuple[slice, slice]]:
    """Some heads of some samples for each tile that gets any: samples first, heads where there are fewer samples."""
    sample_cuts = cuts(samples, min(samples, tiles))
    for some in sample_cuts:
        for part_of_heads in cuts(heads, min(heads, max(1, tiles // len(sample_cuts)))):
            yield some, part_of_heads


def _holders(region: Region, head_cuts: list[tuple[slice, slice]]) -> np.ndarray:
    at = np.zeros(region.elements.shape, np.int32)
    for tile, where in enumerate(head_cuts):
        at[where] = tile
    return at
