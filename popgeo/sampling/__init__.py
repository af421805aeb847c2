"""Parts of a large graph: partitions into clusters of equal size."""

from popgeo.sampling.partition import PartitionMethod, edge_cut, partition

__all__ = ["PartitionMethod", "edge_cut", "partition"]
