"""Searches for neighbours in a fixed number of slots: -1 stands for a neighbour that there is not."""

from typing import Any

from torch import Tensor

from popgeo.capture import static_neighbors
from popgeo.capture.static_neighbors import Graphs
from popgeo.capture.static_neighbors import knn as knn
from popgeo.capture.static_neighbors import knn_graph as knn_graph
from popgeo.capture.static_neighbors import knn_interpolate as knn_interpolate
from popgeo.capture.static_neighbors import nearest as nearest


def radius(
    x: Tensor,
    y: Tensor,
    r: float,
    batch_x: Graphs = None,
    batch_y: Graphs = None,
    max_num_neighbors: int = 32,
    *args: Any,
    **kwargs: Any,
) -> Tensor:
    """For each row of `y` those of `x` in its graph that are at most `r` away, the nearest where there are too many.

    Args:
        x: Where neighbours lie. [num_x, channels]
        y: Where to look from. [num_y, channels]
        r: The distance.
        batch_x: Graph of each row of `x`. [num_x]
        batch_y: Graph of each row of `y`. [num_y]
        max_num_neighbors: Slots of each row of `y`.
        args: What changes nothing here.
        kwargs: Likewise.

    Returns:
        Row 0 names that of `y`, row 1 that of `x`; both are -1 in free slots.
        [2, num_y * min(max_num_neighbors, num_x)]

    Example:
        >>> import torch
        >>> radius(torch.tensor([[0.0], [1.0], [9.0]]), torch.tensor([[0.2]]), 1.0)
        tensor([[ 0,  0, -1],
                [ 0,  1, -1]])
    """
    return static_neighbors.radius(x, y, r, batch_x, batch_y, max_num_neighbors)


def radius_graph(
    x: Tensor,
    r: float,
    batch: Graphs = None,
    loop: bool = False,
    max_num_neighbors: int = 32,
    flow: str = "source_to_target",
    *args: Any,
    **kwargs: Any,
) -> Tensor:
    """Edges between nodes of the same graph that are at most `r` apart; both ends are -1 in free slots.

    Args:
        x: Positions. [num_nodes, channels]
        r: The distance.
        batch: Graph of each node. [num_nodes]
        loop: Whether a node may be its own neighbour.
        max_num_neighbors: Slots of each node, the nearest first.
        flow: `"source_to_target"` has the neighbours in row 0, `"target_to_source"` in row 1.
        args: What changes nothing here.
        kwargs: Likewise.

    Returns:
        The edges. [2, num_nodes * min(max_num_neighbors, num_nodes)]

    Example:
        >>> import torch
        >>> radius_graph(torch.tensor([[0.0], [1.0]]), 1.5, max_num_neighbors=1)
        tensor([[1, 0],
                [0, 1]])
    """
    return static_neighbors.radius_graph(x, r, batch, loop, max_num_neighbors, flow)
