"""torch_cluster's searches in point clouds over popgeo's, for programs that import them if it is not installed."""

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from popgeo.capture import static_neighbors
from popgeo.capture.farthest_points import fps_of_graphs as fps

__all__ = ["fps", "grid_cluster", "knn", "knn_graph", "nearest", "radius", "radius_graph"]


def knn(x: Tensor, y: Tensor, k: int, *args: Any, **kwargs: Any) -> Tensor:
    """For each row of `y` the nearest `k` rows of `x` in its graph.

    While a model is compiled for the machine, -1 stands if there are fewer; elsewhere those are left out.

    Args:
        x: Where neighbors lie. [num_x, channels]
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


def grid_cluster(pos: Tensor, size: Tensor, start: Tensor | None = None, end: Tensor | None = None) -> Tensor:
    """Return the number of the voxel of each point, in a regular grid over all points.

    Args:
        pos: Positions. [num_points, dimensions]
        size: Width of a voxel in each dimension. [dimensions]
        start: Corner where the grid starts. Default: the least position in each dimension. [dimensions]
        end: Corner where the grid ends. Default: the greatest position in each dimension. [dimensions]

    Returns:
        Voxels, counted along the first dimension first. int64 [num_points]

    Raises:
        RuntimeError: a size is not above 0, or a position is not finite.

    Example:
        >>> grid_cluster(torch.tensor([[0.0, 0.0], [11.0, 9.0], [2.0, 8.0]]), torch.tensor([5.0, 5.0]))
        tensor([0, 5, 3])
    """
    pos = pos.reshape(len(pos), -1)
    torch._assert_async((size > 0).all(), "grid_cluster: a size of a voxel is not above 0.")
    torch._assert_async(pos.isfinite().all(), "grid_cluster: a position is not finite.")
    start = pos.amin(0) if start is None else start
    end = pos.amax(0) if end is None else end
    num_voxels = ((end - start) / size).long() + 1  # [dimensions]
    strides = torch.cat([num_voxels.new_ones(1), num_voxels.cumprod(0)[:-1]])
    return (((pos - start) / size).long() * strides).sum(1)


def nearest(
    x: Tensor, y: Tensor, batch_x: Tensor | Sequence[int] | None = None, batch_y: Tensor | Sequence[int] | None = None
) -> Tensor:
    """For each point of `x` the nearest of `y` in the same cloud.

    Args:
        x: [num_x, dimensions] or [num_x]
        y: [num_y, dimensions] or [num_y]
        batch_x: Cloud of each point of `x`, ascending. [num_x]
        batch_y: Cloud of each point of `y`, ascending. [num_y]

    Returns:
        Rows of `y`. [num_x]

    Raises:
        ValueError: dimensions differ, or the number of points and that of their clouds; or clouds given as lists do not
            ascend, or are not the same ones.

    Example:
        >>> nearest(torch.tensor([0.0, 4.0]), torch.tensor([5.0, 1.0]))
        tensor([1, 0])
    """
    x, y = (points.unsqueeze(-1) if points.dim() == 1 else points for points in (x, y))
    if x.dim() != 2 or y.dim() != 2 or x.shape[1] != y.shape[1]:
        raise ValueError(f"nearest got points of shapes {list(x.shape)} and {list(y.shape)}; they must be alike.")
    for points, batch in ((x, batch_x), (y, batch_y)):
        if batch is not None and len(batch) != len(points):
            raise ValueError(f"nearest got the clouds of {len(batch)} points, but {len(points)} points.")
        if not isinstance(batch, Tensor) and any(a > b for a, b in itertools.pairwise(batch or ())):
            raise ValueError("nearest needs clouds in ascending order: sort the points by batch_x and batch_y.")
    of_y = {0} if batch_y is None else None if isinstance(batch_y, Tensor) else {*batch_y}
    if isinstance(batch_x, list | tuple) and of_y is not None and {*batch_x} - of_y:
        raise ValueError("Some batch indices occur in 'batch_x' that do not occur in 'batch_y'")
    clouds = (batch if batch is None else torch.as_tensor(batch) for batch in (batch_x, batch_y))
    return static_neighbors.nearest(x, y, *clouds)


nearest.is_static = True  # type: ignore[attr-defined]  # it stays in place while a model is captured
