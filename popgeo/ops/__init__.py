"""Functions of tensors with static shapes; each is one op to torch's capture, and differentiable twice."""

from popgeo.ops.cfconv import cfconv as cfconv
from popgeo.ops.neighbors import distance as distance
from popgeo.ops.neighbors import knn as knn
from popgeo.ops.neighbors import pairs as pairs
from popgeo.ops.neighbors import radius as radius
from popgeo.ops.plan import EdgePlan as EdgePlan
from popgeo.ops.plan import ScatterPlan as ScatterPlan
from popgeo.ops.pool import global_add_pool as global_add_pool
from popgeo.ops.pool import global_max_pool as global_max_pool
from popgeo.ops.pool import global_mean_pool as global_mean_pool
from popgeo.ops.pool import global_softmax as global_softmax
from popgeo.ops.scatter import gather as gather
from popgeo.ops.scatter import scatter as scatter
from popgeo.ops.scatter import scatter_add as scatter_add
from popgeo.ops.scatter import scatter_max as scatter_max
from popgeo.ops.scatter import scatter_mean as scatter_mean
from popgeo.ops.scatter import scatter_min as scatter_min
from popgeo.ops.scatter import scatter_mul as scatter_mul
from popgeo.ops.scatter import scatter_sum as scatter_sum
from popgeo.ops.softplus import shifted_softplus as shifted_softplus
