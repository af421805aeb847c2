"""Figures of graphs: sizes, edges as a matrix, batches slot by slot."""

from collections.abc import Sequence
from itertools import cycle
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import ArrayLike

from popgeo.plots.style import COLORS, PALETTE, drawing, lighter

PADDING = "0.88"
PADDING_EDGE = PALETTE[3]
GRAPH_TINT = 0.8  # share of white in the colour of a graph's block


def adjacency(
    edge_index: ArrayLike,
    num_nodes: int,
    *,
    batch: ArrayLike | None = None,
    nodes_mask: ArrayLike | None = None,
    title: str = "Edges",
    ax: Axes | None = None,
) -> Axes:
    """Draw edges as a matrix with source nodes as columns and destination nodes as rows, padding included.

    Args:
        edge_index: Source and destination of each edge. [2, num_edges]
        num_nodes: Number of rows and columns, padding included.
        batch: Graph of each node. Each real graph is a tinted block on the diagonal. [num_nodes]
        nodes_mask: True for real nodes. Padding nodes are grey, and their edges have another colour. [num_nodes]
        title: Title of the figure.
        ax: Axes to draw on. Default: a new figure.

    Example:
        >>> ax = adjacency([[0, 1, 2], [1, 0, 2]], num_nodes=4, nodes_mask=[True, True, False, False])
        >>> [text.get_text() for text in ax.get_legend().get_texts()]
        ['edge', 'padding', 'padding edge']
    """
    source, destination = np.asarray(edge_index, dtype=int)
    real = np.ones(num_nodes, bool) if nodes_mask is None else np.asarray(nodes_mask, dtype=bool)
    graph = np.zeros(num_nodes, int) if batch is None else np.asarray(batch, dtype=int)
    both_real = np.outer(real, real)
    cells = np.where(both_real & (graph[:, None] == graph) & (batch is not None), 1, 0)  # 0 empty, 1 block of a graph
    cells[~both_real] = 2
    cells[destination, source] = np.where(both_real[destination, source], 3, 4)
    colors = ["white", lighter(COLORS["nodes"], GRAPH_TINT), PADDING, COLORS["nodes"], PADDING_EDGE]
    names = ["", "graph", "padding", "edge", "padding edge"]
    with drawing(ax, size=(4.8, 5.8)) as ax:
        ax.imshow(
            cells, cmap=ListedColormap(colors), vmin=0, vmax=len(colors) - 1, interpolation="nearest", aspect="auto"
        )
        ax.set_box_aspect(1)
        ax.grid(False)
        ax.set(xlabel="source node", ylabel="destination node", title=title)
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_locator(MaxNLocator(6, integer=True))
        shown = [kind for kind in (1, 3, 2, 4) if (cells == kind).any()]
        patches = [Patch(facecolor=colors[kind], edgecolor="0.6", label=names[kind]) for kind in shown]
        ax.legend(handles=patches, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.16), frameon=False)
    return ax


def batch_layout(
    batches: Sequence[ArrayLike], num_slots: int, *, quantity: str = "nodes", title: str = "", ax: Axes | None = None
) -> Axes:
    """Draw batches slot by slot: each bar is a batch, each box a graph, and the grey rest is padding.

    Args:
        batches: For each batch, the number of slots of each of its graphs, in order.
        num_slots: Slots of a batch, padding included.
        quantity: Unit of the slots: `nodes` or `edges`.
        title: Title of the figure. The real share of the slots follows it.
        ax: Axes to draw on. Default: a new figure.

    Raises:
        ValueError: a batch needs more than `num_slots` slots.

    Example:
        >>> batch_layout([[3, 4], [5]], num_slots=8, title="two batches").get_title()
        'two batches: 75.0 % of the nodes are real'
    """
    sizes = [np.asarray(batch, dtype=int) for batch in batches]
    used = np.array([batch.sum() for batch in sizes])
    if used.max(initial=0) > num_slots:
        raise ValueError(f"A batch needs {used.max()} slots, but num_slots is {num_slots}. Pass at least {used.max()}.")
    share = f"{100 * used.mean() / num_slots:.1f} % of the {quantity} are real"
    color = COLORS.get(quantity, PALETTE[0])
    with drawing(ax, size=(7.0, 0.9 + 0.22 * len(sizes))) as ax:
        ax.barh(np.arange(len(sizes)), num_slots, color=PADDING, hatch="////", edgecolor="0.75", linewidth=0)
        boxes, shades = [], []
        for row, batch in enumerate(sizes):
            starts = np.concatenate([[0], np.cumsum(batch)[:-1]])
            boxes += [Rectangle((x, row - 0.4), width, 0.8) for x, width in zip(starts, batch, strict=True)]
            shades += [shade for _, shade in zip(batch, cycle((color, lighter(color, 0.35))), strict=False)]
        ax.add_collection(PatchCollection(boxes, facecolor=shades, edgecolor="white", linewidth=0.6))
        ax.set(xlim=(0, num_slots), ylim=(len(sizes) - 0.5, -0.5), xlabel=f"slot ({quantity})", ylabel="batch")
        ax.set_title(f"{title}: {share}" if title else share)
        ax.grid(False)
        ax.yaxis.set_major_locator(MaxNLocator(min(8, max(len(sizes), 2)), integer=True))
    return ax


def size_histogram(
    sizes: ArrayLike,
    num_graphs: ArrayLike | None = None,
    *,
    quantity: str = "nodes",
    title: str = "Sizes of the graphs",
    ax: Axes | None = None,
) -> Axes:
    """Draw a histogram of graph sizes, with the mean and with the largest size, the size of pad-to-max.

    Args:
        sizes: Size of each graph; or, with `num_graphs`, each distinct size.
        num_graphs: Number of graphs of each size.
        quantity: `nodes` or `edges`.
        title: Title of the figure.
        ax: Axes to draw on. Default: a new figure.

    Raises:
        ValueError: there is no graph.

    Example:
        >>> size_histogram([3, 5], num_graphs=[10, 30], quantity="nodes").get_xlabel()
        'nodes of a graph'
    """
    size = np.asarray(sizes, dtype=int)
    weight = np.ones(len(size)) if num_graphs is None else np.asarray(num_graphs, dtype=float)
    if weight.sum() == 0:
        raise ValueError("There is no graph to count; pass the size of at least one graph.")
    values, where = np.unique(size, return_inverse=True)
    shares = np.bincount(where, weight) / weight.sum()
    mean = float((values * shares).sum())
    width = float(np.diff(values).min()) if len(values) > 1 else 1.0
    with drawing(ax) as ax:
        ax.bar(values, shares, 0.9 * width, color=COLORS.get(quantity, PALETTE[0]), linewidth=0)
        marks: dict[str, Any] = {"linewidth": 1.6, "color": "0.15"}
        ax.axvline(mean, linestyle="-", label=f"mean {mean:.1f}", **marks)
        ax.axvline(values[-1], linestyle=":", label=f"largest {values[-1]}, as pad-to-max pads", **marks)
        ax.set(xlabel=f"{quantity} of a graph", ylabel="share of the graphs (%)", title=title, xlim=(0, None))
        ax.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:g}"))
        ax.set_ylim(0, 1.3 * shares.max())  # room for the legend above the bars
        ax.legend(loc="upper left")
    return ax
