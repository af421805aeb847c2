"""Searches among points of any dimension: neighbors in another set of points, and farthest points.

The number of pairs depends on the data, so these functions run in eager code only. `popgeo.ops.knn` and
`popgeo.ops.radius` have fixed slots.
"""

import itertools
import math
import struct

import torch
from torch import Tensor

from popgeo.native import library
from popgeo.ops.kernel_arguments import as_int64

_pack_search, _pack_take, _pack_farthest = (
    struct.Struct("=11qd").pack,
    struct.Struct("4q").pack,
    struct.Struct("8q").pack,
)
_MOST_DISTANCES = 1 << 24  # distances that torch computes at once


def near_points(
    x: Tensor,
    y: Tensor,
    slots: int,
    ptr_x: Tensor | None = None,
    ptr_y: Tensor | None = None,
    *,
    r: float = math.inf,
    cosine: bool = False,
    skip_same: bool = False,
) -> Tensor:
    """Find for each row of `y` the nearest rows of `x` in the same graph, the nearest first, without a gradient.

    Of equally distant rows, the first one comes first. Points that are not finite have no neighbors.

    Args:
        x: Points to find. [num_x, dimensions] or [num_x]
        y: Centers of the search. [num_y, dimensions] or [num_y]
        slots: The largest number of neighbors of a center.
        ptr_x: First row of each graph in `x`, and the end of the last one. Default: one graph. [num_graphs + 1]
        ptr_y: First row of each graph in `y`, and the end of the last one. Default: one graph. [num_graphs + 1]
        r: Largest distance, in the unit of `x`.
        cosine: Compare angles instead of distances.
        skip_same: Whether row `i` of `x` is never a neighbor of row `i` of `y`.

    Returns:
        Rows of `y` in row 0, ascending, and rows of `x` in row 1. [2, num_pairs]

    Raises:
        ValueError: Dimensions differ, `slots` or `r` is negative, or pointers do not ascend over all points.

    Example:
        >>> near_points(torch.tensor([0.0, 1.0, 5.0]), torch.tensor([0.8, 4.0]), 2)
        tensor([[0, 0, 1, 1],
                [1, 0, 2, 1]])
    """
    x, y = (points.detach().reshape(len(points), points.shape[1:].numel()) for points in (x, y))
    if x.shape[1] != y.shape[1]:
        raise ValueError(f"x has {x.shape[1]} dimensions and y has {y.shape[1]}; pass points of one space.")
    if slots < 0 or not r >= 0:
        raise ValueError(f"The number of neighbors is {slots} and the radius {r}; neither can be negative.")
    kind = torch.promote_types(x.dtype, y.dtype)
    kind = torch.float64 if kind is torch.float64 or not kind.is_floating_point else torch.float32
    x, y = x.to(kind), y.to(kind)
    if cosine:
        x, y = (torch.nn.functional.normalize(points) for points in (x, y))
    num_graphs = max(1 if ptr is None else len(ptr) - 1 for ptr in (ptr_x, ptr_y))
    starts_x, starts_y = _starts("x", x, ptr_x, num_graphs), _starts("y", y, ptr_y, num_graphs)
    find, take = library.packed("popgeo_find_points"), library.packed("popgeo_take_points")
    if find is None or take is None or not (x.is_cpu and y.is_cpu):
        return _near_points(x, y, slots, starts_x, starts_y, r * r, skip_same)
    x, y, result = library.as_read(x), library.as_read(y), torch.empty(2, dtype=torch.int64)
    pointers = map(library.address, (x, y, starts_x, starts_y, result))
    choices = x.shape[1], num_graphs, slots, skip_same, kind is torch.float64, torch.get_num_threads(), r * r
    if find(_pack_search(*pointers, *choices)):
        raise MemoryError("popgeo could not allocate its working memory.")
    found, num_pairs = result.tolist()
    pairs = torch.empty(2, num_pairs, dtype=torch.int64)
    take(_pack_take(found, pairs.data_ptr(), num_pairs, 0))
    return pairs


def _starts(name: str, points: Tensor, ptr: Tensor | None, num_graphs: int) -> Tensor:
    """Return the checked pointers of a set of points, in memory. [num_graphs + 1]."""
    if ptr is None:
        return torch.tensor([0] + [len(points)] * num_graphs)
    ptr = as_int64(ptr.cpu())
    if len(ptr) != num_graphs + 1 or ptr[0] != 0 or ptr[-1] != len(points) or (ptr.diff() < 0).any():
        raise ValueError(
            f"ptr_{name} is {ptr.tolist()[:9]}; it must ascend from 0 to {len(points)}, the number of points, in "
            f"{num_graphs + 1} steps."
        )
    return ptr


