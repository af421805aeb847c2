"""Claims about GPS against PyG's layers, and about its errors."""

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch.testing import assert_close

from popgeo.nn import GPS, GPSConv, SameGraph
from popgeo.nn.mlp import MLP
from popgeo.nn.models.gin import GINConv, GINEConv
from popgeo.nn.models.gnn import enter

BATCH = torch.tensor([0, 0, 0, 1, 2, 2, 2, 2])
EDGES = torch.tensor([[0, 1, 1, 2, 4, 5, 5, 6, 7, 4], [1, 0, 2, 1, 5, 4, 6, 5, 4, 7]])


def inputs() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(8, 6, generator=generator).double(), torch.randn(10, 6, generator=generator).double()


def convs(name: str) -> tuple[nn.Module | None, nn.Module | None]:
    if name == "gine":
        return GINEConv(MLP([6, 6, 6]), 6, 6), pyg.GINEConv(pyg.MLP([6, 6, 6], norm=None), edge_dim=6)
    if name == "gin":
        return GINConv(MLP([6, 6, 6])), pyg.GINConv(pyg.MLP([6, 6, 6], norm=None))
    return None, None


@pytest.mark.parametrize("form", ["pack", "padded"])
@pytest.mark.parametrize(("conv", "norm"), [("gine", "batch_norm"), ("gin", "graph_norm"), (None, None)])
def test_a_checkpoint_of_pygs_layer_gives_the_same_outputs_and_gradients(conv: str | None, norm: str | None, form: str):
    torch.manual_seed(0)
    ours, theirs = convs(str(conv))
    layer = GPSConv(6, ours, heads=3, norm=norm, act="gelu").double()
    reference = pyg.GPSConv(6, theirs, heads=3, norm=norm, act="gelu").double()
    layer.load_state_dict(reference.state_dict())
    x, edge_attr = inputs()
    _, batched = enter(x, EDGES, None, edge_attr, BATCH, 3, None, None)
    found = layer(x, batched, SameGraph.of(BATCH, 3, max_num_nodes=4, form=form))
    expected = reference(x, EDGES, BATCH, **({"edge_attr": edge_attr} if conv == "gine" else {}))
    assert_close(found, expected)
    slopes = [
        torch.autograd.grad(out.pow(3).sum(), list(m.parameters()))
        for out, m in ((expected, reference), (found, layer))
    ]
    assert_close(slopes[1], slopes[0])


def test_a_stack_of_pygs_layers_with_a_readout_gives_the_same():
    torch.manual_seed(0)
    model = GPS(6, 8, 2, out_channels=3, edge_dim=6, heads=2, readout="add", max_num_nodes=4).double()
    x, edge_attr = inputs()
    h = model.lin(x)
    for layer in model.layers:
        conv = pyg.GINEConv(pyg.MLP([8, 8, 8], norm=None), edge_dim=6)
        reference = pyg.GPSConv(8, conv, heads=2).double()
        reference.load_state_dict(layer.state_dict())
        h = reference(h, EDGES, BATCH, edge_attr=edge_attr)
    expected = model.head(pyg.global_add_pool(h, BATCH))
    assert_close(model(x, EDGES, edge_attr, BATCH, num_graphs=3), expected)


def test_a_node_sees_all_of_its_graph_and_nothing_else_even_without_edges():
    torch.manual_seed(0)
    model = GPS(6, 8, 1, conv=None, norm=None, heads=2).double()
    x, _ = inputs()
    x.requires_grad_()
    out = model(x, torch.zeros(2, 0, dtype=torch.long), batch=BATCH, num_graphs=3)
    for node in (0, 3, 7):
        (slope,) = torch.autograd.grad(out[node].sum(), x, retain_graph=True)
        assert_close(slope.abs().sum(1) > 0, BATCH.eq(BATCH[node]))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"conv": "gat"}, "conv is 'gat'"),
        ({"conv": "gine"}, "pass edge_dim"),
        ({"conv": "gin", "readout": "median"}, "readout is 'median'"),
        ({"conv": "gin", "heads": 3}, "heads must divide"),
        ({"conv": "gin", "norm": "pair_norm"}, "norm is 'pair_norm'"),
    ],
)
def test_a_wrong_choice_is_refused_with_what_is_allowed(arguments, words):
    with pytest.raises(ValueError, match=words):
        GPS(6, 8, 1, **arguments)


def test_graphs_without_their_number_and_pairs_without_a_bias_are_refused():
    model, (x, _) = GPS(6, 8, 1, conv="gin").double(), inputs()
    with pytest.raises(ValueError, match="Pass num_graphs"):
        model(x, EDGES, batch=BATCH)
    with pytest.raises(ValueError, match="no pair_bias"):
        model(x, EDGES, batch=BATCH, num_graphs=3, hops=torch.zeros(8, 8))
