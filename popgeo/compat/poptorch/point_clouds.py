"""Samples and neighbours of point clouds, with shapes that follow from the arguments alone."""

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from popgeo.capture import static_neighbors
from popgeo.capture.control_flow import for_loop


def fps(src: Tensor, ptr: Sequence[int], ratio: float = 0.5, random_start: bool = False) -> Tensor:
    """In each cloud, points each of which is the farthest from those picked before it.

    Args:
        src: Points of all clouds, one after the other. [num_points, dimensions]
        ptr: Where each cloud starts, and where the last one ends.
        ratio: Share of a cloud's points that is picked, rounded up.
        random_start: Begin with any point of a cloud instead of its first.

    Returns:
        Rows of `src`, cloud by cloud, in the order in which they are picked. [sum of picked]

    Raises:
        ValueError: the pointers do not ascend over all points, or the ratio is not above 0 and at most 1.

    Example:
        >>> points = torch.tensor([[0.0], [1.0], [5.0], [2.0]])
        >>> fps(points, [0, 4], ratio=0.75)
        tensor([0, 2, 3])
    """
    ends = [int(one) for one in ptr]
    ascending = len(ends) > 1 and ends[0] == 0 and all(a < b for a, b in itertools.pairwise(ends))
    if not ascending or ends[-1] != src.shape[0]:
        raise ValueError(f"fps got ptr {ends}; it must ascend from 0 to the number of points, {src.shape[0]}.")
    if not 0 < ratio <= 1:
        raise ValueError(f"fps got ratio {ratio}; it must be above 0 and at most 1.")
    with torch.no_grad():
        points = src.detach().reshape(src.shape[0], -1)
        clouds = [points[start:end] for start, end in itertools.pairwise(ends)]
        picked = [_pick(cloud, math.ceil(ratio * cloud.shape[0]), random_start) for cloud in clouds]
        return torch.cat([start + rows for start, rows in zip(ends, picked, strict=False)])


def _pick(points: Tensor, count: int, random_start: bool) -> Tensor:
    """The rows of one cloud, one after the other in a loop of the program."""
    size = points.shape[0]
    first = torch.randint(size, (1,)) if random_start else torch.zeros(1, dtype=torch.int64)
    slots = torch.arange(count)

    def one_more(turn: Tensor, last: Tensor, nearest: Tensor, rows: Tensor) -> tuple[Tensor, ...]:
        distance = (points - points.index_select(0, last)).square().sum(1)
        nearest = torch.minimum(nearest, distance)
        last = nearest.argmax(0, keepdim=True)
        return turn + 1, last, nearest, torch.where(slots == turn, last, rows)

    start = [torch.ones(1, dtype=torch.int64), first, torch.full((size,), torch.inf, dtype=points.dtype)]
    *_, rows = for_loop(count - 1, one_more, [*start, first.expand(count).clone()])
    return rows


def nearest(
    x: Tensor,
    y: Tensor,
    batch_x: Tensor | Sequence[int] | None = None,
    batch_y: Tensor | Sequence[int] | None = None,
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
    clouds = (
        batch if batch is None or isinstance(batch, Tensor) else torch.tensor(batch) for batch in (batch_x, batch_y)
    )
    return static_neighbors.nearest(x, y, *clouds)
