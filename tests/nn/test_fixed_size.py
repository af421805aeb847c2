"""Claims about making PyG's own models static."""

import copy
import pickle

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch.testing import assert_close
from torch_geometric.experimental import set_experimental_mode

import popgeo
from popgeo import ipu
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
    "gat, attention": lambda: model_of(pyg.GATConv(4, 8), pyg.AttentionalAggregation(nn.Linear(8, 1))),
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
    compiled = popgeo.compile_forward(to_fixed_size(model, num_graphs=5))
    assert_close(compiled(X, EDGE_INDEX, BATCH), found)


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


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (lambda: pyg.EquilibriumAggregation(4, 4, [4]), "averages over graphs"),
        (lambda: pyg.InstanceNorm(4, track_running_stats=True), "popgeo.nn.InstanceNorm"),
        (lambda: pyg.GIN(4, 4, 2, norm="batch_norm"), "count padding nodes"),
        (lambda: pyg.GIN(4, 4, 2, norm="layer_norm"), "padding too"),
    ],
)
def test_what_cannot_be_static_is_refused_by_name_with_a_remedy(model, words: str):
    with pytest.raises(ValueError, match=words):
        to_fixed_size(model(), num_graphs=5)


class HoldsItsPool(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin, self.pool = nn.Linear(4, 8), pyg.global_mean_pool

    def forward(self, x: Tensor, batch: Tensor, size: int | None = None) -> Tensor:
        return self.pool(self.lin(x), batch, size)


def test_a_pool_that_a_module_holds_gets_the_size_unless_it_is_told_another():
    model = HoldsItsPool()
    fixed = to_fixed_size(model, 5)
    assert_close(fixed(X, BATCH)[:3], model(X, BATCH))
    assert fixed(X, BATCH).shape == (5, 8)
    assert fixed(X, BATCH, 4).shape == (4, 8)
    assert list(fixed.state_dict()) == list(model.state_dict())
    of_functions = pyg.Sequential("x, batch", [(pyg.global_max_pool, "x, batch -> x"), nn.ReLU()])
    assert to_fixed_size(of_functions, 5)(X, BATCH).shape == (5, 4)


class CallsItsPool(nn.Module):
    def forward(self, x: Tensor, batch: Tensor, size: int | None = None) -> Tensor:
        return pyg.global_add_pool(x, batch, size)


def test_a_pool_called_inside_a_forward_is_left_to_the_static_check_which_names_the_line():
    fixed = to_fixed_size(CallsItsPool(), 5)
    assert fixed(X, BATCH, 5).shape == (5, 4)
    (problem,) = ipu.check_static(fixed, X, BATCH)
    assert "return pyg.global_add_pool(x, batch, size)" in problem.source
    assert "size=" in problem.remedy


@pytest.mark.parametrize("readout", [pyg.SumAggregation(), pyg.SoftmaxAggregation(learn=True, channels=4)])
def test_a_readout_alone_is_fixed_and_may_be_told_another_size(readout: nn.Module):
    fixed = to_fixed_size(readout, 5)
    assert_close(fixed(X, BATCH)[:3], readout(X, BATCH))
    assert fixed(X, BATCH).shape == (5, 4)
    assert fixed(X, BATCH, dim_size=7).shape == (7, 4)
    assert str(readout) in str(fixed)


def learned_readout() -> nn.Module:
    gate = nn.Sequential(nn.Linear(8, 8), nn.Dropout(), nn.Linear(8, 1))
    many = pyg.MultiAggregation(["sum", pyg.SoftmaxAggregation(learn=True), pyg.AttentionalAggregation(gate)])
    return model_of(pyg.GraphConv(4, 8), many)


def test_names_are_pygs_and_copies_moves_and_modes_reach_the_readout():
    model = learned_readout()
    fixed = to_fixed_size(model, 5)
    assert dict(fixed.named_parameters()).keys() == dict(model.named_parameters()).keys()
    assert fixed.state_dict().keys() == model.state_dict().keys()
    for copied in (copy.deepcopy(fixed), pickle.loads(pickle.dumps(fixed.module_2))):
        for parameter in copied.parameters():
            parameter.data.zero_()
        assert copied.eval() is copied
    twin = copy.deepcopy(fixed).double().eval()
    twin.module_2.load_state_dict({key: torch.zeros_like(value) for key, value in twin.module_2.state_dict().items()})
    out = twin(X.double(), EDGE_INDEX, BATCH)
    assert out.dtype == torch.float64
    # With all weights zero every node has the same share, so the two learned readouts are means.
    mean = pyg.MeanAggregation()(twin.module_0(X.double(), EDGE_INDEX).relu(), BATCH, dim_size=5)
    assert_close(out[:, 8:], torch.cat([mean, mean], 1))
    assert_close(fixed.eval()(X, EDGE_INDEX, BATCH)[:3], model.eval()(X, EDGE_INDEX, BATCH))


class Scales(pyg.SumAggregation):
    """A readout that reads its training mode."""

    def forward(self, *args: object, **kwargs: object) -> Tensor:
        return super().forward(*args, **kwargs) * (2 if self.training else 1)


def test_the_mode_of_a_model_is_that_of_its_readout():
    fixed = to_fixed_size(nn.Sequential(Scales()), 5)
    assert_close(fixed[0](X, BATCH), 2 * fixed.eval()[0](X, BATCH))
    assert_close(fixed.train()[0](X, BATCH), 2 * fixed.eval()[0](X, BATCH))


class Loss(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, batch: Tensor) -> Tensor:
        return self.model(x, batch).square().mean()


def test_a_learned_readout_is_trained_by_a_compiled_step():
    fixed = to_fixed_size(pyg.SoftmaxAggregation(learn=True, channels=4), 5)
    eager, compiled = Loss(fixed), Loss(copy.deepcopy(fixed))
    loss = eager(X, BATCH)
    loss.backward()
    torch.optim.SGD(eager.parameters(), lr=0.5).step()
    step = ipu.training_model(compiled, optimizer=torch.optim.SGD(compiled.parameters(), lr=0.5))
    assert_close(step(X, BATCH), loss.detach())
    assert_close(compiled.model.t, eager.model.t)
    assert (compiled.model.t - 1).abs().max() > 1e-3


def test_a_module_that_stands_in_two_places_is_fixed_in_both():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = self.second = pyg.SumAggregation()

        def forward(self, x: Tensor, batch: Tensor) -> Tensor:
            return self.first(x, batch) + self.second(x, batch)

    assert to_fixed_size(Twice(), 5)(X, BATCH).shape == (5, 4)


NORMS = {
    "pair": pyg.PairNorm,
    "graph size": pyg.GraphSizeNorm,
    "mean subtraction": pyg.MeanSubtractionNorm,
    "instance": lambda: pyg.InstanceNorm(4),
    "layer": lambda: pyg.LayerNorm(4),
}


@pytest.mark.parametrize("name", NORMS)
def test_a_norm_of_graphs_is_told_their_number(name: str):
    norm = NORMS[name]()
    fixed = to_fixed_size(norm, 5)
    assert_close(fixed(X, BATCH), norm(X, BATCH))
    assert ipu.check_static(fixed, X, BATCH) == []
    assert ipu.check_static(norm, X, BATCH) == []  # capture has a static form of each of PyG's own


def test_no_graphs_at_all_are_refused():
    with pytest.raises(ValueError, match="num_graphs is 0"):
        to_fixed_size(MODELS["gcn, sum"](), num_graphs=0)
