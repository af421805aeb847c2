"""Which graphs share a batch: pure functions of integer sizes."""

from popgeo.packing.packs import Budget as Budget
from popgeo.packing.packs import Packs as Packs
from popgeo.packing.stream import stream as stream
