"""Which graphs share a batch: pure functions of integer sizes."""

from popgeo.packing.packs import Budget as Budget
from popgeo.packing.packs import Packs as Packs
from popgeo.packing.stream import stream as stream
from popgeo.packing.window import iter_window as iter_window
from popgeo.packing.window import window as window
