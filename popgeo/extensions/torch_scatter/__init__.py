"""torch_scatter's functions over `popgeo.ops`.

While a step is compiled, `dim_size` or `out` is required if torch_scatter would read the length from the index.
"""

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

from .composite import scatter_log_softmax as scatter_log_softmax
from .composite import scatter_logsumexp as scatter_logsumexp
from .composite import scatter_softmax as scatter_softmax
from .composite import scatter_std as scatter_std
from .segment import segment_add_coo as segment_add_coo
from .segment import segment_max_coo as segment_max_coo
from .segment import segment_mean_coo as segment_mean_coo
from .segment import segment_min_coo as segment_min_coo
from .segment import segment_sum_coo as segment_sum_coo

__version__ = "2.1.2"  # version of torch_scatter with these names
