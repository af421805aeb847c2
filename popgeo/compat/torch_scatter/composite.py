"""Functions that torch_scatter builds from its own, under the name of its module for them."""

from popgeo.ops import scatter_log_softmax as scatter_log_softmax
from popgeo.ops import scatter_logsumexp as scatter_logsumexp
from popgeo.ops import scatter_softmax as scatter_softmax
from popgeo.ops import scatter_std as scatter_std
