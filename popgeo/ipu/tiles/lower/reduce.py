"""Lowers reductions: each tile reduces the elements that it holds, then the tiles of the result combine these."""

import math
from typing import Any

import numpy as np
import torch

from popgeo.capture.op_graph import Op
from popgeo.capture.operations import name_of
from popgeo.capture.schemas import argument_of, position_of
from popgeo.ipu.tiles.lower.builder import Scope, flat, grouped, part
from popgeo.ipu.tiles.steps import Operand, Region

MANY_PARTIALS = 16  # least partial results per element for which a stage of groups pays
PARTIALS_SPREAD_OVER = 32  # least results on each tile for which all tiles work without groups
_HOW = {
    "aten.sum": "sum", "aten.mean": "sum", "aten.prod": "prod", "aten.amax": "amax", "aten.amin": "amin",
    "aten.any": "any", "aten.all": "all", "aten.max": "amax", "aten.min": "amin",
}  # fmt: skip
_KINDS = ("dim_IntList", "dim", "dim_int", "dims")


def divides(scope: Scope, op: Op) -> bool:
    """Check whether a reduction may take any order, and does not return the place of a maximum or minimum."""
    name, kind = name_of(op.target), op.target.rpartition(".")[2]
    combines = kind == "default" or (kind in _KINDS and name not in ("aten.max", "aten.min"))
    return len(op.outputs) == 1 and combines


def lower_reduce(scope: Scope, op: Op) -> None:
    """Add two compute sets, or one if no tile holds several elements of a result."""
    name = name_of(op.target)
    source, out = scope.region(op.reads()[0]), scope.region(op.outputs[0])
    dims = dims_of(op, source.elements.ndim)
    dims = list(range(source.elements.ndim)) if dims is None else dims
    kept = [1 if d in dims else size for d, size in enumerate(source.elements.shape)]
    places = np.broadcast_to(np.arange(math.prod(kept)).reshape(kept), source.elements.shape)
    scale = 1 / max(math.prod(source.elements.shape[d] for d in dims), 1) if name == "aten.mean" else None
    combine(scope, out, source, places, _HOW[name], scale)


def combine(
    scope: Scope, out: Region, source: Region, places: np.ndarray, how: str, scale: float | None = None
) -> None:
    """Reduce elements that have the same place in the result, first on each tile, then between tiles.

    Args:
        scope: The operation to lower, with its operands.
        out: Region to write.
        source: Region to reduce.
        places: Position in `out`, in row-major order, of each element of `source`. [source shape]
        how: `sum`, `prod`, `amax`, `amin`, `any` or `all`.
        scale: Factor of the results. Default: none.
    """
    builder = scope.builder
    places = places.ravel()
    at = builder.holders(source).ravel()
    if (at != builder.holders(out).ravel()[places]).any():
        keys, partial_of = np.unique(at.astype(np.int64) * out.elements.size + places, return_inverse=True)
        if len(keys) < source.elements.size:
            between = builder.partial(scope.label, _partial_type(builder.dtype(out)), keys // out.elements.size)
            _reduce(scope, "reduce on each tile", between, source, partial_of, how)
            combine_partials(scope, out, between, keys % out.elements.size, how, scale)
            return
    combine_partials(scope, out, source, places, how, scale, name="reduce on each tile")


def combine_partials(
    scope: Scope,
    out: Region,
    source: Region,
    places: np.ndarray,
    how: str,
    scale: float | None = None,
    name: str = "combine partial results",
) -> None:
    """Reduce elements of different tiles; if many have the same place, first in groups over all tiles.

    Arguments are as in `combine`; `name` is the name of the compute sets.
    """
    builder = scope.builder
    places = places.ravel()
    each = source.elements.size // max(out.elements.size, 1)
    if each >= MANY_PARTIALS and out.elements.size < builder.num_tiles * PARTIALS_SPREAD_OVER:
        groups = math.isqrt(each)
        order = np.argsort(places, kind="stable")
        rank = np.empty_like(order)
        firsts = np.searchsorted(places[order], np.arange(out.elements.size))
        rank[order] = np.arange(len(order)) - firsts[places[order]]
        group = np.minimum(rank * groups // each, groups - 1)
        used = min(groups * out.elements.size, builder.num_tiles)
        holders = np.arange(groups * out.elements.size) * used // (groups * out.elements.size)
        between = builder.partial(scope.label, _partial_type(builder.dtype(out)), holders)
        _reduce(scope, f"{name}, groups", between, source, group * out.elements.size + places, how)
        source, places = between, np.arange(groups * out.elements.size) % out.elements.size
    _reduce(scope, name, out, source, places, how, scale)


def sum_of_parts(scope: Scope, parts: Region, out: Region, direct: bool, how: str = "sum") -> Region:
    """Return the region of the sum of parts: the only part, or a region with the mapping of the result.

    Args:
        scope: The operation to lower, with its operands.
        parts: Region of the parts. [parts, ...]
        out: The result.
        direct: Whether the sum is the result, so that it is written to `out`; otherwise it has the mapping of `out`.
        how: Reduction, as in `combine`.
    """
    if len(parts.elements) == 1:
        return part(parts, 0)
    builder = scope.builder
    whole = out if direct else builder.partial(scope.label, builder.dtype(out), builder.holders(out))
    places = np.broadcast_to(np.arange(out.elements.size).reshape(out.elements.shape), parts.elements.shape)
    combine_partials(scope, whole, parts, places, how, name="add partial sums")
    return whole


def _reduce(
    scope: Scope, name: str, out: Region, source: Region, places: np.ndarray, how: str, scale: float | None = None
) -> None:
    """Add a compute set; each tile of `out` reduces all elements for its part."""
    at = scope.builder.holders(out).ravel()
    members_of = dict(grouped(at[places]))
    nothing = np.array([], np.int64)
    local = np.zeros(len(at), np.int64)
    dtype = scope.builder.dtype(out)

    def work(tile: int, where: np.ndarray) -> tuple[list[Region], tuple[Any, ...]]:
        """Return the elements for the part of a tile, and their local places."""
        local[where] = np.arange(len(where))
        members = members_of.get(tile, nothing)
        return [flat(source, members)], (Operand(0), local[places[members]], len(where), how, dtype, scale)

    scope.compute(f"{scope.label}: {name}", "reduce", out, work)


def dims_of(op: Op, rank: int) -> list[int] | None:
    """Return the dimensions that an operation works along, by its schema; None if the schema has no `dim`."""
    if position_of(op, "dim") is None:
        return None
    given = argument_of(op, "dim")
    if given is None or given == [] or rank == 0:
        return list(range(rank))
    return sorted(d % rank for d in (given if isinstance(given, list | tuple) else [given]))


def _partial_type(dtype: torch.dtype) -> torch.dtype:
    """Return the type of partial results."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
