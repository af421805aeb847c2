"""PyG's neighbor searches with a fixed number of slots; -1 fills the slots without a neighbor.

They compare two sets of points of any dimension, in plain torch. `ops/neighbor_search.py` has the compiled search among
the nodes of one batch.
"""

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

Graphs = Tensor | None  # the graph of each point; None for one graph


def knn(
    x: Tensor,
    y: Tensor,
    k: int,
    batch_x: Graphs = None,
    batch_y: Graphs = None,
    cosine: bool = False,
    num_workers: int = 1,
    batch_size: int | None = None,
) -> Tensor:
    """Find the nearest `k` rows of `x` in the same graph for each row of `y`; -1 fills missing ones.

    Args:
        x: Points to find. [num_x, channels]
        y: Centers of the search. [num_y, channels]
        k: Slots per center.
        batch_x: Graph of each row of `x`. Default: one graph. [num_x]
        batch_y: Graph of each row of `y`. Default: one graph. [num_y]
        cosine: Compare angles instead of distances. Default: False.
        num_workers: Unused; part of PyG's signature.
        batch_size: Unused; part of PyG's signature.

    Returns:
        Rows of `y` in row 0, rows of `x` in row 1. [2, num_y * k]

    Example:
        >>> knn(torch.tensor([[0.0], [1.0]]), torch.tensor([[0.9]]), 3)
        tensor([[ 0,  0, -1],
                [ 1,  0, -1]])
    """
    return _pairs(*nearest_rows(x, y, k, _same_graph(x, y, batch_x, batch_y), cosine))


def knn_graph(
    x: Tensor,
    k: int,
    batch: Graphs = None,
    loop: bool = False,
    flow: str = "source_to_target",
    cosine: bool = False,
    num_workers: int = 1,
    batch_size: int | None = None,
) -> Tensor:
    """Return edges from the nearest `k` nodes in the same graph to each node; -1 fills both ends of missing ones.

    Args:
        x: Positions. [num_nodes, channels]
        k: Edges per node.
        batch: Graph of each node. Default: one graph. [num_nodes]
        loop: Whether a node may be its own neighbor. Default: False.
        flow: `"source_to_target"` puts neighbors in row 0, `"target_to_source"` in row 1.
        cosine: Compare angles instead of distances. Default: False.
        num_workers: Unused; part of PyG's signature.
        batch_size: Unused; part of PyG's signature.

    Returns:
        The edges. [2, num_nodes * k]

    Example:
        >>> knn_graph(torch.tensor([[0.0], [1.0], [3.0]]), 1)
        tensor([[1, 0, 1],
                [0, 1, 2]])
    """
    edges = _pairs(*nearest_rows(x, x, k, _same_graph(x, x, batch, batch, loop), cosine))
    return edges.flip([0]) if flow == "source_to_target" else edges


def radius(
    x: Tensor,
    y: Tensor,
    r: float,
    batch_x: Graphs = None,
    batch_y: Graphs = None,
    max_num_neighbors: int | None = 32,
    num_workers: int = 1,
    batch_size: int | None = None,
    ignore_same_index: bool = False,
) -> Tensor:
    """Find the rows of `x` in the same graph at a distance of at most `r` from each row of `y`, the nearest first.

    Args:
        x: Points to find. [num_x, channels]
        y: Centers of the search. [num_y, channels]
        r: Largest distance, in the unit of `x`.
        batch_x: Graph of each row of `x`. Default: one graph. [num_x]
        batch_y: Graph of each row of `y`. Default: one graph. [num_y]
        max_num_neighbors: Slots per center; None for all rows of `x`. Default: 32.
        num_workers: Unused; part of PyG's signature.
        batch_size: Unused; part of PyG's signature.
        ignore_same_index: Whether row `i` of `x` is never a neighbor of row `i` of `y`. Default: False.

    Returns:
        Rows of `y` in row 0, rows of `x` in row 1; -1 in free slots. [2, num_y * min(max_num_neighbors, num_x)]

    Example:
        >>> radius(torch.tensor([[0.0], [1.0], [9.0]]), torch.tensor([[0.2]]), 1.0)
        tensor([[ 0,  0, -1],
                [ 0,  1, -1]])
    """
    allowed = _same_graph(x, y, batch_x, batch_y, loop=not ignore_same_index)
    slots = x.size(0) if max_num_neighbors is None else min(max_num_neighbors, x.size(0))
    return _pairs(*nearest_rows(x, y, slots, allowed & (_squared_distances(x, y) <= r * r)))


def radius_graph(
    x: Tensor,
    r: float,
    batch: Graphs = None,
    loop: bool = False,
    max_num_neighbors: int | None = 32,
    flow: str = "source_to_target",
    num_workers: int = 1,
    batch_size: int | None = None,
) -> Tensor:
    """Return edges between nodes of the same graph at a distance of at most `r`; -1 fills both ends of free slots.

    Args:
        x: Positions. [num_nodes, channels]
        r: Largest distance, in the unit of `x`.
        batch: Graph of each node. Default: one graph. [num_nodes]
        loop: Whether a node may be its own neighbor. Default: False.
        max_num_neighbors: Slots per node, the nearest neighbors first; None for all nodes. Default: 32.
        flow: `"source_to_target"` puts neighbors in row 0, `"target_to_source"` in row 1.
        num_workers: Unused; part of PyG's signature.
        batch_size: Unused; part of PyG's signature.

    Returns:
        The edges. [2, num_nodes * min(max_num_neighbors, num_nodes)]

    Example:
        >>> radius_graph(torch.tensor([[0.0], [1.0]]), 1.5, max_num_neighbors=1)
        tensor([[1, 0],
                [0, 1]])
    """
    edges = radius(x, x, r, batch, batch, max_num_neighbors, ignore_same_index=not loop)
    return edges.flip([0]) if flow == "source_to_target" else edges


