"""Parts of a large graph: clusters of nearly equal size, neighbours of seeds, negatives of links."""

from popgeo.sampling.arguments import TemporalStrategy
from popgeo.sampling.compressed_graph import CompressedGraph, Direction
from popgeo.sampling.entity_shards import EntityShards
from popgeo.sampling.negatives import NegativeMode, NonEdges, sample_negatives
from popgeo.sampling.neighbors import sample_neighbors
from popgeo.sampling.partition import PartitionMethod, edge_cut, partition
from popgeo.sampling.subgraph import EdgeType, HeteroSampledSubgraph, SampledSubgraph

__all__ = [
    "CompressedGraph",
    "Direction",
    "EdgeType",
    "EntityShards",
    "HeteroSampledSubgraph",
    "NegativeMode",
    "NonEdges",
    "PartitionMethod",
    "SampledSubgraph",
    "TemporalStrategy",
    "edge_cut",
    "partition",
    "sample_negatives",
    "sample_neighbors",
]
