"""torch_scatter's functions that consist of several reductions."""

from popgeo.ops import scatter_log_softmax as scatter_log_softmax
from popgeo.ops import scatter_logsumexp as scatter_logsumexp
from popgeo.ops import scatter_softmax as scatter_softmax
from popgeo.ops import scatter_std as scatter_std
