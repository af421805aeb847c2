"""Functions of tensors with static shapes; each is one op to torch's capture, and differentiable twice."""

from popgeo.ops.cfconv import cfconv as cfconv
from popgeo.ops.composite import scatter_log_softmax as scatter_log_softmax
from popgeo.ops.composite import scatter_logsumexp as scatter_logsumexp
from popgeo.ops.composite import scatter_softmax as scatter_softmax
from popgeo.ops.composite import scatter_std as scatter_std
from popgeo.ops.plan import EdgePlan as EdgePlan
from popgeo.ops.plan import ScatterPlan as ScatterPlan
from popgeo.ops.scatter import gather as gather
from popgeo.ops.scatter import scatter as scatter
from popgeo.ops.scatter import scatter_add as scatter_add
from popgeo.ops.scatter import scatter_max as scatter_max
from popgeo.ops.scatter import scatter_mean as scatter_mean
from popgeo.ops.scatter import scatter_min as scatter_min
from popgeo.ops.scatter import scatter_mul as scatter_mul
from popgeo.ops.scatter import scatter_sum as scatter_sum
from popgeo.ops.segment import gather_coo as gather_coo
from popgeo.ops.segment import gather_csr as gather_csr
from popgeo.ops.segment import segment_add_csr as segment_add_csr
from popgeo.ops.segment import segment_coo as segment_coo
from popgeo.ops.segment import segment_csr as segment_csr
from popgeo.ops.segment import segment_max_csr as segment_max_csr
from popgeo.ops.segment import segment_mean_csr as segment_mean_csr
from popgeo.ops.segment import segment_min_csr as segment_min_csr
from popgeo.ops.segment import segment_sum_csr as segment_sum_csr
