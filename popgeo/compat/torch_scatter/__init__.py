"""torch_scatter's functions over `popgeo.ops`, for programs on computers where that package is not installed.

While a step is compiled `dim_size`, or `out`, must be given where torch_scatter would read the length from the index.
"""

from torch import Tensor

from popgeo.compat.torch_scatter.composite import *  # noqa: F403
from popgeo.ops import gather_coo as gather_coo
from popgeo.ops import gather_csr as gather_csr
from popgeo.ops import scatter as scatter
from popgeo.ops import scatter_add as scatter_add
from popgeo.ops import scatter_max as scatter_max
from popgeo.ops import scatter_mean as scatter_mean
from popgeo.ops import scatter_min as scatter_min
from popgeo.ops import scatter_mul as scatter_mul
from popgeo.ops import scatter_sum as scatter_sum
from popgeo.ops import segment_add_csr as segment_add_csr
from popgeo.ops import segment_coo as segment_coo
from popgeo.ops import segment_csr as segment_csr
from popgeo.ops import segment_max_csr as segment_max_csr
from popgeo.ops import segment_mean_csr as segment_mean_csr
from popgeo.ops import segment_min_csr as segment_min_csr
from popgeo.ops import segment_sum_csr as segment_sum_csr

__version__ = "2.1.2"  # the torch_scatter whose names these are


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
