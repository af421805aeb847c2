"""Interpolation between the nearest neighbours."""

from torch import Tensor

from popgeo.capture import static_neighbors


def knn_interpolate(
    x: Tensor,
    pos_x: Tensor,
    pos_y: Tensor,
    batch_x: Tensor | None = None,
    batch_y: Tensor | None = None,
    k: int = 3,
    num_workers: int = 1,
) -> Tensor:
    """Features at `pos_y`: those of the nearest `k` of `pos_x`, weighted by the inverse squared distance.

    A point with fewer neighbours takes those that it has. Source: arXiv:1706.02413, equation 2.

    Args:
        x: Features at `pos_x`. [num_x, channels]
        pos_x: Positions. [num_x, dimensions]
        pos_y: Positions. [num_y, dimensions]
        batch_x: Graph of each row of `pos_x`. [num_x]
        batch_y: Graph of each row of `pos_y`. [num_y]
        k: Neighbours of each.
        num_workers: Taken for the sake of PyG's signature; it changes nothing.

    Returns:
        Features. [num_y, channels]

    Example:
        >>> import torch
        >>> knn_interpolate(torch.tensor([[1.0], [4.0]]), torch.tensor([[0.0], [3.0]]), torch.tensor([[1.0]]), k=2)
        tensor([[1.6000]])
    """
    return static_neighbors.knn_interpolate(knn_interpolate, x, pos_x, pos_y, batch_x, batch_y, k)
