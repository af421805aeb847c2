"""Graphs in, one batch of fixed shape out."""

from popgeo.data.axes import Level
from popgeo.data.collate import FixedSizeCollater
from popgeo.data.fixed_size_options import FixedSizeOptions
from popgeo.data.flat_store import FlatStore
from popgeo.data.pad import Pad, unpad
from popgeo.data.trim import OverSizeStrategy
from popgeo.data.write import write

__all__ = ["FixedSizeCollater", "FixedSizeOptions", "FlatStore", "Level", "OverSizeStrategy", "Pad", "unpad", "write"]
