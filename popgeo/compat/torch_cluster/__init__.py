"""torch_cluster's searches in point clouds over popgeo's, for programs that import them if it is not installed."""

from typing import Any

from torch import Tensor

from popgeo.capture import static_neighbors
from popgeo.capture.farthest_points import fps_of_graphs as fps
from popgeo.compat.poptorch.point_clouds import nearest

__all__ = ["fps", "knn", "knn_graph", "nearest", "radius", "radius_graph"]


def knn(x: Tensor, y: Tensor, k: int, *args: Any, **kwargs: Any) -> Tensor:
    """For each row of `y` the nearest `k` rows of `x` in its graph.

    While a model is compiled for the machine, -1 stands if there are fewer; elsewhere those are left out.

    Args:
        x: Where neighbours lie. [num_x, channels]
        y: Where to look from. [num_y, channels]
        k: How many each has.
        args: `batch_x`, `batch_y`, `cosine`, `num_workers`, `batch_size`.
        kwargs: Likewise, by name.

    Returns:
        Row 0 names that of `y`, row 1 that of `x`. [2, num_pairs]

    Example:
        >>> import torch
        >>> knn(torch.tensor([[0.0], [1.0]]), torch.tensor([[0.9]]), 3)
        tensor([[0, 0],
                [1, 0]])
    """
    return _real(static_neighbors.knn(x, y, k, *args, **kwargs))


def knn_graph(x: Tensor, k: int, *args: Any, **kwargs: Any) -> Tensor:
    """Edges from the nearest `k` nodes of the same graph to each; arguments as `torch_geometric.nn.knn_graph` has them.

    Example:
        >>> import torch
        >>> knn_graph(torch.tensor([[0.0], [1.0], [5.0]]), 1)
        tensor([[1, 0, 1],
                [0, 1, 2]])
    """
    return _real(static_neighbors.knn_graph(x, k, *args, **kwargs))


def radius(x: Tensor, y: Tensor, r: float, *args: Any, **kwargs: Any) -> Tensor:
    """For each row of `y` the rows of `x` in its graph that are at most `r` away, as `knn` names them.

    Example:
        >>> import torch
        >>> radius(torch.tensor([[0.0], [1.0], [5.0]]), torch.tensor([[0.5]]), 1.0)
        tensor([[0, 0],
                [0, 1]])
    """
    return _real(static_neighbors.radius(x, y, r, *args, **kwargs))


def radius_graph(x: Tensor, r: float, *args: Any, **kwargs: Any) -> Tensor:
    """Edges to each node from the nodes of its graph at a distance of at most `r`.

    Example:
        >>> import torch
        >>> radius_graph(torch.tensor([[0.0], [1.0], [5.0]]), 1.0)
        tensor([[1, 0],
                [0, 1]])
    """
    return _real(static_neighbors.radius_graph(x, r, *args, **kwargs))


def _real(pairs: Tensor) -> Tensor:
    """The pairs that there are."""
    return pairs[:, (pairs >= 0).all(0)]
