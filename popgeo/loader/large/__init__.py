"""Loaders of one large graph: clusters of it, or seeds with sampled neighbours."""

from popgeo.loader.large.cluster_loader import FixedSizeClusterLoader as FixedSizeClusterLoader
from popgeo.loader.large.disk_features import DiskFeatures as DiskFeatures
from popgeo.loader.large.link_loader import FixedSizeLinkLoader as FixedSizeLinkLoader
from popgeo.loader.large.neighbor_loader import FixedSizeNeighborLoader as FixedSizeNeighborLoader
from popgeo.loader.large.partitioned_features import PartitionedFeatures as PartitionedFeatures
