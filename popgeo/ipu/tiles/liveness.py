"""The life of each storage of a captured program: from which operation to which it is needed, and its bytes by tile."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from popgeo.capture.op_graph import OpGraph, Value
from popgeo.ipu.tiles.map_tensors import storage_sizes
from popgeo.ipu.tiles.tile_mapping import TileMapping

ALIGNMENT = 8  # bytes; every variable of a tile starts at a multiple


@dataclass(frozen=True, kw_only=True, eq=False)
class Life:
    """When a storage of the program is needed, and how much of each tile it takes.

    Attributes:
        name: An input's name, or the operation that makes it, with type and shape.
        source: The model's line behind it.
        nbytes: Bytes on each tile. int64[tiles]
        first: The operation that makes it; -1 where it is there from the start.
        last: The last operation that needs it.
    """

    name: str
    source: str
    nbytes: np.ndarray
    first: int
    last: int


def lives(graph: OpGraph, mappings: Mapping[int, TileMapping], num_tiles: int) -> dict[int, Life]:
    """The life of each storage that an operation touches or that the program is given; views share one.

    Args:
        graph: The captured program.
        mappings: Where each storage lies.
        num_tiles: Tiles there are.
    """
    sizes = storage_sizes(graph)
    names = {v: given.name for given, v in graph.inputs.items()} | dict.fromkeys(graph.constants, "constant")
    found: dict[int, tuple[str, str, int]] = {
        graph.values[v].storage: (f"{name} {_shape(graph.values[v])}", "", -1) for v, name in names.items()
    }
    last = dict.fromkeys(found, -1) | graph.last_uses()
    for index, op in enumerate(graph.ops):
        name = op.target.split(".")[1]
        for v in () if graph.is_view(op) else op.makes():
            found.setdefault(graph.values[v].storage, (f"{name} {_shape(graph.values[v])}", op.source, index))
    return {
        storage: Life(
            name=name,
            source=source,
            nbytes=_bytes_per_tile(mappings[storage], sizes[storage][1], num_tiles),
            first=first,
            last=last[storage],
        )
        for storage, (name, source, first) in found.items()
    }


def _bytes_per_tile(mapping: TileMapping, itemsize: int, num_tiles: int) -> np.ndarray:
    nbytes = mapping.elements_per_tile(num_tiles) * itemsize
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _shape(value: Value) -> str:
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
