"""Gives every storage of a captured program its tiles, and computes the storages' lifetimes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from popgeo.capture.op_graph import Op, OpGraph, Ref, Value, shape_text
from popgeo.capture.operations import operation_of
from popgeo.capture.passes import is_random
from popgeo.ipu.cost.elementwise import GRAIN_BYTES
from popgeo.ipu.cost.plan import Plan
from popgeo.ipu.tiles.tile_mapping import TileMapping, blocked, linear


def map_storages(
    graph: OpGraph, plans: Sequence[Plan], tiles: int, given: Mapping[int, TileMapping] | None = None
) -> dict[int, TileMapping]:
    """Return a mapping for each storage; a view has the mapping of its base.

    A result is on the tiles of its operation's plan, an element-wise result on the tiles of its most spread operand,
    and an input on the tiles of the first plan that reads it. All other storages are linear with a grain of 128 bytes.

    Args:
        graph: The captured program.
        plans: Plans of its operations, in order; without plans each storage is mapped linearly.
        tiles: Number of tiles.
        given: Mappings of storages that have a place.

    Returns:
        The mappings by storage number; elements count from the start of the storage.
    """
    sizes = storage_sizes(graph)
    mappings: dict[int, TileMapping] = dict(given or {})

    def place(storage: int, mapping: TileMapping | None) -> None:
        """Set the mapping of a storage; linear if the given mapping is None or of another size."""
        fits = mapping is not None and mapping.numel == sizes[storage][0]
        mappings[storage] = mapping if mapping is not None and fits else spread(sizes[storage], tiles)

    for op, plan in zip(graph.ops, plans, strict=False):
        if graph.is_view(op):
            continue
        wanted = _wanted(graph, op, plan, tiles)
        for v in op.reads():
            if graph.values[v].storage not in mappings:
                place(graph.values[v].storage, wanted.get(v))
        for made in op.outputs:
            if made is not None and graph.values[made].storage not in mappings:
                left = _left(plan, graph.values[made], tiles)
                place(graph.values[made].storage, left or _followed(graph, op, made, mappings))
    for storage in sizes:
        if storage not in mappings:
            place(storage, None)
    return mappings


def spread(size: tuple[int, int], tiles: int) -> TileMapping:
    """Return the linear mapping of elements of a given size."""
    return linear(size[0], tiles, max(1, GRAIN_BYTES // size[1]))


def storage_sizes(graph: OpGraph) -> dict[int, tuple[int, int]]:
    """Return elements and bytes per element of each storage; a storage viewed in two types counts in bytes."""
    found: dict[int, tuple[int, int]] = {}
    for value in graph.values:
        nbytes, itemsize = found.get(value.storage, (0, value.dtype.itemsize))
        found[value.storage] = max(nbytes, value.end), itemsize if itemsize == value.dtype.itemsize else 1
    return {storage: (nbytes // itemsize, itemsize) for storage, (nbytes, itemsize) in found.items()}


def _wanted(graph: OpGraph, op: Op, plan: Plan, tiles: int) -> dict[int, TileMapping | None]:
    """Return the mappings that a plan assumes for the operands of an operation, by value.

    Each block of a product's left matrix is spread over the tiles that share the block. A table is stored in
    the blocks of a gather's tiles, and summands in the parts of a scatter-add's tiles, unless several tiles share them.
    Matrices that many tiles share, such as weights, are mapped linearly.
    """
    split = plan.split
    if {"rows", "contraction", "columns"} <= split.keys():
        left = [arg.value for arg in op.args if isinstance(arg, Ref)][-2]
        rows = _side_by_side(graph.values[left], plan, tiles) * split["rows"] * split["columns"]
        return {left: _grid(graph.values[left], rows, split["contraction"], tiles, True)}
    operands = [v for v in op.reads() if graph.values[v].dtype.is_floating_point]
    wanted: dict[int, TileMapping | None] = {}
    if plan.family in ("gather", "fused") and operands:
        split = plan.split_of("gather")
        if split.get("lookups") == 1:
            wanted[operands[0]] = _grid(graph.values[operands[0]], split["rows"], split["columns"], tiles)
    if plan.family in ("scatter", "fused") and operands:
        split = plan.split_of("scatter")
        if split.get("rows") == 1:
            wanted[operands[-1]] = _grid(graph.values[operands[-1]], split["lookups"], split["columns"], tiles)
    return wanted


def _side_by_side(value: Value, plan: Plan, tiles: int) -> int:
    """Return the number of products of a batch that run at the same time, each on its own tiles."""
    batch = math.prod(value.shape[:-2])
    used = plan.split["rows"] * plan.split["columns"] * plan.split["contraction"]
    return max(1, min(batch, tiles // used))


def _left(plan: Plan, value: Value, tiles: int) -> TileMapping | None:
    """Return the mapping of a result that its plan implies; None if the plan implies none."""
    split = plan.split
    if split.get("contraction") == 1 and {"rows", "columns"} <= split.keys():
        return _grid(value, _side_by_side(value, plan, tiles) * split["rows"], split["columns"], tiles, True)
    if not {"rows", "columns", "lookups"} <= split.keys():
        return None
    if plan.family == "gather":
        return _grid(value, split["rows"] * split["lookups"], split["columns"], tiles)
    if plan.family in ("scatter", "fused") and split["lookups"] == 1:
        return _grid(value, split["rows"], split["columns"], tiles)
    return None


def _grid(value: Value, row_parts: int, column_parts: int, tiles: int, of_products: bool = False) -> TileMapping | None:
    """Return the mapping of one or several matrices in blocks; None if the value does not fill its storage."""
    shape, stride = value.shape, value.stride
    if len(shape) < 2 or value.offset:
        return None
    leading = shape[:-1] if of_products else shape[:1]
    rows, columns = math.prod(leading), math.prod(shape[len(leading) :])
    if len(shape) == 2 and stride == (1, rows):
        return blocked(columns, rows, column_parts, row_parts, tiles)
    if all(step == math.prod(shape[d + 1 :]) for d, step in enumerate(stride)):
        return blocked(rows, columns, row_parts, column_parts, tiles)
    return None


def _followed(graph: OpGraph, op: Op, v: int, mappings: dict[int, TileMapping]) -> TileMapping | None:
    """Return the mapping of the most spread operand with the layout of the result."""
    if operation_of(op.target).family not in ("elementwise", "movement", "losses") or is_random(op):
        return None
    value = graph.values[v]
    form, operands = (value.shape, value.stride, value.offset), [graph.values[r] for r in op.reads()]
    like = [mappings[one.storage] for one in operands if (one.shape, one.stride, one.offset) == form]
    alike = [mapping for mapping in like if mapping.numel == value.numel]
    return max(alike, key=lambda mapping: mapping.num_used, default=None)


ALIGNMENT = 8  # bytes; every variable of a tile starts at a multiple


@dataclass(frozen=True, kw_only=True, eq=False)
class Lifetime:
    """The operations between which a storage is needed, and its bytes on each tile.

    Attributes:
        name: Name of the input, or of the operation that makes it, with type and shape.
        source: Line of the model.
        nbytes: Bytes on each tile. int64[tiles]
        first: Position of the operation that makes it; -1 if it is there from the start.
        last: Position of the last operation that needs it.
    """

    name: str
    source: str
    nbytes: np.ndarray
    first: int
    last: int


def lives(graph: OpGraph, mappings: Mapping[int, TileMapping], num_tiles: int) -> dict[int, Lifetime]:
    """Return the lifetime of each storage that is an input, a constant or a result; views share one lifetime.

    Args:
        graph: The captured program.
        mappings: Mapping of each storage.
        num_tiles: Number of tiles.
    """
    sizes, last = storage_sizes(graph), graph.last_uses()
    names = {v: given.name for given, v in graph.inputs.items()} | dict.fromkeys(graph.constants, "constant")
    made = [(v, name, "", -1) for v, name in names.items()]
    bytes_of: dict[tuple[int, int], np.ndarray] = {}  # by mapping and bytes of an element
    for index, op in enumerate(graph.ops):
        if not graph.is_view(op):
            made += [(v, op.target.split(".")[1], op.source, index) for v in op.makes()]
    found: dict[int, Lifetime] = {}
    for v, name, source, first in made:
        storage = graph.values[v].storage
        if first < 0 or storage not in found:  # the last input of a storage names it, or the first operation
            mapping, width = mappings[storage], sizes[storage][1]
            if (key := (id(mapping), width)) not in bytes_of:
                bytes_of[key] = -(-mapping.elements_per_tile(num_tiles) * width // ALIGNMENT) * ALIGNMENT
            called = f"{name} {shape_text(graph.values[v])}"
            found[storage] = Lifetime(
                name=called, source=source, nbytes=bytes_of[key], first=first, last=last.get(storage, -1)
            )
    return found