def nearest(
    x: Tensor, y: Tensor, batch_x: Graphs | Sequence[int] = None, batch_y: Graphs | Sequence[int] = None
) -> Tensor:
    """Return the nearest point of `y` in the same cloud for each point of `x`; -1 if the cloud has no point of `y`.

    Args:
        x: Points to search from. [num_x, dimensions] or [num_x]
        y: Points to find. [num_y, dimensions] or [num_y]
        batch_x: Cloud of each point of `x`, ascending. [num_x]
        batch_y: Cloud of each point of `y`, ascending. [num_y]

    Returns:
        Rows of `y`. [num_x]

    Raises:
        ValueError: Dimensions differ, clouds have the wrong length, or a list of clouds is not ascending or contains a
            cloud of `x` that is missing in `y`.

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
    graphs_x, graphs_y = (batch if batch is None else torch.as_tensor(batch) for batch in (batch_x, batch_y))
    rows, found = nearest_rows(y, x, 1, _same_graph(y, x, graphs_y, graphs_x))
    return torch.where(found, rows, -1).squeeze(1)


def knn_interpolate(
    x: Tensor,
    pos_x: Tensor,
    pos_y: Tensor,
    batch_x: Graphs = None,
    batch_y: Graphs = None,
    k: int = 3,
    num_workers: int = 1,
) -> Tensor:
    """Interpolate features at `pos_y`: means over the nearest `k` of `pos_x`, weighted by the inverse squared distance.

    A point with fewer neighbors uses the existing ones. Source: arXiv:1706.02413, equation 2.

    Args:
        x: Features at `pos_x`. [num_x, channels]
        pos_x: Positions. [num_x, dimensions]
        pos_y: Positions. [num_y, dimensions]
        batch_x: Graph of each row of `pos_x`. Default: one graph. [num_x]
        batch_y: Graph of each row of `pos_y`. Default: one graph. [num_y]
        k: Neighbors per point. Default: 3.
        num_workers: Unused; part of PyG's signature.

    Returns:
        Features. [num_y, channels]

    Example:
        >>> knn_interpolate(torch.tensor([[1.0], [4.0]]), torch.tensor([[0.0], [3.0]]), torch.tensor([[1.0]]), k=2)
        tensor([[1.6000]])
    """
    rows, found = nearest_rows(pos_x, pos_y, k, _same_graph(pos_x, pos_y, batch_x, batch_y))
    distances = (pos_x[rows] - pos_y.unsqueeze(1)).detach().square().sum(-1, keepdim=True)  # [num_y, k, 1]
    weights = torch.where(found.unsqueeze(-1), 1 / distances.clamp(min=1e-16), 0.0)
    return (torch.where(found.unsqueeze(-1), x[rows], 0.0) * weights).sum(1) / weights.sum(1)


def nearest_rows(x: Tensor, y: Tensor, k: int, allowed: Tensor, cosine: bool = False) -> tuple[Tensor, Tensor]:
    """Return the rows of `x` nearest to each row of `y`, and which of them are real, both [num_y, k].

    Of equally distant rows, the first one comes first.

    Args:
        x: Points to find. [num_x, channels]
        y: Centers of the search. [num_y, channels]
        k: Slots per center.
        allowed: True where a row of `x` may be a neighbor. [num_y, num_x]
        cosine: Compare angles instead of distances. Default: False.
    """
    distances = _squared_distances(*(map(torch.nn.functional.normalize, (x, y)) if cosine else (x, y)))
    rows = distances.masked_fill(~allowed, torch.inf).sort(dim=1, stable=True).indices[:, :k]
    found = allowed.gather(1, rows)
    missing = (0, k - rows.size(1))
    return torch.nn.functional.pad(rows, missing), torch.nn.functional.pad(found, missing, value=False)


def _squared_distances(x: Tensor, y: Tensor) -> Tensor:
    """Return squared distances [num_y, num_x] without a gradient."""
    x, y = (points.detach().reshape(points.size(0), -1) for points in (x, y))
    if not (x.is_floating_point() or y.is_floating_point()):
        x = x.double()  # whole numbers have no infinity
    return (y.unsqueeze(1) - x.unsqueeze(0)).square().sum(-1)


def _same_graph(x: Tensor, y: Tensor, batch_x: Graphs, batch_y: Graphs, loop: bool = True) -> Tensor:
    """Return a mask [num_y, num_x] of points in one graph that, without `loop`, have different numbers."""
    given = (x, batch_x), (y, batch_y)
    of_x, of_y = (torch.zeros(len(part), dtype=torch.long) if of is None else of for part, of in given)
    allowed = of_y.unsqueeze(1) == of_x.unsqueeze(0)
    return allowed if loop else allowed & ~torch.eye(y.size(0), x.size(0), dtype=torch.bool)


def _pairs(rows: Tensor, found: Tensor) -> Tensor:
    """Return rows and centers [num_y, k] as pairs [2, num_y * k]."""
    centres = torch.arange(rows.size(0)).unsqueeze(1).expand_as(rows)
    return torch.where(found, torch.stack([centres, rows]), -1).flatten(1)


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
