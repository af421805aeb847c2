"""Claims about GCN, GIN, GINE and GraphSAGE against their counterparts in PyG."""

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor
from torch.testing import assert_close

from popgeo.nn import GCN, GIN, GINE, GraphSAGE

SHARED = {"in_channels": 5, "hidden_channels": 8, "num_layers": 3, "out_channels": 4}
PAIRS = {
    "gcn": (GCN, pyg.GCN, {}),
    "gcn without self-loops": (GCN, pyg.GCN, {"add_self_loops": False}),
    "gin": (GIN, pyg.GIN, {}),
    "gin, trained eps": (GIN, pyg.GIN, {"eps": 0.3, "train_eps": True}),
    "sage": (GraphSAGE, pyg.GraphSAGE, {}),
    "sage, max": (GraphSAGE, pyg.GraphSAGE, {"aggr": "max"}),
    "batch norm": (GIN, pyg.GIN, {"norm": "batch_norm"}),
    "batch norm after": (GCN, pyg.GCN, {"norm": "batch_norm", "act_first": True}),
    "jump to last": (GCN, pyg.GCN, {"jk": "last"}),
    "jump to all": (GIN, pyg.GIN, {"jk": "cat", "act": "elu"}),
    "jump to largest": (GraphSAGE, pyg.GraphSAGE, {"jk": "max"}),
    "one layer": (GCN, pyg.GCN, {"num_layers": 1}),
}
TOLERANCES = [(torch.float32, 1e-5), (torch.float64, 1e-10)]


def make_graph(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    edge_index = torch.randint(0, 12, (2, 40), generator=generator)
    edge_index = edge_index[:, edge_index[0] != edge_index[1]]
    loops, alone = torch.tensor([[3, 5, 5], [3, 5, 5]]), 12
    return torch.randn(alone + 1, 5, generator=generator).to(dtype), torch.cat([edge_index, loops], 1)


@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES, ids=["float32", "float64"])
@pytest.mark.parametrize(("ours", "theirs", "arguments"), PAIRS.values(), ids=PAIRS)
def test_a_checkpoint_of_pyg_gives_the_same_outputs_and_gradients(ours, theirs, arguments, dtype, tolerance):
    torch.manual_seed(0)
    reference = theirs(**SHARED | arguments).to(dtype)
    model = ours(**SHARED | arguments).to(dtype)
    model.load_state_dict(reference.state_dict())
    x, edge_index = make_graph(dtype)
    expected, found = reference(x, edge_index), model(x, edge_index)
    assert_close(found, expected, rtol=tolerance, atol=tolerance)
    gradients = [
        torch.autograd.grad(out.square().sum(), list(m.parameters()))
        for out, m in [(expected, reference), (found, model)]
    ]
    for name, one, other in zip(dict(model.named_parameters()), *gradients, strict=True):
        assert_close(other, one, rtol=10 * tolerance, atol=10 * tolerance, msg=name)


@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES, ids=["float32", "float64"])
def test_gine_equals_a_stack_of_pyg_layers(dtype, tolerance):
    torch.manual_seed(0)
    model = GINE(in_channels=5, hidden_channels=8, num_layers=2, edge_dim=3, train_eps=True, eps=0.1).to(dtype)
    layers = [pyg.GINEConv(pyg.MLP([i, 8, 8], norm=None), train_eps=True, edge_dim=3).to(dtype) for i in (5, 8)]
    x, edge_index = make_graph(dtype)
    edge_attr = torch.randn(edge_index.size(1), 3).to(dtype)
    for conv, layer in zip(model.convs, layers, strict=True):
        layer.load_state_dict(conv.state_dict())
    expected = layers[1](layers[0](x, edge_index, edge_attr).relu(), edge_index, edge_attr)
    assert_close(model(x, edge_index, edge_attr=edge_attr), expected, rtol=tolerance, atol=tolerance)


def test_gcn_weighs_edges_and_keeps_the_weight_of_a_self_loop():
    torch.manual_seed(0)
    reference, model = pyg.GCN(**SHARED).double(), GCN(**SHARED).double()
    model.load_state_dict(reference.state_dict())
    x, edge_index = make_graph(torch.float64)
    edge_weight = torch.rand(edge_index.size(1), dtype=torch.float64) + 0.5
    edge_weight[-2:] = 0.7  # PyG keeps either of a node's two self-loops
    assert_close(model(x, edge_index, edge_weight), reference(x, edge_index, edge_weight), rtol=1e-10, atol=1e-10)


