"""torch_scatter's functions over `popgeo.ops`.

While a step is compiled, `dim_size` or `out` is required if torch_scatter would read the length from the index.
"""

from popgeo import ops
from popgeo.ops.register_op import with_arguments_of

from . import sorted_index
from .composite import scatter_log_softmax as scatter_log_softmax
from .composite import scatter_logsumexp as scatter_logsumexp
from .composite import scatter_softmax as scatter_softmax
from .composite import scatter_std as scatter_std

__version__ = "2.1.2"  # version of torch_scatter with these names

scatter = with_arguments_of("torch_scatter", ops.scatter)
scatter_sum = scatter_add = with_arguments_of("torch_scatter", ops.scatter_sum)
scatter_mean = with_arguments_of("torch_scatter", ops.scatter_mean)
scatter_mul = with_arguments_of("torch_scatter", ops.scatter_mul)
scatter_min = with_arguments_of("torch_scatter", ops.scatter_min)
scatter_max = with_arguments_of("torch_scatter", ops.scatter_max)
segment_csr = with_arguments_of("torch_scatter", ops.segment_csr)
segment_sum_csr = segment_add_csr = with_arguments_of("torch_scatter", ops.segment_sum_csr)
segment_mean_csr = with_arguments_of("torch_scatter", ops.segment_mean_csr)
segment_min_csr = with_arguments_of("torch_scatter", ops.segment_min_csr)
segment_max_csr = with_arguments_of("torch_scatter", ops.segment_max_csr)
segment_coo = with_arguments_of("torch_scatter", ops.segment_coo)
segment_sum_coo = segment_add_coo = with_arguments_of("torch_scatter", sorted_index.segment_sum_coo)
segment_mean_coo = with_arguments_of("torch_scatter", sorted_index.segment_mean_coo)
segment_min_coo = with_arguments_of("torch_scatter", sorted_index.segment_min_coo)
segment_max_coo = with_arguments_of("torch_scatter", sorted_index.segment_max_coo)
gather_csr = with_arguments_of("torch_scatter", ops.gather_csr)
gather_coo = with_arguments_of("torch_scatter", ops.gather_coo)
