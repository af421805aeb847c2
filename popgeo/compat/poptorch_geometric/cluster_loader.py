"""Batches of clusters of a large graph over PopTorch's `DataLoader`."""

from popgeo.compat import poptorch
from popgeo.compat.poptorch_geometric import pyg_cluster_loader
from popgeo.compat.poptorch_geometric.dataloader import OfWholeCalls


class FixedSizeClusterLoader(OfWholeCalls, pyg_cluster_loader.FixedSizeClusterLoader, poptorch.DataLoader):
    """Loads clusters in batches of one shape; see `pyg_cluster_loader.FixedSizeClusterLoader` and `OfWholeCalls`."""
