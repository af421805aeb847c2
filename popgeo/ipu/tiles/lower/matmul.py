"""Lowers matrix products over a grid of rows, contraction and columns; partial products are added at the result."""

import itertools
from collections.abc import Iterator

import numpy as np

from popgeo.capture.op_graph import Op
from popgeo.ipu.tiles.lower.builder import Scope, cuts, part, reshaped
from popgeo.ipu.tiles.lower.elementwise import add
from popgeo.ipu.tiles.lower.movement import copy
from popgeo.ipu.tiles.lower.reduce import sum_of_parts
from popgeo.ipu.tiles.steps import Operand, Region, Vertex


def lower_matmul(scope: Scope, op: Op) -> None:
    """Add compute sets for each serial part, for the sum of partial products, and for the bias."""
    name = op.target.split(".")[1]
    *bias, left, right = (scope.region(v) for v in op.reads())
    out = scope.region(op.outputs[0])
    batches = left.elements.shape[0] if name in ("bmm", "baddbmm") else 1
    columns = right.elements.shape[-1] if right.elements.ndim > 1 else 1
    inner = left.elements.shape[-1]
    rows = left.elements.shape[-2] if left.elements.ndim > 1 else 1
    if not out.elements.size:
        return
    a, b = reshaped(left, batches, rows, inner), reshaped(right, batches, inner, columns)
    c = reshaped(out, batches, rows, columns)
    product = _product(scope, c, a, b, direct=not bias)
    if bias:
        beta, alpha = op.kwargs.get("beta", 1), op.kwargs.get("alpha", 1)
        add(scope, out, bias[0], reshaped(product, *out.elements.shape), beta=beta, alpha=alpha)
    elif product.variable != c.variable:
        copy(scope, out, reshaped(product, *out.elements.shape))


def _product(scope: Scope, c: Region, a: Region, b: Region, direct: bool) -> Region:
    """Multiply [batches, rows, inner] by [batches, inner, columns]; it writes to `c` if it fits and `direct` is set."""
    batches, rows, columns = c.elements.shape
    tiles, label, builder = scope.builder.num_tiles, scope.label, scope.builder
    split, sizes = scope.plan.split, {"rows": rows, "contraction": a.elements.shape[2], "columns": columns}
    row_cuts, inner_cuts, column_cuts = (cuts(size, split[key]) for key, size in sizes.items())
    blocks = list(itertools.product(range(batches), row_cuts, column_cuts))
    holders = np.zeros((len(inner_cuts), batches, rows, columns), np.int32)
    for depth, (place, (batch, across, down)) in itertools.product(range(len(inner_cuts)), enumerate(blocks)):
        holders[depth, batch, across, down] = (place * len(inner_cuts) + depth) % tiles
    products = scope.partials(c if direct else None, builder.dtype(c), holders)

    def vertices(serial_part: int) -> Iterator[Vertex]:
        """Yield the vertices of a serial part."""
        for depth, (batch, across, down) in itertools.product(range(len(inner_cuts)), blocks):
            for narrow in cuts(down.stop - down.start, split["serial"])[serial_part : serial_part + 1]:
                now = slice(down.start + narrow.start, down.start + narrow.stop)
                tile, both = int(holders[depth, batch, across.start, now.start]), (Operand(0), Operand(1))
                reads = part(a, batch, across, inner_cuts[depth]), part(b, batch, inner_cuts[depth], now)
                made = (part(products, depth, batch, across, now),)
                yield Vertex(tile=tile, operation="aten.mm.default", reads=reads, writes=made, arguments=both)

    for serial_part in range(split["serial"]):
        builder.compute(f"{label}: multiply", vertices(serial_part))
    return sum_of_parts(scope, products, c, direct)
