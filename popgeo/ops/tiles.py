"""The ops as a machine of tiles computes them: each tile sees its own rows and what was sent to it, nothing else.

Slow and in plain Python, for small cases: it proves that the compiled kernels compute what the machine would.
"""

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from popgeo.ops.plan import ScatterPlan


@dataclass(frozen=True, kw_only=True, eq=False)
class Tile:
    """The part of a plan that one tile holds.

    Args:
        rows: The rows that it owns, of the whole result.
        edges: The edges whose messages it must be sent, in the order in which it walks them. int64 [num_own_edges]
        rowptr: Where the edges of each own row start among those. int64 [len(rows) + 1]
    """

    rows: range
    edges: Tensor
    rowptr: Tensor


def divide(plan: ScatterPlan) -> list[Tile]:
    """The tiles of a plan; their rows follow one another and together are all rows.

    Example:
        >>> plan = ScatterPlan.from_index(torch.tensor([0, 0, 0, 1, 2]), num_rows=3).set_tiles(2)
        >>> [(tile.rows, tile.edges.tolist()) for tile in divide(plan)]
        [(range(0, 1), [0, 1, 2]), (range(1, 3), [3, 4])]
    """
    rowptr = plan.rowptr.long()
    order = torch.arange(plan.index.shape[0]) if plan.perm is None else plan.perm.long()
    starts = plan.tile_starts().tolist()
    return [
        Tile(
            rows=range(start, stop),
            edges=order[rowptr[start] : rowptr[stop]],
            rowptr=rowptr[start : stop + 1] - rowptr[start],
        )
        for start, stop in itertools.pairwise(starts)
    ]


def scatter_sum(src: Tensor, plan: ScatterPlan) -> Tensor:
    """`reference.scatter_sum`, tile by tile. [num_rows, channels]"""
    return torch.cat([_sum_rows(tile, src[tile.edges].clone()) for tile in divide(plan)])


def cfconv(x: Tensor, w: Tensor, src: Tensor, plan: ScatterPlan) -> Tensor:
    """`reference.cfconv`, tile by tile; the plan is that of the destinations. [num_nodes, channels]"""
    results = []
    for tile in divide(plan):
        nodes, filters = x[src[tile.edges]].clone(), w[tile.edges].clone()  # all that the tile is sent
        results.append(_sum_rows(tile, nodes * filters))
    return torch.cat(results)


def cfconv_backward(grad: Tensor, x: Tensor, w: Tensor, dst: Tensor, plan: ScatterPlan) -> tuple[Tensor, Tensor]:
    """`reference.cfconv_backward`, tile by tile; the plan is that of the sources. As x and as w"""
    grad_x, grad_w = [], torch.empty_like(w)
    for tile in divide(plan):
        arriving, filters = grad[dst[tile.edges]].clone(), w[tile.edges].clone()
        own = x[tile.rows.start : tile.rows.stop].repeat_interleave(tile.rowptr.diff(), dim=0)
        grad_x.append(_sum_rows(tile, arriving * filters))
        grad_w[tile.edges] = own * arriving  # sent back to where the edges live
    return torch.cat(grad_x), grad_w


def _sum_rows(tile: Tile, messages: Tensor) -> Tensor:
    """Each own row, edge after edge, starting at zero. [len(tile.rows), channels]"""
    out = messages.new_zeros(len(tile.rows), messages.shape[1])
    for row in range(len(tile.rows)):
        for edge in range(int(tile.rowptr[row]), int(tile.rowptr[row + 1])):
            out[row] = out[row] + messages[edge]
    return out
