"""Packing of graphs into batches: pure functions of integer sizes."""

from popgeo.packing.assign import assign as assign
from popgeo.packing.decreasing import best_fit_decreasing as best_fit_decreasing
from popgeo.packing.decreasing import decreasing as decreasing
from popgeo.packing.efficiency import Efficiency as Efficiency
from popgeo.packing.efficiency import efficiency as efficiency
from popgeo.packing.efficiency import lower_bound as lower_bound
from popgeo.packing.optimal import optimal as optimal
from popgeo.packing.optimal import optimal_plan as optimal_plan
from popgeo.packing.packs import Budget as Budget
from popgeo.packing.packs import Packs as Packs
from popgeo.packing.packs import totals_of_packs as totals_of_packs
from popgeo.packing.size_plan import Histogram as Histogram
from popgeo.packing.size_plan import SizePlan as SizePlan
from popgeo.packing.size_plan import histogram as histogram
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
