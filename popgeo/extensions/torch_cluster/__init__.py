"""torch_cluster's searches in point clouds over popgeo's."""

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from popgeo.capture import static_neighbors
from popgeo.capture.farthest_points import fps_of_graphs as fps

__all__ = ["fps", "grid_cluster", "knn", "knn_graph", "nearest", "radius", "radius_graph"]


def knn(x: Tensor, y: Tensor, k: int, *args: Any, **kwargs: Any) -> Tensor:
    """Return the nearest `k` rows of `x` in the same graph for each row of `y`.

    While a model is compiled for the machine, -1 fills missing neighbors. Otherwise they are omitted.

    Args:
        x: Points to find. [num_x, channels]
        y: Points to search from. [num_y, channels]
        k: Number of neighbors per row of `y`.
        args: `batch_x`, `batch_y`, `cosine`, `num_workers`, `batch_size`.
        kwargs: The same arguments by name.

    Returns:
        Rows of `y` (row 0) and of `x` (row 1). [2, num_pairs]

    Example:
        >>> import torch
        >>> knn(torch.tensor([[0.0], [1.0]]), torch.tensor([[0.9]]), 3)
        tensor([[0, 0],
                [1, 0]])
    """
    return _real(static_neighbors.knn(x, y, k, *args, **kwargs))


def knn_graph(x: Tensor, k: int, *args: Any, **kwargs: Any) -> Tensor:
    """Return edges from the nearest `k` nodes of the same graph to each node. Arguments: see PyG's `knn_graph`.

    Example:
        >>> import torch
        >>> knn_graph(torch.tensor([[0.0], [1.0], [5.0]]), 1)
        tensor([[1, 0, 1],
                [0, 1, 2]])
    """
    return _real(static_neighbors.knn_graph(x, k, *args, **kwargs))


def radius(x: Tensor, y: Tensor, r: float, *args: Any, **kwargs: Any) -> Tensor:
    """Return the rows of `x` at a distance of at most `r` in the same graph for each row of `y`, in `knn`'s format.

    Example:
        >>> import torch
        >>> radius(torch.tensor([[0.0], [1.0], [5.0]]), torch.tensor([[0.5]]), 1.0)
        tensor([[0, 0],
                [0, 1]])
    """
    return _real(static_neighbors.radius(x, y, r, *args, **kwargs))


def radius_graph(x: Tensor, r: float, *args: Any, **kwargs: Any) -> Tensor:
    """Return edges to each node from the nodes of its graph at a distance of at most `r`.

    Example:
        >>> import torch
        >>> radius_graph(torch.tensor([[0.0], [1.0], [5.0]]), 1.0)
        tensor([[1, 0],
                [0, 1]])
    """
    return _real(static_neighbors.radius_graph(x, r, *args, **kwargs))


def _real(pairs: Tensor) -> Tensor:
    """Return the pairs without fill values."""
    return pairs[:, (pairs >= 0).all(0)]


def grid_cluster(pos: Tensor, size: Tensor, start: Tensor | None = None, end: Tensor | None = None) -> Tensor:
    """Return the number of each point's voxel in a regular grid over all points.

    Args:
        pos: Positions. [num_points, dimensions]
        size: Width of a voxel in each dimension. [dimensions]
        start: Lower corner of the grid. Default: the minimum position in each dimension. [dimensions]
        end: Upper corner of the grid. Default: the maximum position in each dimension. [dimensions]

    Returns:
        Voxels, counted along the first dimension first. int64 [num_points]

    Raises:
        RuntimeError: A size is not above 0, or a position is not finite.

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
    """Return the nearest point of `y` in the same cloud for each point of `x`.

    Args:
        x: Points to search from. [num_x, dimensions] or [num_x]
        y: Points to find. [num_y, dimensions] or [num_y]
        batch_x: Cloud of each point of `x`, ascending. [num_x]
        batch_y: Cloud of each point of `y`, ascending. [num_y]

    Returns:
        Rows of `y`. [num_x]

    Raises:
        ValueError: Dimensions differ, a list of clouds has the wrong length or is not ascending, or a cloud of `x` is
            missing in `y`.

    Example:
        >>> nearest(torch.tensor([0.0, 4.0]), torch.tensor([5.0, 1.0]))
        tensor([1, 0])
    """
    x, y = (points.unsqueeze(-1) if points.dim() == 1 else points for points in (x, y))
    if x.dim() != 2 or y.dim() != 2 or x.shape[1] != y.shape[1]:
        raise ValueError(
            f"nearest got points of shapes {list(x.shape)} and {list(y.shape)}; their dimensions must be equal."
        )
    for points, batch in ((x, batch_x), (y, batch_y)):
        if batch is not None and len(batch) != len(points):
            raise ValueError(f"nearest got {len(points)} points, but clouds for {len(batch)} points.")
        if not isinstance(batch, Tensor) and any(a > b for a, b in itertools.pairwise(batch or ())):
            raise ValueError("nearest needs clouds in ascending order: sort the points by batch_x and batch_y.")
    of_y = {0} if batch_y is None else None if isinstance(batch_y, Tensor) else {*batch_y}
    if isinstance(batch_x, list | tuple) and of_y is not None and {*batch_x} - of_y:
        raise ValueError("Some batch indices occur in 'batch_x' that do not occur in 'batch_y'")
    clouds = (batch if batch is None else torch.as_tensor(batch) for batch in (batch_x, batch_y))
    return static_neighbors.nearest(x, y, *clouds)


nearest.is_static = True  # type: ignore[attr-defined]  # captures keep this function
