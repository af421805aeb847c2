"""Graphs in, one batch of fixed shape out."""

from popgeo.data.arrays import as_arrays
from popgeo.data.axes import Level
from popgeo.data.bridges import GraphsTuple, to_graphs_tuple
from popgeo.data.collate import FixedSizeCollater
from popgeo.data.fixed_size_options import FixedSizeOptions
from popgeo.data.flat_store import FlatStore
from popgeo.data.pad import Pad, unpad
from popgeo.data.trim import OverSizeStrategy
from popgeo.data.write import write

__all__ = [
    "FixedSizeCollater",
    "FixedSizeOptions",
    "FlatStore",
    "GraphsTuple",
    "Level",
    "OverSizeStrategy",
    "Pad",
    "as_arrays",
    "to_graphs_tuple",
    "unpad",
    "write",
]
