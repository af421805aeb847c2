"""The one nearest neighbour."""

from torch import Tensor

from popgeo.capture import static_neighbors


def nearest(x: Tensor, y: Tensor, batch_x: Tensor | None = None, batch_y: Tensor | None = None) -> Tensor:
    """For each row of `x` the nearest row of `y` in its graph; -1 where there is none.

    Args:
        x: Where to look from. [num_x, channels]
        y: Where neighbours lie. [num_y, channels]
        batch_x: Graph of each row of `x`. [num_x]
        batch_y: Graph of each row of `y`. [num_y]

    Returns:
        Rows of `y`. [num_x]

    Example:
        >>> import torch
        >>> nearest(torch.tensor([[0.0], [2.0]]), torch.tensor([[1.8], [0.1]]))
        tensor([1, 0])
    """
    return static_neighbors.nearest(nearest, x, y, batch_x, batch_y)
