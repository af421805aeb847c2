"""Searches and clusters of points and of nodes with pyg-lib's arguments: segments instead of a graph per point."""

from torch import Tensor

from popgeo.capture.static_neighbors import grid_cluster as grid_cluster
from popgeo.ops.point_search import farthest_points as fps
from popgeo.ops.point_search import near_points
from popgeo.sampling.pair_nodes import pair_nodes as graclus_cluster

__all__ = ["fps", "graclus_cluster", "grid_cluster", "knn", "knn_graph", "nearest", "radius", "radius_graph"]


def knn(
    x: Tensor,
    y: Tensor,
    k: int = 1,
    ptr_x: Tensor | None = None,
    ptr_y: Tensor | None = None,
    cosine: bool = False,
    num_workers: int = 1,
) -> Tensor:
    """Find the nearest `k` rows of `x` in the same segment for each row of `y`.

    Args:
        x: Points to find. [num_x, channels]
        y: Centers of the search. [num_y, channels]
        k: The largest number of points per center.
        ptr_x: The start of each segment of `x`, and the end. Default: one segment. [num_segments + 1]
        ptr_y: The start of each segment of `y`, and the end. Default: one segment. [num_segments + 1]
        cosine: Whether to compare angles instead of distances.
        num_workers: Unused; part of pyg-lib's signature.

    Returns:
        Rows of `y` (row 0) and of `x` (row 1). [2, num_pairs]

    Example:
        >>> import torch
        >>> knn(torch.tensor([[0.0], [1.0]]), torch.tensor([[0.9]]), 3)
        tensor([[0, 0],
                [1, 0]])
    """
    return near_points(x, y, k, ptr_x, ptr_y, cosine=cosine)


def radius(
    x: Tensor,
    y: Tensor,
    r: float = 1.0,
    ptr_x: Tensor | None = None,
    ptr_y: Tensor | None = None,
    max_num_neighbors: int = 32,
    num_workers: int = 1,
    ignore_same_index: bool = False,
) -> Tensor:
    """Find the rows of `x` in the same segment at a distance of at most `r` from each row of `y`, the nearest first.

    `knn` explains the other arguments and the result.

    Args:
        x: Points to find. [num_x, channels]
        y: Centers of the search. [num_y, channels]
        r: The largest distance, in the unit of `x`.
        ptr_x: The start of each segment of `x`, and the end. [num_segments + 1]
        ptr_y: The start of each segment of `y`, and the end. [num_segments + 1]
        max_num_neighbors: The largest number of points per center.
        num_workers: Unused; part of pyg-lib's signature.
        ignore_same_index: Whether row i of `x` is never a neighbor of row i of `y`.

    Example:
        >>> import torch
        >>> radius(torch.tensor([[0.0], [1.0], [9.0]]), torch.tensor([[0.2]]), 1.0)
        tensor([[0, 0],
                [0, 1]])
    """
    return near_points(x, y, max_num_neighbors, ptr_x, ptr_y, r=r, skip_same=ignore_same_index)


def knn_graph(
    x: Tensor,
    k: int,
    ptr: Tensor | None = None,
    loop: bool = False,
    flow: str = "source_to_target",
    cosine: bool = False,
    num_workers: int = 1,
) -> Tensor:
    """Return each node (row 0) with the nearest `k` nodes of its segment (row 1).

    pyg-lib exchanges the rows for `flow="target_to_source"`. PyG's function of this name has the opposite order.

    Example:
        >>> import torch
        >>> knn_graph(torch.tensor([[0.0], [1.0], [5.0]]), 1)
        tensor([[0, 1, 2],
                [1, 0, 1]])
    """
    return _with_flow(near_points(x, x, k, ptr, ptr, cosine=cosine, skip_same=not loop), flow)


def radius_graph(
    x: Tensor,
    r: float,
    ptr: Tensor | None = None,
    loop: bool = False,
    max_num_neighbors: int = 32,
    flow: str = "source_to_target",
    num_workers: int = 1,
) -> Tensor:
    """Return each node (row 0) with the nodes of its segment at a distance of at most `r` (row 1), as in `knn_graph`.

    Example:
        >>> import torch
        >>> radius_graph(torch.tensor([[0.0], [1.0], [5.0]]), 1.0)
        tensor([[0, 1],
                [1, 0]])
    """
    return _with_flow(near_points(x, x, max_num_neighbors, ptr, ptr, r=r, skip_same=not loop), flow)


def nearest(x: Tensor, y: Tensor, ptr_x: Tensor | None = None, ptr_y: Tensor | None = None) -> Tensor:
    """Return the nearest row of `y` in the same segment for each row of `x`.

    Raises:
        ValueError: a segment of `x` has no point in `y`.

    Example:
        >>> import torch
        >>> nearest(torch.tensor([[0.0], [4.0]]), torch.tensor([[5.0], [1.0]]))
        tensor([1, 0])
    """
    found = near_points(y, x, 1, ptr_y, ptr_x)[1]
    if len(found) < len(x):
        raise ValueError("nearest needs a finite point of y for each row of x; a segment of y has none.")
    return found


def _with_flow(pairs: Tensor, flow: str) -> Tensor:
    flows = ("source_to_target", "target_to_source")
    if flow not in flows:
        raise ValueError(f"flow is {flow!r}; it is one of {', '.join(flows)}.")
    return pairs if flow == flows[0] else pairs.flip(0)
