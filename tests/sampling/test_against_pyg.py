"""With all neighbors taken there is nothing to draw: samples have the nodes and edges of PyTorch Geometric's."""

import pytest
import torch
from torch import Tensor
from torch_geometric.data import HeteroData
from torch_geometric.sampler import NeighborSampler, NodeSamplerInput
from torch_geometric.utils import coalesce

from popgeo.sampling import CompressedGraph, sample_neighbors
from tests.support.graphs import graph

pytest.importorskip("torch_sparse", reason="PyG's sampler needs torch_sparse (extra `peers`)")
pytestmark = pytest.mark.filterwarnings("ignore:.*pyg-lib:UserWarning")


def edges(node: Tensor, other: Tensor, row: Tensor, col: Tensor) -> list[tuple[int, int]]:
    """Source and destination of each edge, in the large graph."""
    return sorted(zip(node[row].tolist(), other[col].tolist(), strict=True))


@pytest.mark.parametrize("subgraph_type", ["directional", "bidirectional", "induced"])
@pytest.mark.parametrize("hops", [1, 2, 3])
def test_all_neighbors_are_those_of_pyg(subgraph_type, hops):
    data = graph(num_nodes=60, num_edges=90)
    data.edge_index = coalesce(data.edge_index)  # PyG joins parallel edges of a bidirectional sample
    seeds = torch.tensor([7, 3, 31, 7])[: 3 if subgraph_type == "bidirectional" else 4]
    peer = NeighborSampler(data, [-1] * hops, subgraph_type=subgraph_type)
    theirs = peer.sample_from_nodes(NodeSamplerInput(input_id=None, node=seeds))
    compressed = CompressedGraph.from_edge_index(data.edge_index, 60)
    ours = sample_neighbors(compressed, seeds, [-1] * hops, subgraph_type=subgraph_type)
    assert ours.node.tolist()[: len(seeds)] == theirs.node.tolist()[: len(seeds)] == seeds.tolist()
    assert sorted(ours.node.tolist()) == sorted(theirs.node.tolist())
    assert edges(ours.node, ours.node, ours.row, ours.col) == edges(theirs.node, theirs.node, theirs.row, theirs.col)
    if subgraph_type != "bidirectional":
        numbers = theirs.edge if peer.edge_permutation is None else peer.edge_permutation[theirs.edge]
        assert sorted(ours.edge.tolist()) == sorted(numbers.tolist())


def test_all_neighbors_of_a_heterogeneous_graph_are_those_of_pyg():
    random = torch.Generator().manual_seed(0)
    sizes = {"a": 30, "b": 20}
    data = HeteroData()
    for node_type, size in sizes.items():
        data[node_type].num_nodes = size
    graphs = {}
    for edge_type in (("a", "to", "b"), ("b", "of", "a"), ("b", "next", "b")):
        ends = (sizes[edge_type[0]], sizes[edge_type[2]])
        index = torch.stack([torch.randint(size, (25,), generator=random) for size in ends])
        data[edge_type].edge_index = index
        graphs[edge_type] = CompressedGraph.from_edge_index(index, ends)
    counts = {edge_type: [-1, -1] for edge_type in graphs} | {("b", "next", "b"): [-1, 0]}
    seeds = torch.tensor([4, 11])
    peer = NeighborSampler(data, counts)
    theirs = peer.sample_from_nodes(NodeSamplerInput(input_id=None, node=seeds, input_type="b"))
    ours = sample_neighbors(graphs, {"b": seeds}, counts)
    for node_type in sizes:
        assert sorted(ours.node[node_type].tolist()) == sorted(theirs.node[node_type].tolist())
    for edge_type in graphs:
        ends = [(sample.node[edge_type[0]], sample.node[edge_type[2]]) for sample in (ours, theirs)]
        assert edges(*ends[0], ours.row[edge_type], ours.col[edge_type]) == edges(
            *ends[1], theirs.row[edge_type], theirs.col[edge_type]
        )
