"""torch_scatter's functions that consist of several reductions."""

from popgeo import ops
from popgeo.ops.register_op import with_arguments_of

scatter_std = with_arguments_of("torch_scatter", ops.scatter_std)
scatter_softmax = with_arguments_of("torch_scatter", ops.scatter_softmax)
scatter_log_softmax = with_arguments_of("torch_scatter", ops.scatter_log_softmax)
scatter_logsumexp = with_arguments_of("torch_scatter", ops.scatter_logsumexp)
