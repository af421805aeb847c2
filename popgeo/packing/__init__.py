"""Which graphs share a batch: pure functions of integer sizes."""

from popgeo.packing.budget import Efficiency as Efficiency
from popgeo.packing.budget import efficiency as efficiency
from popgeo.packing.budget import lower_bound as lower_bound
from popgeo.packing.packs import Budget as Budget
from popgeo.packing.packs import Packs as Packs
from popgeo.packing.stream import stream as stream
from popgeo.packing.tune import Shape as Shape
from popgeo.packing.tune import tune as tune
from popgeo.packing.window import iter_window as iter_window
from popgeo.packing.window import window as window
