"""The other graphs of a batch do not change a graph's results, or a warning says so."""

import warnings

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader

from popgeo.data import FixedSizeOptions
from popgeo.deploy.predictor import Predictor
from popgeo.nn import GIN

SMALL = FixedSizeOptions(num_nodes=32, num_edges=70, num_graphs=6)
TOLD = "depends on those that share its batch, or on padding: out differs by up to"


def graphs_of(count: int) -> list[Data]:
    generator = torch.Generator().manual_seed(0)
    edges = torch.tensor([[0, 1, 2], [1, 2, 0]])
    return [Data(x=torch.randn(3 + i % 4, 4, generator=generator), edge_index=edges) for i in range(count)]


class Centred(nn.Module):
    """A model that subtracts the mean of all nodes, as PyG's `LayerNorm(mode="graph")` does without a batch."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


class FromTheFirst(nn.Module):
    """A model that measures from the first node of the batch, so that only the first graph's results are right."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x[:1]


class Shared(nn.Module):
    """A model that divides by the number of nodes of the batch, which counts slots."""

    def forward(self, x: Tensor, num_nodes: int) -> Tensor:
        return x / num_nodes


class Drawn(nn.Module):
    """A model that is random in evaluation, too."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(x, training=True)


@pytest.mark.parametrize("model", [Centred(), FromTheFirst(), Shared(), Drawn()], ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("backend", ["cpu", "none"])
def test_a_result_that_depends_on_other_graphs_is_told_of(model, backend):
    with pytest.warns(UserWarning, match=TOLD):
        Predictor(model, SMALL, backend)(graphs_of(12))


@pytest.mark.parametrize("sizes", [SMALL, None, FixedSizeOptions(num_nodes=5, num_edges=3, num_graphs=2)])
@pytest.mark.parametrize("model", [Centred(), Shared()], ids=lambda one: type(one).__name__)
def test_a_result_of_one_graph_that_depends_on_padding_is_told_of(model, sizes):
    with pytest.warns(UserWarning, match=TOLD):
        Predictor(model, sizes)(graphs_of(2)[1:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("readout", ["sum", None])
def test_a_model_that_keeps_graphs_apart_is_not_suspected(dtype, readout):
    torch.manual_seed(0)
    model = GIN(4, 8, 2, out_channels=2, readout=readout).to(dtype)
    graphs = [Data(x=100 * graph.x.to(dtype), edge_index=graph.edge_index) for graph in graphs_of(12)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        predictor = Predictor(model, SMALL)
        predictor(graphs)
        predictor(graphs[:1])


def test_numbers_that_are_none_of_one_graph_stay_its_own():
    graphs = graphs_of(12)
    graphs[5].x[0] = torch.nan
    found = Predictor(GIN(4, 8, 2, out_channels=2, readout="sum"), SMALL)(graphs)["out"]
    assert found.isnan().any(1).nonzero().flatten().tolist() == [5]


def test_one_graph_and_batches_of_a_loader_are_not_taken_for_graphs():
    predictor, graphs = Predictor(GIN(4, 8, 2, out_channels=2, readout="sum"), SMALL, "none"), graphs_of(6)
    with pytest.raises(ValueError, match=r"graphs is one Data; pass a list, even of one: \[graph\]"):
        predictor(graphs[0])
    assert predictor(DataLoader(graphs, 3)).num_graphs == 6
    assert predictor(iter(DataLoader(graphs, 3))).num_graphs == 6


class Kind(nn.Module):
    """A model that centers over all nodes of the batch, and returns classes, answers or marks of each graph."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: Tensor, batch: Tensor, num_graphs: int) -> Tensor:
        pooled = torch.zeros(num_graphs, x.size(1)).index_add(0, batch, x - (0 if self.kind == "right" else x.mean(0)))
        classes = pooled.argmax(1)
        if self.kind in ("integers", "right"):
            return classes
        if self.kind == "booleans":
            return pooled > 0
        return classes.float() if self.kind == "whole floats" else torch.where(pooled > 0, 1.0, float(self.kind))


@pytest.mark.parametrize("kind", ["integers", "booleans", "whole floats", "nan", "inf", "right"])
@pytest.mark.parametrize("way", ["call", "stream", "keep", "after one"])
def test_whole_numbers_and_nan_that_depend_on_other_graphs_are_told_of(kind, way):
    generator = torch.Generator().manual_seed(0)
    edges = torch.zeros(2, 1, dtype=torch.long)
    graphs = [Data(x=torch.randn(3 + i % 4, 4, generator=generator) + i % 3, edge_index=edges) for i in range(30)]
    predictor = Predictor(Kind(kind), SMALL, "none")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        if way == "stream":
            list(predictor.stream(graphs, ahead=5))
        elif way == "keep":
            predictor([*graphs, Data(x=torch.zeros(2, 3), edge_index=edges)], errors="keep")
        else:
            predictor(graphs[:1] if way == "after one" else graphs)
            predictor(graphs)
    assert any(TOLD in str(one.message) for one in told) == (kind != "right")
