"""Graphs in, one batch of fixed shape out."""

from popgeo.data.collate import FixedSizeCollater
from popgeo.data.flat_store import FlatStore
from popgeo.data.levels import Level
from popgeo.data.pad import Pad
from popgeo.data.sizes import FixedSizeOptions
from popgeo.data.trim import OverSizeStrategy
from popgeo.data.unpad import unpad

__all__ = ["FixedSizeCollater", "FixedSizeOptions", "FlatStore", "Level", "OverSizeStrategy", "Pad", "unpad"]
