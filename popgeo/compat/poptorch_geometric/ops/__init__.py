"""Searches and layers whose shapes never depend on data: -1 stands for a neighbour that there is not."""

import sys

from popgeo.capture import static_neighbors
from popgeo.capture.static_neighbors import knn as knn
from popgeo.capture.static_neighbors import knn_graph as knn_graph
from popgeo.capture.static_neighbors import knn_interpolate as knn_interpolate
from popgeo.capture.static_neighbors import nearest as nearest
from popgeo.capture.static_neighbors import radius as radius
from popgeo.capture.static_neighbors import radius_graph as radius_graph
from popgeo.compat.poptorch_geometric.ops import layers
from popgeo.compat.poptorch_geometric.ops.layers import ClusterGCNConv as ClusterGCNConv
from popgeo.compat.poptorch_geometric.ops.layers import HeteroLinear as HeteroLinear
from popgeo.compat.poptorch_geometric.ops.layers import InstanceNorm as InstanceNorm
from popgeo.compat.poptorch_geometric.ops.layers import MFConv as MFConv
from popgeo.compat.poptorch_geometric.ops.layers import assert_sorted_index as assert_sorted_index
from popgeo.compat.poptorch_geometric.ops.layers import to_dense_batch as to_dense_batch

# PopTorch Geometric has a module for each, from which programs import it.
for _name in ("knn", "knn_graph", "knn_interpolate", "nearest", "radius"):
    sys.modules[f"{__name__}.{_name}"] = static_neighbors
for _name in ("aggregation_base", "cluster_gcn_conv", "hetero_linear", "instance_norm", "mf_conv", "to_dense_batch"):
    sys.modules[f"{__name__}.{_name}"] = layers
