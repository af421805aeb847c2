"""torch_cluster's searches in point clouds; a batch vector gives the cloud of each point."""

import torch
from torch import Tensor

from popgeo.ops.point_search import farthest_points, near_points

_FLOWS = ("source_to_target", "target_to_source")


def knn(
    x: Tensor,
    y: Tensor,
    k: int,
    batch_x: Tensor | None = None,
    batch_y: Tensor | None = None,
    cosine: bool = False,
    num_workers: int = 1,
    batch_size: int | None = None,
) -> Tensor:
    """Return the nearest `k` rows of `x` in the same cloud for each row of `y`, the nearest first.

    Args:
        x: Points to find. [num_x, channels] or [num_x]
        y: Points to search from. [num_y, channels] or [num_y]
        k: Number of neighbors per row of `y`; fewer if the cloud has fewer points.
        batch_x: Cloud of each row of `x`, ascending. Default: one cloud. [num_x]
        batch_y: Cloud of each row of `y`, ascending. Default: one cloud. [num_y]
        cosine: Compare angles instead of distances.
        num_workers: Unused; `torch.set_num_threads` determines the number of threads.
        batch_size: Number of clouds. Default: read from the batch vectors.

    Returns:
        Rows of `y` (row 0) and of `x` (row 1). [2, num_pairs]

    Raises:
        ValueError: Dimensions differ, or a batch vector has the wrong length or does not ascend.

    Example:
        >>> knn(torch.tensor([[0.0], [1.0]]), torch.tensor([[0.9]]), 3)
        tensor([[0, 0],
                [1, 0]])
    """
    return near_points(x, y, k, *_pointers(x, y, batch_x, batch_y, batch_size), cosine=cosine)


def knn_graph(
    x: Tensor,
    k: int,
    batch: Tensor | None = None,
    loop: bool = False,
    flow: str = "source_to_target",
    cosine: bool = False,
    num_workers: int = 1,
    batch_size: int | None = None,
) -> Tensor:
    """Return edges from the nearest `k` nodes of the same cloud to each node; `knn` explains the arguments.

    Args:
        x: Points. [num_nodes, channels]
        k: Edges per node.
        batch: Cloud of each node, ascending. Default: one cloud. [num_nodes]
        loop: Whether a node may be its own neighbor.
        flow: `"source_to_target"` puts neighbors in row 0, `"target_to_source"` in row 1.
        cosine: Compare angles instead of distances.
        num_workers: Unused.
        batch_size: Number of clouds.

    Example:
        >>> knn_graph(torch.tensor([[0.0], [1.0], [5.0]]), 1)
        tensor([[1, 0, 1],
                [0, 1, 2]])
    """
    ptr, _ = _pointers(x, x, batch, batch, batch_size)
    return _edges(near_points(x, x, k, ptr, ptr, cosine=cosine, skip_same=not loop), flow)


def radius(
    x: Tensor,
    y: Tensor,
    r: float,
    batch_x: Tensor | None = None,
    batch_y: Tensor | None = None,
    max_num_neighbors: int = 32,
    num_workers: int = 1,
    batch_size: int | None = None,
    ignore_same_index: bool = False,
) -> Tensor:
    """Return the rows of `x` at a distance of at most `r` in the same cloud for each row of `y`, in `knn`'s format.

    torch_cluster leaves out pairs at a distance of exactly `r`. Of more than `max_num_neighbors` points, it returns
    arbitrary ones; this function returns the nearest.

    Args:
        x: Points to find. [num_x, channels] or [num_x]
        y: Points to search from. [num_y, channels] or [num_y]
        r: Largest distance, in the unit of `x`.
        batch_x: Cloud of each row of `x`, ascending. Default: one cloud. [num_x]
        batch_y: Cloud of each row of `y`, ascending. Default: one cloud. [num_y]
        max_num_neighbors: Largest number of neighbors per row of `y`.
        num_workers: Unused.
        batch_size: Number of clouds. Default: read from the batch vectors.
        ignore_same_index: Whether row `i` of `x` is never a neighbor of row `i` of `y`.

    Example:
        >>> radius(torch.tensor([[0.0], [1.0], [5.0]]), torch.tensor([[0.5]]), 1.0)
        tensor([[0, 0],
                [0, 1]])
    """
    pointers = _pointers(x, y, batch_x, batch_y, batch_size)
    return near_points(x, y, max_num_neighbors, *pointers, r=r, skip_same=ignore_same_index)