def test_gcn_of_two_joined_nodes_worked_out_by_hand():
    model = GCN(in_channels=1, hidden_channels=1, num_layers=1)
    model.load_state_dict({"convs.0.lin.weight": torch.tensor([[2.0]]), "convs.0.bias": torch.tensor([1.0])})
    out = model(torch.tensor([[1.0], [3.0], [5.0]]), torch.tensor([[0, 1], [1, 0]]))
    # Two nodes of degree 2 average: (2 + 6) / 2 + 1 = 5. The third is alone with its self-loop: 10 + 1.
    assert_close(out.flatten(), torch.tensor([5.0, 5.0, 11.0]))


def test_a_readout_is_the_sum_of_its_nodes():
    torch.manual_seed(0)
    model = GIN(**SHARED, readout="add")
    x, edge_index = make_graph(torch.float32)
    out = model(x, edge_index, batch=torch.zeros(13, dtype=torch.long), num_graphs=2)
    model.readout = None
    assert_close(out, torch.stack([model(x, edge_index).sum(0), torch.zeros(4)]))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"num_layers": 0}, "num_layers is 0"),
        ({"jk": "lstm"}, "jk is 'lstm'"),
        ({"norm": "pair_norm"}, "norm is 'pair_norm'"),
        ({"readout": "median"}, "readout is 'median'"),
        ({"act": "rellu"}, "act is 'rellu'"),
    ],
)
def test_a_wrong_choice_is_refused_with_what_is_allowed(arguments, words):
    with pytest.raises(ValueError, match=words):
        GCN(**SHARED | arguments)


def test_a_readout_without_graphs_is_refused():
    x, edge_index = make_graph(torch.float32)
    with pytest.raises(ValueError, match="pass batch and num_graphs"):
        GIN(**SHARED, readout="add")(x, edge_index)


def test_gine_without_edge_features_is_refused():
    x, edge_index = make_graph(torch.float32)
    with pytest.raises(ValueError, match="edge_attr"):
        GINE(**SHARED, edge_dim=2)(x, edge_index)


def test_sage_with_an_unknown_aggregation_is_refused():
    with pytest.raises(ValueError, match="aggr is 'lstm'"):
        GraphSAGE(**SHARED, aggr="lstm")


@pytest.mark.parametrize("make_model", [GCN, GIN, GraphSAGE])
def test_edges_left_out_by_a_mask_never_reach_a_real_node(make_model):
    model = make_model(3, 8, 2)
    x, edge_index = torch.randn(5, 3), torch.tensor([[0, 1, 2, 3, 1], [1, 2, 0, 4, 3]])
    edges_mask = torch.tensor([True, False, True, True, False])
    expected = model(x, edge_index[:, edges_mask])
    padded = torch.cat([x, torch.zeros(1, 3)])
    masks = {"edges_mask": edges_mask, "nodes_mask": torch.arange(6) < 5}
    torch.testing.assert_close(model(padded, edge_index, **masks)[:5], expected)
    with pytest.raises(ValueError, match="moves edges to the last node, which is real"):
        model(x, edge_index, edges_mask=edges_mask, nodes_mask=torch.ones(5, dtype=torch.bool))
    everything = {"edges_mask": torch.ones(5, dtype=torch.bool), "nodes_mask": torch.ones(5, dtype=torch.bool)}
    torch.testing.assert_close(model(x, edge_index, **everything), model(x, edge_index))


@pytest.mark.parametrize(("model", "original"), [(GCN, pyg.GCN), (GIN, pyg.GIN), (GraphSAGE, pyg.GraphSAGE)])
def test_arguments_by_position_mean_the_same_as_in_pyg(model, original):
    arguments = (3, 8, 2, 4, 0.1, "elu", True)
    ours, pygs = model(*arguments), original(*arguments)
    assert (ours.dropout, ours.act_first) == (pygs.dropout.p, pygs.act_first)
    x = torch.linspace(-2, 2, 5)
    assert torch.equal(ours.act(x), pygs.act(x))
