"""torch_scatter's reductions of entries with a sorted index, which lies along dimension `index.dim() - 1`."""

from torch import Tensor

from popgeo.ops import scatter_max, scatter_min, segment_coo


def segment_sum_coo(src: Tensor, index: Tensor, out: Tensor | None = None, dim_size: int | None = None) -> Tensor:
    """Sum the entries that share a sorted index; `torch_scatter.segment_coo` explains the arguments."""
    return segment_coo(src, index, out, dim_size, "sum")


def segment_mean_coo(src: Tensor, index: Tensor, out: Tensor | None = None, dim_size: int | None = None) -> Tensor:
    """Average the entries that share a sorted index; `torch_scatter.segment_coo` explains the arguments."""
    return segment_coo(src, index, out, dim_size, "mean")


def segment_min_coo(
    src: Tensor, index: Tensor, out: Tensor | None = None, dim_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """Find the smallest entry of each sorted index, and its position: the length of `src` for an empty row."""
    return scatter_min(src, index, index.dim() - 1, out, dim_size)


def segment_max_coo(
    src: Tensor, index: Tensor, out: Tensor | None = None, dim_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """Find the largest entry of each sorted index, and its position: the length of `src` for an empty row."""
    return scatter_max(src, index, index.dim() - 1, out, dim_size)
