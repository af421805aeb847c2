"""Parts of a large graph: clusters of nearly equal size, neighbors of seeds, and negatives of links."""

from popgeo.sampling.check_choices import TemporalStrategy as TemporalStrategy
from popgeo.sampling.compressed_graph import CompressedGraph as CompressedGraph
from popgeo.sampling.compressed_graph import Direction as Direction
from popgeo.sampling.entity_shards import EntityShards as EntityShards
from popgeo.sampling.negatives import NegativeMode as NegativeMode
from popgeo.sampling.negatives import NonEdges as NonEdges
from popgeo.sampling.negatives import sample_negatives as sample_negatives
from popgeo.sampling.partition import PartitionMethod as PartitionMethod
from popgeo.sampling.partition import edge_cut as edge_cut
from popgeo.sampling.partition import partition as partition
from popgeo.sampling.sample_neighbors import sample_neighbors as sample_neighbors
from popgeo.sampling.sampled_subgraph import EdgeType as EdgeType
from popgeo.sampling.sampled_subgraph import HeteroSampledSubgraph as HeteroSampledSubgraph
from popgeo.sampling.sampled_subgraph import SampledSubgraph as SampledSubgraph
