"""Loaders of one large graph: clusters of it, or seeds with sampled neighbours."""

from popgeo.loader.large.cluster_loader import FixedSizeClusterLoader
from popgeo.loader.large.link_loader import FixedSizeLinkLoader
from popgeo.loader.large.neighbor_loader import FixedSizeNeighborLoader

__all__ = ["FixedSizeClusterLoader", "FixedSizeLinkLoader", "FixedSizeNeighborLoader"]
