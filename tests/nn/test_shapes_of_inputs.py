"""Errors for inputs with a wrong shape or type name the argument; without a check some would give plausible numbers."""

import pytest
import torch
from torch_geometric.data import Data

from popgeo import Predictor, compile_forward
from popgeo.nn import (
    GCN,
    GIN,
    GINE,
    GPS,
    BesselBasis,
    GraphSAGE,
    InnerProductDecoder,
    PaiNN,
    RadiusInteractionGraph,
    SchNet,
)
from popgeo.ops import EdgePlan, distance

X, EDGES = torch.rand(5, 4), torch.tensor([[0, 1, 2, 3], [1, 0, 3, 2]])
Z, POS = torch.tensor([8, 1, 1, 6, 1]), torch.rand(5, 3)
NODES = {
    "GCN": GCN(4, 8, 2),
    "GIN": GIN(4, 8, 2),
    "GINE": GINE(4, 8, 2, edge_dim=1),
    "GraphSAGE": GraphSAGE(4, 8, 2),
    "GPS": GPS(4, 8, 2, heads=2, conv="gin"),
}
ATOMS = {"SchNet": SchNet(8, 8, 1), "PaiNN": PaiNN(8, 1)}


def of_nodes(model, x=X, edge_index=EDGES, **masks):
    return model(x, edge_index, edge_attr=torch.ones(4, 1), batch=torch.zeros(5).long(), num_graphs=1, **masks)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", NODES)
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"edge_index": EDGES.t()},
            r"edge_index has shape \(4, 2\); pass \[2, num_edges\] or edge_index.t\(\)",
        ),
        ({"edge_index": torch.eye(5).to_sparse()}, r"edge_index has shape \(5, 5\)"),
        ({"edge_index": EDGES[0]}, r"edge_index has shape \(4,\)"),
        ({"x": X[:, 0]}, r"x has shape \(5,\); it is \[num_nodes, in_channels\]"),
        ({"x": X[None]}, r"x has shape \(1, 5, 4\)"),
        ({"nodes_mask": torch.ones(1, dtype=torch.bool)}, r"nodes_mask has shape \(1,\) .* must have \(5,\)"),
        ({"nodes_mask": torch.ones(5)}, "nodes_mask has .* torch.float32; it must have .* torch.bool"),
        ({"edges_mask": torch.ones(1, dtype=torch.bool)}, r"edges_mask has shape \(1,\) .* must have \(4,\)"),
    ],
)
def test_a_model_of_nodes_refuses(name, wrong, message, compiled):
    model = NODES[name].eval()
    of_nodes(model)
    if compiled and wrong.get("edge_index", EDGES).is_sparse:
        message = "sparse_coo tensor .* whose elements have no fixed places"
    with pytest.raises(ValueError, match=message):
        of_nodes(compile_forward(model) if compiled else model, **wrong)


@pytest.mark.parametrize("name", ATOMS)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.float32, torch.bool])
def test_a_model_of_atoms_refuses_numbers_of_another_type(name, dtype):
    search, z = RadiusInteractionGraph(5.0, 20), Z.to(dtype)
    for model in (ATOMS[name], type(ATOMS[name])(8, num_interactions=1, interaction_graph=search)):
        for run in (model, compile_forward(model.eval())):
            with pytest.raises(ValueError, match=rf"z has dtype {dtype}; an index is .* Call z.long\(\)"):
                run(z, POS, None, EDGES, num_graphs=1)
            with pytest.raises(ValueError, match=rf"batch has dtype {dtype}"):
                run(Z, POS, torch.zeros(5, dtype=dtype), EDGES, num_graphs=1)
        with pytest.raises(ValueError, match=rf"z has dtype {dtype}"):
            Predictor(model)([Data(z=z, pos=POS, edge_index=EDGES)])


@pytest.mark.parametrize("name", ATOMS)
def test_a_model_of_atoms_refuses_other_shapes(name):
    for z, message in ((Z[:, None], r"z has shape \(5, 1\)"), (Z[:3], r"z has shape \(3,\)")):
        with pytest.raises(ValueError, match=message):
            ATOMS[name](z, POS, None, EDGES, num_graphs=1)
    with pytest.raises(ValueError, match=r"edge_index has shape \(4, 2\)"):
        ATOMS[name](Z, POS, None, EDGES.t(), num_graphs=1)


@pytest.mark.parametrize(
    "function",
    [
        lambda edges: InnerProductDecoder()(X, edges),
        lambda edges: EdgePlan.from_edge_index(edges, 5),
        lambda edges: distance(POS, edges, None, 5.0),
    ],
)
def test_functions_of_edges_refuse_their_transpose(function):
    function(EDGES)
    with pytest.raises(ValueError, match=r"edge_index has shape \(4, 2\)"):
        function(EDGES.t())


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    "model", [*ATOMS.values(), SchNet(8, 8, 1, dipole=True)], ids=["SchNet", "PaiNN", "SchNet with a dipole"]
)
def test_a_position_that_is_nan_makes_the_prediction_nan(model, compiled):
    pos = torch.where(torch.arange(15).view(5, 3) == 4, torch.nan, POS)
    run = compile_forward(model.eval()) if compiled else model
    assert run(Z, pos, None, EDGES, num_graphs=1).isnan().all()
    assert run(Z, POS, None, EDGES, num_graphs=1).isfinite().all()


def test_a_distance_of_nan_is_no_distance_of_zero():
    pos = torch.tensor([[0.0, 0, 0], [0, 0, torch.nan], [0, 0, 0]])
    lengths = distance(pos, torch.tensor([[1, 2], [0, 0]]), None, 5.0)
    assert torch.equal(lengths.isnan(), torch.tensor([True, False]))
    assert torch.equal(BesselBasis(5.0, 3)(lengths).isnan().all(1), torch.tensor([True, False]))
