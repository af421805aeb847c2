"""PyG's searches for neighbors with a fixed number of slots: -1 means that there is no neighbor."""

import torch
from torch import Tensor

Graphs = Tensor | None  # the graph of each point; None where all belong to one


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
    """For each row of `y` the nearest `k` rows of `x` in its graph; -1 if there are fewer.

    Args:
        x: Where neighbors lie. [num_x, channels]
        y: Where to look from. [num_y, channels]
        k: How many each has; there may be fewer.
        batch_x: Graph of each row of `x`. [num_x]
        batch_y: Graph of each row of `y`. [num_y]
        cosine: Go by the angle instead of the distance.
        num_workers: Taken for the sake of PyG's signature, as `batch_size` is; they change nothing.

    Returns:
        Row 0 names that of `y`, row 1 that of `x`. [2, num_y * k]

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
    """Edges from the nearest `k` nodes of each node in its graph; both ends are -1 if there are fewer.

    Args:
        x: Positions. [num_nodes, channels]
        k: Edges of each node.
        batch: Graph of each node. [num_nodes]
        loop: Whether a node may be its own neighbor.
        flow: `"source_to_target"` has the neighbors in row 0, `"target_to_source"` in row 1.
        cosine: Go by the angle instead of the distance.
        num_workers: Taken for the sake of PyG's signature; it changes nothing.

    Returns:
        The edges, `k` for each node. [2, num_nodes * k]

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
    """For each row of `y` the rows of `x` in its graph at a distance of at most `r`, the nearest first.

    Args:
        x: Where neighbors lie. [num_x, channels]
        y: Where to look from. [num_y, channels]
        r: The distance.
        batch_x: Graph of each row of `x`. [num_x]
        batch_y: Graph of each row of `y`. [num_y]
        max_num_neighbors: Slots of each row of `y`.
        num_workers: Taken for the sake of PyG's signature, as `batch_size` is; they change nothing.
        ignore_same_index: Whether row `i` of `x` is never a neighbor of row `i` of `y`.

    Returns:
        Row 0 names that of `y`, row 1 that of `x`; both are -1 in free slots.
        [2, num_y * min(max_num_neighbors, num_x)]

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
    """Edges between nodes of the same graph that are at most `r` apart; both ends are -1 in free slots.

    Args:
        x: Positions. [num_nodes, channels]
        r: The distance.
        batch: Graph of each node. [num_nodes]
        loop: Whether a node may be its own neighbor.
        max_num_neighbors: Slots of each node, the nearest first.
        flow: `"source_to_target"` has the neighbors in row 0, `"target_to_source"` in row 1.
        num_workers: Taken for the sake of PyG's signature, as `batch_size` is; they change nothing.

    Returns:
        The edges. [2, num_nodes * min(max_num_neighbors, num_nodes)]

    Example:
        >>> radius_graph(torch.tensor([[0.0], [1.0]]), 1.5, max_num_neighbors=1)
        tensor([[1, 0],
                [0, 1]])
    """
    edges = radius(x, x, r, batch, batch, max_num_neighbors, ignore_same_index=not loop)
    return edges.flip([0]) if flow == "source_to_target" else edges


def nearest(x: Tensor, y: Tensor, batch_x: Graphs = None, batch_y: Graphs = None) -> Tensor:
    """For each row of `x` the nearest row of `y` in its graph; -1 if the graph has no row of `y`.

    Args:
        x: Where to look from. [num_x, channels]
        y: Where neighbors lie. [num_y, channels]
        batch_x: Graph of each row of `x`. [num_x]
        batch_y: Graph of each row of `y`. [num_y]

    Returns:
        Rows of `y`. [num_x]

    Example:
        >>> nearest(torch.tensor([[0.0], [2.0]]), torch.tensor([[1.8], [0.1]]))
        tensor([1, 0])
    """
    rows, found = nearest_rows(y, x, 1, _same_graph(y, x, batch_y, batch_x))
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
    """Features at `pos_y`: means over the nearest `k` of `pos_x`, weighted by the inverse squared distance.

    A point with fewer neighbors takes those that it has. Source: arXiv:1706.02413, equation 2.

    Args:
        x: Features at `pos_x`. [num_x, channels]
        pos_x: Positions. [num_x, dimensions]
        pos_y: Positions. [num_y, dimensions]
        batch_x: Graph of each row of `pos_x`. [num_x]
        batch_y: Graph of each row of `pos_y`. [num_y]
        k: Neighbors of each.
        num_workers: Taken for the sake of PyG's signature; it changes nothing.

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
    """The rows of `x` nearest to each row of `y`, of equally distant ones the first, and which are real. [num_y, k]

    Args:
        x: Where neighbors lie. [num_x, channels]
        y: Where to look from. [num_y, channels]
        k: How many each has.
        allowed: Which may be a neighbor of which. [num_y, num_x]
        cosine: Go by the angle instead of the distance.
    """
    distances = _squared_distances(*(map(torch.nn.functional.normalize, (x, y)) if cosine else (x, y)))
    rows = distances.masked_fill(~allowed, torch.inf).sort(dim=1, stable=True).indices[:, :k]
    found = allowed.gather(1, rows)
    missing = (0, k - rows.size(1))
    return torch.nn.functional.pad(rows, missing), torch.nn.functional.pad(found, missing, value=False)


def _squared_distances(x: Tensor, y: Tensor) -> Tensor:
    """For choosing only: they carry no gradient. [num_y, num_x]"""
    x, y = (points.detach().reshape(points.size(0), -1) for points in (x, y))
    if not (x.is_floating_point() or y.is_floating_point()):
        x = x.double()  # whole numbers, among which infinity has no place
    return (y.unsqueeze(1) - x.unsqueeze(0)).square().sum(-1)


def _same_graph(x: Tensor, y: Tensor, batch_x: Graphs, batch_y: Graphs, loop: bool = True) -> Tensor:
    """Whether two points are in one graph and, without `loop`, have different numbers. [num_y, num_x]"""
    given = (x, batch_x), (y, batch_y)
    of_x, of_y = (torch.zeros(len(part), dtype=torch.long) if of is None else of for part, of in given)
    allowed = of_y.unsqueeze(1) == of_x.unsqueeze(0)
    return allowed if loop else allowed & ~torch.eye(y.size(0), x.size(0), dtype=torch.bool)


def _pairs(rows: Tensor, found: Tensor) -> Tensor:
    """[num_y, k] -> [2, num_y * k]"""
    centres = torch.arange(rows.size(0)).unsqueeze(1).expand_as(rows)
    return torch.where(found, torch.stack([centres, rows]), -1).flatten(1)