def _near_points(
    x: Tensor, y: Tensor, slots: int, ptr_x: Tensor, ptr_y: Tensor, limit: float, skip_same: bool
) -> Tensor:
    """Find the pairs of `near_points` by all distances, in plain torch."""
    pairs = [torch.empty(2, 0, dtype=torch.int64, device=x.device)]
    clouds_x, clouds_y = (itertools.pairwise(ptr.tolist()) for ptr in (ptr_x, ptr_y))
    for (begin, end), (first, last) in zip(clouds_x, clouds_y, strict=True):
        step = max(1, _MOST_DISTANCES // max(1, (end - begin) * max(1, x.shape[1])))
        for at in range(first, last, step):
            centers = torch.arange(at, min(at + step, last), device=x.device).unsqueeze(1)
            rows = torch.arange(begin, end, device=x.device).unsqueeze(0)
            distances = (y[centers] - x[rows]).square().sum(-1)  # [centers, rows]
            finite = y[centers].isfinite().all(-1) & x[rows].isfinite().all(-1)
            near = (distances <= limit) & finite & ~((centers == rows) & skip_same)
            order = distances.masked_fill(~near, torch.inf).sort(dim=1, stable=True).indices[:, :slots]
            near = near.gather(1, order)
            pairs.append(torch.stack([centers.expand_as(near)[near], begin + order[near]]))
    return torch.cat(pairs, dim=1)


def farthest_points(src: Tensor, ptr: Tensor, ratio: float | Tensor = 0.5, random_start: bool = True) -> Tensor:
    """Sample points of each graph: choose the point farthest from all chosen points, again and again.

    Of equally distant points, the first one is chosen.

    Args:
        src: Points. [num_points, ...]
        ptr: First point of each graph, and the end of the last one. [num_graphs + 1]
        ratio: Share of a graph's points that is chosen, rounded up; one number, or one per graph. [num_graphs]
        random_start: Whether to begin with a random point of a graph instead of its first.

    Returns:
        Rows of `src`, graph by graph, in the order of choice. [number of chosen points]

    Raises:
        ValueError: The pointers do not ascend over all points, or the ratio is not above 0 and at most 1.

    Example:
        >>> farthest_points(torch.tensor([0.0, 1.0, 5.0, 2.0]), torch.tensor([0, 4]), 0.75, random_start=False)
        tensor([0, 2, 3])
    """
    ratio = torch.as_tensor(ratio, dtype=torch.float32).cpu()
    if not ((ratio > 0) & (ratio <= 1)).all():
        raise ValueError(f"fps got ratio {ratio.tolist()}; it must be above 0 and at most 1.")
    points = src.detach().reshape(len(src), src.shape[1:].numel())
    points = library.as_read(points if points.dtype is torch.float64 else points.float())
    ptr = _starts("src", points, ptr, len(ptr) - 1)
    sizes = ptr.diff()
    counts = (sizes.float() * ratio).ceil().long()
    ends = torch.cat([counts.new_zeros(1), counts.cumsum(0)])  # [num_graphs + 1]
    first = (torch.rand(len(sizes)) * sizes).long().clamp(max=sizes - 1) if random_start else torch.zeros_like(sizes)
    first = (ptr[:-1] + first)[counts > 0]
    native = library.packed("popgeo_farthest_points")
    if native is None or not points.is_cpu:
        clouds = [(begin, end) for begin, end in itertools.pairwise(ptr.tolist()) if begin < end]
        starts = zip(clouds, first.tolist(), counts[counts > 0].tolist(), strict=True)
        chosen = [begin + _farthest(points[begin:end], at - begin, count) for (begin, end), at, count in starts]
        return torch.cat([torch.empty(0, dtype=torch.int64, device=src.device), *chosen])
    out = torch.empty(int(ends[-1]), dtype=torch.int64)
    out[ends[:-1][counts > 0]] = first
    sizes_of_call = points.shape[1], len(counts), points.dtype is torch.float64, torch.get_num_threads()
    if native(_pack_farthest(*map(library.address, (points, ptr, ends, out)), *sizes_of_call)):
        raise MemoryError("popgeo could not allocate its working memory.")
    return out


def _farthest(points: Tensor, first: int, count: int) -> Tensor:
    """Choose rows of one cloud, in plain torch."""
    nearest, chosen = points.new_full((len(points),), torch.inf), [torch.tensor(first, device=points.device)]
    while len(chosen) < count:
        nearest = torch.minimum(nearest, (points - points[chosen[-1]]).square().sum(1))
        chosen.append(nearest.argmax())
    return torch.stack(chosen)
