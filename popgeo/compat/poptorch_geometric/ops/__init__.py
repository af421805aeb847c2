"""Searches and layers whose shapes never depend on data: -1 stands for a neighbour that there is not."""

from popgeo.compat.poptorch_geometric.ops.aggregation_base import assert_sorted_index
from popgeo.compat.poptorch_geometric.ops.cluster_gcn_conv import ClusterGCNConv
from popgeo.compat.poptorch_geometric.ops.hetero_linear import HeteroLinear
from popgeo.compat.poptorch_geometric.ops.instance_norm import InstanceNorm
from popgeo.compat.poptorch_geometric.ops.knn import knn
from popgeo.compat.poptorch_geometric.ops.knn_graph import knn_graph
from popgeo.compat.poptorch_geometric.ops.knn_interpolate import knn_interpolate
from popgeo.compat.poptorch_geometric.ops.mf_conv import MFConv
from popgeo.compat.poptorch_geometric.ops.nearest import nearest
from popgeo.compat.poptorch_geometric.ops.radius import radius, radius_graph
from popgeo.compat.poptorch_geometric.ops.to_dense_batch import to_dense_batch

__all__ = [
    "ClusterGCNConv",
    "HeteroLinear",
    "InstanceNorm",
    "MFConv",
    "assert_sorted_index",
    "knn",
    "knn_graph",
    "knn_interpolate",
    "nearest",
    "radius",
    "radius_graph",
    "to_dense_batch",
]
