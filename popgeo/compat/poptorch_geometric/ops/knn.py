"""The nearest neighbours in a fixed number of slots."""

from typing import Any

from torch import Tensor

from popgeo.capture import static_neighbors


def knn(
    x: Tensor,
    y: Tensor,
    k: int,
    batch_x: Tensor | None = None,
    batch_y: Tensor | None = None,
    *args: Any,
    **kwargs: Any,
) -> Tensor:
    """For each row of `y` the nearest `k` rows of `x` in its graph; -1 where there are fewer.

    Args:
        x: Where neighbours lie. [num_x, channels]
        y: Where to look from. [num_y, channels]
        k: How many each has; there may be fewer.
        batch_x: Graph of each row of `x`. [num_x]
        batch_y: Graph of each row of `y`. [num_y]
        args: `cosine`, which goes by the angle instead, and what changes nothing here.
        kwargs: Likewise, by name.

    Returns:
        Row 0 names that of `y`, row 1 that of `x`. [2, num_y * k]

    Example:
        >>> import torch
        >>> knn(torch.tensor([[0.0], [1.0]]), torch.tensor([[0.9]]), 3)
        tensor([[ 0,  0, -1],
                [ 1,  0, -1]])
    """
    return static_neighbors.knn(_NEVER_CALLED, x, y, k, batch_x, batch_y, *args, **kwargs)


def _NEVER_CALLED(*args: Any, **kwargs: Any) -> Any:
    raise AssertionError("the static form stands in for the function, and does not call it")
