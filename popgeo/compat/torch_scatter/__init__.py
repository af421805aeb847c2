"""torch_scatter's functions over `popgeo.ops`, for programs on computers where that package is not installed.

While a step is compiled `dim_size`, or `out`, must be given where torch_scatter would read the length from the index.
"""

from popgeo.compat.torch_scatter.by_index import segment_add_coo as segment_add_coo
from popgeo.compat.torch_scatter.by_index import segment_max_coo as segment_max_coo
from popgeo.compat.torch_scatter.by_index import segment_mean_coo as segment_mean_coo
from popgeo.compat.torch_scatter.by_index import segment_min_coo as segment_min_coo
from popgeo.compat.torch_scatter.by_index import segment_sum_coo as segment_sum_coo
from popgeo.compat.torch_scatter.composite import scatter_log_softmax as scatter_log_softmax
from popgeo.compat.torch_scatter.composite import scatter_logsumexp as scatter_logsumexp
from popgeo.compat.torch_scatter.composite import scatter_softmax as scatter_softmax
from popgeo.compat.torch_scatter.composite import scatter_std as scatter_std
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
