"""torch_scatter's functions over `popgeo.ops`.

While a step is compiled, `dim_size` or `out` is required if torch_scatter would read the length from the index.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from popgeo.compat.import_names import fill_module
from popgeo.ops import scatter_max, scatter_min, segment_coo

__version__ = "2.1.2"  # version of torch_scatter with these names
__getattr__ = fill_module(__name__)


def _of_sorted(scattered: Callable[..., Any], does: str) -> Callable[..., Any]:
    """Return a function of entries with a sorted index along dimension `index.dim() - 1`."""

    def segment(src: Tensor, index: Tensor, out: Tensor | None = None, dim_size: int | None = None) -> Any:
        return scattered(src, index, index.dim() - 1, out, dim_size)

    segment.__doc__ = f"{does} of the entries that share a sorted index."
    return segment


segment_sum_coo = segment_add_coo = partial(segment_coo, reduce="sum")
segment_mean_coo = partial(segment_coo, reduce="mean")
segment_min_coo = _of_sorted(
    scatter_min, "Return the minimum and its position (the length of `src` for an empty segment)"
)
segment_max_coo = _of_sorted(
    scatter_max, "Return the maximum and its position (the length of `src` for an empty segment)"
)
