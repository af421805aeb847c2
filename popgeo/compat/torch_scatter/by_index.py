"""torch_scatter's reductions over a sorted index, each under its own name."""

from torch import Tensor

from popgeo.ops import scatter_max, scatter_min, segment_coo


def segment_sum_coo(src: Tensor, index: Tensor, out: Tensor | None = None, dim_size: int | None = None) -> Tensor:
    """Sums of the entries that share a sorted index, which lies along dimension `index.dim() - 1`.

    Example:
        >>> import torch
        >>> segment_sum_coo(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0, 0, 2]), dim_size=3)
        tensor([3., 0., 3.])
    """
    return segment_coo(src, index, out, dim_size, "sum")


segment_add_coo = segment_sum_coo


def segment_mean_coo(src: Tensor, index: Tensor, out: Tensor | None = None, dim_size: int | None = None) -> Tensor:
    """Means of the entries that share a sorted index."""
    return segment_coo(src, index, out, dim_size, "mean")


def segment_min_coo(
    src: Tensor, index: Tensor, out: Tensor | None = None, dim_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """Least of the entries that share a sorted index, and where each is; the length of `src` where there is none."""
    return scatter_min(src, index, index.dim() - 1, out, dim_size)


def segment_max_coo(
    src: Tensor, index: Tensor, out: Tensor | None = None, dim_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """Greatest of the entries that share a sorted index, and where each is.

    Example:
        >>> import torch
        >>> segment_max_coo(torch.tensor([1.0, 2.0]), torch.tensor([0, 0]), dim_size=1)
        (tensor([2.]), tensor([1]))
    """
    return scatter_max(src, index, index.dim() - 1, out, dim_size)
