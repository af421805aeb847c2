"""Tables for figures, and the figures."""

from types import SimpleNamespace

import numpy as np
import pandas as pd

from popgeo import plots

HISTORY = pd.DataFrame(
    {"epoch": [1, 2, 3], "train_mae": [900.0, 500.0, 400.0], "validation_mae": [800.0, 600.0, 550.0]}
)
FILL = pd.DataFrame({"nodes": [0.98, 0.96], "edges": [0.9, 0.8], "graphs": [0.5, 0.7]})
EFFICIENCY = pd.DataFrame(
    {"strategy": ["window", "stream", "window"], "num_nodes": [128, 64, 64], "efficiency": [0.99, 0.9, 0.95]}
)
BOUND = pd.DataFrame({"num_nodes": [128, 64], "efficiency": [1.0, 0.97]})
SUMMARY = pd.DataFrame({"strategy": ["pad to max", "window"], "nodes": [0.62, 0.99], "edges": [0.6, 0.98]})
GRID = pd.DataFrame(
    {
        "op": ["gather"] * 3 + ["scatter"],
        "rows": [64, 128, 64, 64],
        "channels": [16, 16, 32, 16],
        "ratio": [2.0, 0.5, 8, 1],
    }
)
MEASURED = pd.DataFrame({"op": ["gather", "scatter"], "measured": [1e3, 2e3], "modelled": [1.1e3, 1.9e3]})
EDGES, REAL = np.array([[0, 1, 3], [1, 0, 3]]), np.array([True, True, True, False])
WATER = SimpleNamespace(
    z=np.array([8, 1, 1, 0]),  # the last atom is padding
    pos=np.array([[0.0, 0, 0], [0.76, 0.59, 0], [-0.76, 0.59, 0], [9, 9, 9]]),
    edge_index=np.array([[0, 1, 0, 2], [1, 0, 2, 0]]),
    edge_attr=np.eye(4)[[0, 0, 0, 0]],
)
SUPERSTEPS = pd.DataFrame({"activity": ["exchange", "compute"], "start": [0, 300], "length": [300, 900]})
BLOCKS = pd.DataFrame({"module": ["a", "b"], "compute": [9, 20], "exchange": [5, 1], "sync": [1, 1]})
TILES = pd.DataFrame({"values": [100, 80], "stack": [32, 32]})
GIVEN = (HISTORY, FILL, EFFICIENCY, BOUND, SUMMARY, GRID, SUPERSTEPS, BLOCKS, TILES)
PRISTINE = [table.copy() for table in GIVEN]  # copies made before any test
PACKED, IID = np.array([17.5, 18.5, 18.0]), np.array([15.0, 21.0, 18.0])

DRAW = {
    "loss_curve": lambda ax=None: plots.loss_curve(HISTORY, mean_predictor=2150.0, ax=ax),
    "prediction_scatter": lambda ax=None: plots.prediction_scatter([4.0, 6.0, 9.0], [4.5, 5.5, 9.0], ax=ax),
    "batch_fill": lambda ax=None: plots.batch_fill(FILL, ax=ax),
    "efficiency_over_budget": lambda ax=None: plots.efficiency_over_budget(EFFICIENCY, bound=BOUND, ax=ax),
    "strategies": lambda ax=None: plots.strategies(SUMMARY, ax=ax),
    "batch_mean_sizes": lambda ax=None: plots.batch_mean_sizes(PACKED, IID, ax=ax),
    "agreement": lambda ax=None: plots.agreement(MEASURED, ax=ax),
    "adjacency": lambda ax=None: plots.adjacency(EDGES, 4, batch=[0, 0, 1, 2], nodes_mask=REAL, ax=ax),
    "batch_layout": lambda ax=None: plots.batch_layout([[3, 4], [5]], num_slots=8, ax=ax),
    "size_histogram": lambda ax=None: plots.size_histogram([3, 5, 5], ax=ax),
    "molecule": lambda ax=None: plots.molecule(WATER.z, WATER.pos, WATER.edge_index, WATER.edge_attr, ax=ax),
    "bsp_timeline": lambda ax=None: plots.bsp_timeline(SUPERSTEPS, ax=ax),
    "cycles_by": lambda ax=None: plots.cycles_by(BLOCKS, ax=ax),
    "memory_by_tile": lambda ax=None: plots.memory_by_tile(TILES, limit=150, ax=ax),
    "liveness": lambda ax=None: plots.liveness([200, 700, 300], limit=900, ax=ax),
    "surfaces": lambda ax=None: plots.surfaces(GRID, x="rows", y="channels", panel="op")[0],
}
ON_GIVEN_AXES = [name for name in DRAW if name != "surfaces"]


def lines(ax):
    return {line.get_label(): line for line in ax.get_lines()}


def texts(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]
