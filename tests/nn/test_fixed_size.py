"""Claims about making PyG's own models static."""

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch.testing import assert_close
from torch_geometric.experimental import set_experimental_mode

from popgeo.nn import to_fixed_size

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
EDGE_INDEX = torch.tensor([[0, 1, 2, 3, 3], [1, 0, 1, 4, 3]])
BATCH = torch.tensor([0, 0, 0, 1, 1, 2])


def model_of(conv: nn.Module, readout: nn.Module) -> nn.Module:
    return pyg.Sequential("x, edge_index, batch", [(conv, "x, edge_index -> x"), nn.ReLU(), (readout, "x, batch -> x")])


MODELS = {
    "gcn, sum": lambda: model_of(pyg.GCNConv(4, 8), pyg.SumAggregation()),
    "sage, mean": lambda: model_of(pyg.SAGEConv(4, 8), pyg.MeanAggregation()),
    "gin, max": lambda: model_of(pyg.GINConv(nn.Linear(4, 8)), pyg.MaxAggregation()),
    "gat, attention": lambda: model_of(
        pyg.GATConv(4, 8, add_self_loops=False), pyg.AttentionalAggregation(nn.Linear(8, 1))
    ),
    "many readouts": lambda: model_of(pyg.GraphConv(4, 8), pyg.MultiAggregation(["sum", "max"])),
    "graph norm": lambda: pyg.Sequential(
        "x, edge_index, batch", [(pyg.GraphNorm(4), "x, batch -> x"), (pyg.SumAggregation(), "x, batch -> x")]
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_static_model_gives_the_same_rows_and_as_many_as_it_was_told(name: str):
    torch.manual_seed(0)
    model = MODELS[name]()
    with set_experimental_mode(True, "disable_dynamic_shapes"):
        found = to_fixed_size(model, num_graphs=5)(X, EDGE_INDEX, BATCH)
    assert_close(found[:3], model(X, EDGE_INDEX, BATCH))
    assert found.size(0) == 5


def test_the_copy_has_the_same_parameters_and_the_model_stays_as_it_is():
    model = MODELS["gat, attention"]()
    fixed = to_fixed_size(model, num_graphs=5)
    fixed.load_state_dict(model.state_dict())
    assert model(X, EDGE_INDEX, BATCH).size(0) == 3


def test_schnet_of_pyg_gets_a_fixed_number_of_edges():
    torch.manual_seed(0)
    model = pyg.SchNet(16, 16, 2, 10, cutoff=5.0, interaction_graph=None, max_num_neighbors=8)
    fixed = to_fixed_size(model, num_graphs=5)
    z, pos = torch.tensor([6, 1, 1, 8, 1, 7]), 2 * torch.randn(6, 3)
    edge_index, _ = fixed.interaction_graph(pos, BATCH)
    assert edge_index.shape == (2, 6 * 8)
    assert fixed(z, pos, BATCH).shape == (5, 1)


class Unsized(nn.Module):
    def forward(self, x: Tensor, batch: Tensor) -> Tensor:
        return pyg.global_add_pool(x, batch)


class SizedByHand(nn.Module):
    def forward(self, x: Tensor, batch: Tensor) -> Tensor:
        return pyg.global_add_pool(x, batch, 5)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (lambda: Unsized(), "calls global_add_pool without a size"),
        (lambda: pyg.TopKPooling(4), "keeps depends on data"),
        (lambda: pyg.SortAggregation(3), "sorts or densifies"),
        (lambda: nn.Sequential(pyg.GATConv(4, 4)), "add_self_loops=False"),
        (lambda: pyg.GIN(4, 4, 2, norm="batch_norm"), "count padding nodes"),
        (lambda: pyg.GIN(4, 4, 2, norm="layer_norm"), "padding too"),
        (lambda: nn.Sequential(pyg.GCNConv(4, 4, cached=True)), "popgeo.nn.GCN"),
    ],
)
def test_what_cannot_be_static_is_refused_by_name_with_a_remedy(model, words: str):
    with pytest.raises(ValueError, match=words):
        to_fixed_size(model(), num_graphs=5)


def test_a_pool_that_is_told_its_size_passes():
    assert to_fixed_size(SizedByHand(), 5)(X, BATCH).shape == (5, 4)


def test_no_graphs_at_all_are_refused():
    with pytest.raises(ValueError, match="num_graphs is 0"):
        to_fixed_size(MODELS["gcn, sum"](), num_graphs=0)
