"""All figures of popgeo: functions of DataFrames or arrays that draw on one Axes and return it.

All figures have one style, which applies during a call. Nothing of matplotlib's global state changes, no figure is
registered with pyplot, and the arguments stay unchanged. Each function draws on the Axes `ax`, or on a new figure:
`loss_curve(history).figure`. A table without a required column raises a ValueError that names the column.
"""

from popgeo.plots.graphs import adjacency as adjacency
from popgeo.plots.graphs import batch_layout as batch_layout
from popgeo.plots.graphs import size_histogram as size_histogram
from popgeo.plots.grids import surfaces as surfaces
from popgeo.plots.machine import agreement as agreement
from popgeo.plots.machine import bsp_timeline as bsp_timeline
from popgeo.plots.machine import cycles_by as cycles_by
from popgeo.plots.machine import liveness as liveness
from popgeo.plots.machine import memory_by_kind as memory_by_kind
from popgeo.plots.machine import memory_by_tile as memory_by_tile
from popgeo.plots.molecule import molecule as molecule
from popgeo.plots.packing import batch_fill as batch_fill
from popgeo.plots.packing import batch_mean_sizes as batch_mean_sizes
from popgeo.plots.packing import efficiency_over_budget as efficiency_over_budget
from popgeo.plots.packing import strategies as strategies
from popgeo.plots.pipelines import cycles_by_ipu as cycles_by_ipu
from popgeo.plots.pipelines import memory_by_ipu as memory_by_ipu
from popgeo.plots.pipelines import pipeline_timeline as pipeline_timeline
from popgeo.plots.style import COLORS as COLORS
from popgeo.plots.style import PALETTE as PALETTE
from popgeo.plots.style import REFERENCE as REFERENCE
from popgeo.plots.style import THEME as THEME
from popgeo.plots.style import panels as panels
from popgeo.plots.training import loss_curve as loss_curve
from popgeo.plots.training import prediction_scatter as prediction_scatter