def radius_graph(
    x: Tensor,
    r: float,
    batch: Tensor | None = None,
    loop: bool = False,
    max_num_neighbors: int = 32,
    flow: str = "source_to_target",
    num_workers: int = 1,
    batch_size: int | None = None,
) -> Tensor:
    """Return edges to each node from the nodes of its cloud at a distance of at most `r`; see `radius`.

    Example:
        >>> radius_graph(torch.tensor([[0.0], [1.0], [5.0]]), 1.0)
        tensor([[1, 0],
                [0, 1]])
    """
    ptr, _ = _pointers(x, x, batch, batch, batch_size)
    return _edges(near_points(x, x, max_num_neighbors, ptr, ptr, r=r, skip_same=not loop), flow)


def nearest(x: Tensor, y: Tensor, batch_x: Tensor | None = None, batch_y: Tensor | None = None) -> Tensor:
    """Return the nearest point of `y` in the same cloud for each point of `x`.

    Args:
        x: Points to search from. [num_x, dimensions] or [num_x]
        y: Points to find. [num_y, dimensions] or [num_y]
        batch_x: Cloud of each point of `x`, ascending. [num_x]
        batch_y: Cloud of each point of `y`, ascending. [num_y]

    Returns:
        Rows of `y`. [num_x]

    Raises:
        ValueError: Dimensions differ, a batch vector has the wrong length or does not ascend, or a cloud of `x` has no
            point in `y`.

    Example:
        >>> nearest(torch.tensor([0.0, 4.0]), torch.tensor([5.0, 1.0]))
        tensor([1, 0])
    """
    ptr_x, ptr_y = _pointers(x, y, batch_x, batch_y, None)
    found = near_points(y, x, 1, ptr_y, ptr_x)[1]
    if len(found) < len(x):
        raise ValueError(
            "nearest needs a finite point of 'y' for each point of 'x'. Some batch indices occur in 'batch_x' that do "
            "not occur in 'batch_y'."
        )
    return found


def fps(
    src: Tensor,
    batch: Tensor | None = None,
    ratio: float = 0.5,
    random_start: bool = True,
    batch_size: int | None = None,
    ptr: Tensor | None = None,
) -> Tensor:
    """Sample points of each cloud: choose the point farthest from all chosen points, again and again.

    Args:
        src: Points. [num_points, channels]
        batch: Cloud of each point, ascending. Default: one cloud. [num_points]
        ratio: Share of a cloud's points that is chosen, rounded up; one number, or a tensor with one per cloud.
        random_start: Begin with a random point of a cloud instead of its first.
        batch_size: Number of clouds. Default: read from `batch`.
        ptr: First point of each cloud, and the end of the last one: a tensor or a list. Default: read from `batch`.

    Raises:
        ValueError: The pointers do not ascend over all points, or the ratio is not above 0 and at most 1.

    Example:
        >>> fps(torch.tensor([[0.0], [1.0], [5.0], [2.0]]), ratio=0.5, random_start=False)
        tensor([0, 2])
    """
    if ptr is None:
        ptr, _ = _pointers(src, src, batch, batch, batch_size)
    ptr = torch.tensor([0, len(src)]) if ptr is None else torch.as_tensor(ptr)
    return farthest_points(src, ptr, 0.5 if ratio is None else ratio, random_start)


def _pointers(
    x: Tensor, y: Tensor, batch_x: Tensor | None, batch_y: Tensor | None, batch_size: int | None
) -> tuple[Tensor | None, Tensor | None]:
    """Return the first row of each cloud in both sets of points, and the end; None for one cloud."""
    if batch_x is None and batch_y is None:
        return None, None
    batch_x, batch_y = (batch if batch is None else torch.as_tensor(batch) for batch in (batch_x, batch_y))  # or lists
    for name, points, batch in (("x", x, batch_x), ("y", y, batch_y)):
        if batch is not None and len(batch) != len(points):
            raise ValueError(f"The search got {len(points)} points, but clouds for {len(batch)} points, in {name}.")
        if batch is not None and (batch[1:] < batch[:-1]).any():
            raise ValueError(f"The clouds of the points of {name} must ascend: sort the points by batch.")
    last = [-1 if not len(batch) else int(batch[-1]) for batch in (batch_x, batch_y) if batch is not None]
    clouds = torch.arange(max(*last, 0, (batch_size or 0) - 1) + 2, device=x.device)
    return _starts(clouds, batch_x, len(x)), _starts(clouds, batch_y, len(y))


def _starts(clouds: Tensor, batch: Tensor | None, num_points: int) -> Tensor:
    if batch is None:  # all points are in the first cloud
        return torch.where(clouds == 0, 0, num_points)
    return torch.bucketize(clouds, batch.contiguous())


def _edges(pairs: Tensor, flow: str) -> Tensor:
    if flow not in _FLOWS:
        raise ValueError(f"flow is {flow!r}; it is {' or '.join(map(repr, _FLOWS))}.")
    return pairs.flip([0]) if flow == "source_to_target" else pairs
