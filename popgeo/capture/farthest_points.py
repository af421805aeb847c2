"""Farthest point sampling of point clouds; all shapes follow from the arguments."""

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from popgeo.capture.control_flow import for_loop


def fps(src: Tensor, ptr: Sequence[int] | Tensor, ratio: float = 0.5, random_start: bool = False) -> Tensor:
    """Sample points of each cloud: choose the point farthest from all chosen points, again and again.

    Args:
        src: Points of all clouds, one cloud after the other. [num_points, dimensions]
        ptr: Start of each cloud, and end of the last one.
        ratio: Share of a cloud's points that is picked, rounded up. Default: 0.5.
        random_start: Begin with a random point of a cloud instead of its first. Default: False.

    Returns:
        Rows of `src`, cloud by cloud, in the order of picking. [number of picked points]

    Raises:
        ValueError: the pointers do not ascend over all points, or the ratio is not above 0 and at most 1.

    Example:
        >>> points = torch.tensor([[0.0], [1.0], [5.0], [2.0]])
        >>> fps(points, [0, 4], ratio=0.75)
        tensor([0, 2, 3])
    """
    ends = [int(one) for one in ptr]
    ascending = len(ends) > 1 and ends[0] == 0 and all(a <= b for a, b in itertools.pairwise(ends))
    if not ascending or ends[-1] != src.shape[0]:
        raise ValueError(f"fps got ptr {ends}; it must ascend from 0 to the number of points, {src.shape[0]}.")
    if not 0 < ratio <= 1:
        raise ValueError(f"fps got ratio {ratio}; it must be above 0 and at most 1.")
    with torch.no_grad():
        points = src.detach().reshape(src.shape[0], src.shape[1:].numel())
        clouds = [(a, b) for a, b in itertools.pairwise(ends) if a < b]  # without empty clouds
        picked = [a + _pick(points[a:b], math.ceil(ratio * (b - a)), random_start) for a, b in clouds]
        return torch.cat(picked) if picked else torch.empty(0, dtype=torch.int64)


def fps_of_graphs(
    src: Tensor,
    batch: Tensor | None = None,
    ratio: float = 0.5,
    random_start: bool = True,
    batch_size: int | None = None,
    ptr: Sequence[int] | Tensor | None = None,
) -> Tensor:
    """Sample points of each graph: choose the point farthest from all chosen points, again and again.

    Args:
        src: Points. [num_points, channels]
        batch: Graph of each point, in ascending order. While a model is compiled, pass `ptr` instead. Default: one
            graph.
        ratio: Share of a graph's points that is picked, rounded up. Default: 0.5.
        random_start: Begin with a random point of a graph instead of its first. Default: True.
        batch_size: Number of graphs. Default: read from `batch`.
        ptr: Start of each graph, and end of the last one. Default: computed from `batch`.

    Raises:
        ValueError: the pointers do not ascend over all points, or the ratio is not above 0 and at most 1.

    Example:
        >>> fps_of_graphs(torch.tensor([[0.0], [1.0], [5.0], [2.0]]), ratio=0.5, random_start=False)
        tensor([0, 2])
    """
    if ptr is None and batch is not None:
        sizes = torch.bincount(batch, minlength=batch_size or 0)
        ptr = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
    return fps(src, [0, src.size(0)] if ptr is None else ptr, ratio, random_start)


def _pick(points: Tensor, count: int, random_start: bool) -> Tensor:
    """Return the chosen rows of one cloud; the captured loop chooses one row per iteration."""
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
