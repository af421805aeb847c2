"""Searches for neighbours in a fixed number of slots: -1 stands for a neighbour that there is not."""

from typing import Any

from torch import Tensor

from popgeo.capture import static_neighbors

Graphs = Tensor | None  # the graph of each point; None where all belong to one


def knn(
    x: Tensor, y: Tensor, k: int, batch_x: Graphs = None, batch_y: Graphs = None, *args: Any, **kwargs: Any
) -> Tensor:
    """For each row of `y` the nearest `k` rows of `x` in its graph; -1 where there are fewer.

    Args:
        x: Where neighbours lie. [num_x, channels]
        y: Where to look from. [num_y, channels]
        k: How many each has; there may be fewer.
        batch_x: Graph of each row of `x`. [num_x]
        batch_y: Graph of each row of `y`. [num_y]
        args: `cosine`, which goes by the angle instead, and what changes nothing here.
        kwargs: Likewise, by name.

    Returns:
        Row 0 names that of `y`, row 1 that of `x`. [2, num_y * k]

    Example:
        >>> import torch
        >>> knn(torch.tensor([[0.0], [1.0]]), torch.tensor([[0.9]]), 3)
        tensor([[ 0,  0, -1],
                [ 1,  0, -1]])
    """
    return static_neighbors.knn(_never_called, x, y, k, batch_x, batch_y, *args, **kwargs)


def knn_graph(
    x: Tensor,
    k: int,
    batch: Graphs = None,
    loop: bool = False,
    flow: str = "source_to_target",
    cosine: bool = False,
    num_workers: int = 1,
) -> Tensor:
    """Edges from the nearest `k` nodes of each node in its graph; both ends are -1 where there are fewer.

    Args:
        x: Positions. [num_nodes, channels]
        k: Edges of each node.
        batch: Graph of each node. [num_nodes]
        loop: Whether a node may be its own neighbour.
        flow: `"source_to_target"` has the neighbours in row 0, `"target_to_source"` in row 1.
        cosine: Go by the angle instead of the distance.
        num_workers: Taken for the sake of PyG's signature; it changes nothing.

    Returns:
        The edges, `k` for each node. [2, num_nodes * k]

    Example:
        >>> import torch
        >>> knn_graph(torch.tensor([[0.0], [1.0], [3.0]]), 1)
        tensor([[1, 0, 1],
                [0, 1, 2]])
    """
    return static_neighbors.knn_graph(knn_graph, x, k, batch, bool(loop), flow, cosine)


def knn_interpolate(
    x: Tensor,
    pos_x: Tensor,
    pos_y: Tensor,
    batch_x: Graphs = None,
    batch_y: Graphs = None,
    k: int = 3,
    num_workers: int = 1,
) -> Tensor:
    """Features at `pos_y`: those of the nearest `k` of `pos_x`, weighted by the inverse squared distance.

    A point with fewer neighbours takes those that it has. Source: arXiv:1706.02413, equation 2.

    Args:
        x: Features at `pos_x`. [num_x, channels]
        pos_x: Positions. [num_x, dimensions]
        pos_y: Positions. [num_y, dimensions]
        batch_x: Graph of each row of `pos_x`. [num_x]
        batch_y: Graph of each row of `pos_y`. [num_y]
        k: Neighbours of each.
        num_workers: Taken for the sake of PyG's signature; it changes nothing.

    Returns:
        Features. [num_y, channels]

    Example:
        >>> import torch
        >>> knn_interpolate(torch.tensor([[1.0], [4.0]]), torch.tensor([[0.0], [3.0]]), torch.tensor([[1.0]]), k=2)
        tensor([[1.6000]])
    """
    return static_neighbors.knn_interpolate(knn_interpolate, x, pos_x, pos_y, batch_x, batch_y, k)


def nearest(x: Tensor, y: Tensor, batch_x: Graphs = None, batch_y: Graphs = None) -> Tensor:
    """For each row of `x` the nearest row of `y` in its graph; -1 where there is none.

    Args:
        x: Where to look from. [num_x, channels]
        y: Where neighbours lie. [num_y, channels]
        batch_x: Graph of each row of `x`. [num_x]
        batch_y: Graph of each row of `y`. [num_y]

    Returns:
        Rows of `y`. [num_x]

    Example:
        >>> import torch
        >>> nearest(torch.tensor([[0.0], [2.0]]), torch.tensor([[1.8], [0.1]]))
        tensor([1, 0])
    """
    return static_neighbors.nearest(nearest, x, y, batch_x, batch_y)


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
    return static_neighbors.radius(radius, x, y, r, batch_x, batch_y, max_num_neighbors)


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
    return static_neighbors.radius_graph(radius_graph, x, r, batch, loop, max_num_neighbors, flow)


def _never_called(*args: Any, **kwargs: Any) -> Any:
    raise AssertionError("the static form stands in for the function, and does not call it")
