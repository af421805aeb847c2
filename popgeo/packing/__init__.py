"""Which graphs share a batch: pure functions of integer sizes."""

from popgeo.packing.budget import Efficiency as Efficiency
from popgeo.packing.budget import efficiency as efficiency
from popgeo.packing.budget import lower_bound as lower_bound
from popgeo.packing.packs import Budget as Budget
from popgeo.packing.packs import Packs as Packs
from popgeo.packing.stream import stream as stream
from popgeo.packing.summary import fill as fill
from popgeo.packing.summary import mean_sizes as mean_sizes
from popgeo.packing.summary import summary as summary
from popgeo.packing.summary import sweep as sweep
from popgeo.packing.summary import variance_ratio as variance_ratio
from popgeo.packing.tune import Shape as Shape
from popgeo.packing.tune import tune as tune
from popgeo.packing.window import iter_window as iter_window
from popgeo.packing.window import window as window
