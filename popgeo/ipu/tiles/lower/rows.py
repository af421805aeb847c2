"""Rows of a table: their division over the tiles, and the rows that an operation indexes.

A table is cut into blocks of rows and columns, the lookups into parts. The transfers never depend on the index.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from popgeo.capture.op_graph import Op, Ref
from popgeo.ipu.tiles.lower.builder import Scope, cuts, part
from popgeo.ipu.tiles.steps import Operand, Region


def row_cuts_of(
    scope: Scope, family: str, rows: int, columns: int, lookups: int
) -> tuple[list[slice], list[slice], list[slice]]:
    """Return the parts of rows, columns and lookups that the plan of this family has chosen."""
    split = scope.plan.split_of(family)
    return cuts(rows, split["rows"]), cuts(columns, split["columns"]), cuts(lookups, split["lookups"])


def tiles_of(scope: Scope, *parts: Sequence[slice]) -> np.ndarray:
    """Return the tile of each combination of parts. [parts of the first dimension, ...]."""
    sizes = [len(cut) for cut in parts]
    return np.arange(math.prod(sizes)).reshape(sizes) % scope.builder.num_tiles


def as_rows(region: Region, dim: int) -> Region:
    """Return a region as a matrix with the slices along a dimension as rows."""
    moved = np.moveaxis(region.elements, dim, 0)
    return Region(variable=region.variable, elements=moved.reshape(moved.shape[0], math.prod(moved.shape[1:])))


def row_index(scope: Scope, op: Op) -> Region:
    """Return the index of rows; an index of elements is the same along the other dimensions."""
    index, dim = scope.region(op.args[2].value), op.args[1]
    return part(as_rows(index, dim), slice(None), 0) if index.elements.ndim > 1 else index


def names_rows(scope: Scope, op: Op) -> bool:
    """Check whether an index of elements selects whole rows: it covers the other dimensions by expansion."""
    index = scope.graph.values[op.args[2].value]
    if not index.shape:
        return False
    dim = op.args[1] % len(index.shape)
    others = [d for d in range(len(index.shape)) if d != dim]
    shapes = [scope.graph.values[arg.value].shape for arg in (op.args[0], *op.args[3:4])]
    covers = all(shape[d] == index.shape[d] for shape in shapes for d in others)
    return covers and index.numel > 0 and all(index.shape[d] == 1 or index.stride[d] == 0 for d in others)


def one_index(scope: Scope, op: Op) -> bool:
    """Check whether a single integer index selects slices along one dimension."""
    given = [index for index in op.args[1] if index is not None]
    if len(given) != 1 or not isinstance(given[0], Ref) or op.args[1][-1] is None:
        return False
    index = scope.graph.values[given[0].value]
    dim = len(op.args[1]) - 1
    plain = dim == 0 or len(index.shape) == 1
    return plain and index.dtype in (torch.int64, torch.int32) and (dim == 0 or op.target.startswith("aten.index."))


def rows_of_edges(scope: Scope, pointers: Region, num_edges: int) -> Region:
    """Return the row of each edge from the pointers to each row's edges; -1 for edges of no row."""
    at = np.arange(num_edges) // max(1, -(-num_edges // scope.builder.num_tiles))
    index = scope.builder.partial(scope.label, torch.int64, at)

    def work(tile: int, where: np.ndarray) -> tuple[list[Region], tuple[Any, ...]]:
        """Return the pointers, and the range of edges of a tile."""
        return [pointers], (Operand(0), int(where[0]), int(where[-1]) + 1)

    scope.compute(f"{scope.label}: rows of edges", "rows of edges", index, work)
    return index
