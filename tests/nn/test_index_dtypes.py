"""Indices of 32 bits work like indices of 64 bits, and weights of edges may have PyG's shape."""

import pytest
import torch
from torch_geometric.data import Data

from popgeo import FixedSizeDataLoader, compile_forward
from popgeo.nn import (
    GCN,
    GIN,
    GPS,
    GraphSAGE,
    KNNInteractionGraph,
    PaiNN,
    PairInteractionGraph,
    RadiusInteractionGraph,
    SchNet,
)  # fmt: skip

EDGES = torch.tensor([[0, 1], [1, 0]])
GRAPHS = [
    Data(z=torch.ones(n).long(), pos=torch.rand(n, 3), x=torch.rand(n, 4), edge_index=EDGES, edge_weight=torch.rand(2))
    for n in (3, 4)
]
ATOMS = {
    "pairs": lambda: SchNet(8, 8, 1, interaction_graph=PairInteractionGraph(5.0)),
    "knn": lambda: SchNet(8, 8, 1, interaction_graph=KNNInteractionGraph(3, 5.0)),
    "radius": lambda: SchNet(8, 8, 1, interaction_graph=RadiusInteractionGraph(5.0, 40)),
    "PaiNN": lambda: PaiNN(8, 1, interaction_graph=PairInteractionGraph(5.0, 4)),
}
NODES = {
    "GCN": lambda: GCN(4, 8, 2, readout="mean"),
    "GIN": lambda: GIN(4, 8, 2, readout="sum", norm="graph_norm"),
    "GraphSAGE": lambda: GraphSAGE(4, 8, 2, readout="max"),
    "GPS, padded": lambda: GPS(4, 8, 2, heads=2, conv="gin", max_num_nodes=4, readout="add"),
    "GPS, packed": lambda: GPS(4, 8, 2, heads=2, conv="gin", readout="add"),
}


def batches():
    return (next(iter(FixedSizeDataLoader(GRAPHS, 3, index_dtype=dtype))) for dtype in (torch.int64, torch.int32))


@pytest.mark.parametrize("name", [*ATOMS, *NODES])
def test_a_model_gives_the_same_for_indices_of_both_sizes(name):
    model = (ATOMS | NODES)[name]().eval()
    wide, narrow = batches()
    assert narrow.batch.dtype is narrow.edge_index.dtype is torch.int32

    def arguments(batch):
        return (batch.z, batch.pos, batch.batch) if name in ATOMS else (batch.x, batch.edge_index, None)

    def run(function, batch):
        more = {} if name in ATOMS else {"batch": batch.batch}
        return function(*arguments(batch), **more, num_graphs=3)

    expected = run(model, wide).detach()
    assert torch.equal(run(model, narrow), expected)
    torch.testing.assert_close(run(compile_forward(model), narrow), expected)


def test_weights_of_edges_may_have_pygs_shape():
    batch, model = next(batches()), GCN(4, 8, 2)
    expected = model(batch.x, batch.edge_index, batch.edge_weight)
    assert torch.equal(model(batch.x, batch.edge_index, batch.edge_weight[:, None]), expected)
    with pytest.raises(ValueError, match=r"edge_weight has shape \(4, 3\); it is one number for each of the 5 edges"):
        model(batch.x, batch.edge_index, torch.ones(4, 3))
