"""Parts of a large graph: neighbours of seeds, and negatives of links; pure functions of a compressed graph."""

from popgeo.sampling.arguments import TemporalStrategy as TemporalStrategy
from popgeo.sampling.compressed_graph import CompressedGraph as CompressedGraph
from popgeo.sampling.compressed_graph import Direction as Direction
from popgeo.sampling.negatives import NegativeMode as NegativeMode
from popgeo.sampling.negatives import NonEdges as NonEdges
from popgeo.sampling.negatives import sample_negatives as sample_negatives
from popgeo.sampling.neighbors import sample_neighbors as sample_neighbors
from popgeo.sampling.subgraph import EdgeType as EdgeType
from popgeo.sampling.subgraph import HeteroSampledSubgraph as HeteroSampledSubgraph
from popgeo.sampling.subgraph import SampledSubgraph as SampledSubgraph
