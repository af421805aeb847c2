"""Searches with missing neighbors, training compared with eager PyTorch, and other calls of old programs."""

import importlib

import pytest
import torch
from torch import nn
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.nn import DynamicEdgeConv, GraphConv, SumAggregation
from torch_geometric.utils import to_dense_batch

from popgeo.compat import disable, enable, poptorch, poptorch_geometric
from popgeo.compat.poptorch_geometric import TrainingStepper, masker, ops, set_aggregation_dim_size
from popgeo.compat.poptorch_geometric.types import PyGArgsParser, SubstitutionManager

LINE = torch.tensor([[0.0], [1.0], [3.0], [9.0]])
GRAPH = torch.tensor([0, 0, 0, 1])
EDGES = torch.tensor([[0, 1, 2, 1], [1, 0, 1, 2]])


def test_all_modules_have_their_places_under_the_old_name():
    names = "dataloader pyg_dataloader collate pyg_collate fixed_size_options stream_packing_sampler cluster_loader "
    names += (
        "pyg_cluster_loader neighbor_loader masker types common utils override ops ops.knn ops.knn_graph ops.radius "
    )
    names += "ops.knn_interpolate ops.instance_norm ops.mf_conv ops.cluster_gcn_conv ops.hetero_linear ops.nearest"
    enable()
    try:
        for name in names.split():
            importlib.import_module(f"poptorch_geometric.{name}")
        assert ops.knn.__name__ == "knn"  # the function, not the module
        assert callable(ops.knn)
    finally:
        disable()
    names = "FixedSizeDataLoader FixedSizeOptions FixedSizeStrategy OverSizeStrategy PyGArgsParser TrainingStepper "
    for name in (names + "make_exclude_keys set_aggregation_dim_size __version__").split():
        assert hasattr(poptorch_geometric, name)


def test_absent_neighbors_are_minus_one():
    assert ops.knn(LINE, LINE[3:], 2, GRAPH, GRAPH[3:]).tolist() == [[0, -1], [3, -1]]
    assert ops.knn_graph(LINE, 2, GRAPH, loop=True)[:, -2:].tolist() == [[3, -1], [3, -1]]
    assert ops.radius_graph(LINE, 1.5, GRAPH, max_num_neighbors=2).tolist() == [
        [1, -1, 0, -1, -1, -1, -1, -1],
        [0, -1, 1, -1, -1, -1, -1, -1],
    ]
    assert ops.nearest(LINE[:1], LINE[3:], GRAPH[:1], GRAPH[3:]).tolist() == [-1]
    mean = ops.knn_interpolate(LINE, LINE, torch.tensor([[2.0]]), k=2)  # mean of 1 and 3, both at a distance of 1
    assert mean.tolist() == [[2.0]]


def test_a_compiled_search_equals_an_eager_one():
    class Search(nn.Module):
        def forward(self, x, y):
            return ops.knn(x, y, 3)

    assert torch.equal(poptorch.inferenceModel(Search())(LINE, LINE), ops.knn(LINE, LINE, 3))


@pytest.mark.parametrize("layer", ["ClusterGCNConv", "MFConv"])
def test_layers_equal_pygs(layer):
    pyg = getattr(importlib.import_module("torch_geometric.nn"), layer)
    torch.manual_seed(0)
    x, ours = torch.randn(3, 2), getattr(ops, layer)(2, 4)
    theirs = pyg(2, 4)
    theirs.load_state_dict(ours.state_dict())
    torch.testing.assert_close(ours(x, EDGES), theirs(x, EDGES))


class WithLoss(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, *inputs):
        out = self.layer(*inputs)
        return out, (out - 1).square().mean()


def test_a_model_trains_beside_its_eager_self():
    torch.manual_seed(0)
    model = WithLoss(GraphConv(2, 3))
    before = model.layer.lin_rel.weight.clone()
    stepper = TrainingStepper(model, lr=0.1)
    stepper.run(3, (torch.randn(3, 2), EDGES))
    stepper.run_inference((torch.randn(3, 2), EDGES))
    assert torch.equal(model.layer.lin_rel.weight, before)
    assert not torch.allclose(stepper.ipu_model.layer.lin_rel.weight, before)
    with torch.no_grad():
        stepper.cpu_model.layer.lin_rel.weight.add_(1)
    with pytest.raises(AssertionError, match="Output was not equal"):
        stepper.run(1, (torch.randn(3, 2), EDGES))
    assert set(stepper.benchmark(1, (torch.randn(3, 2), EDGES), devices=("ipu", "cpu"))) == {"ipu_time", "cpu_time"}
    with pytest.raises(ValueError, match="'gpu'"):
        stepper.benchmark(1, (), devices=("gpu",))


def test_a_padded_batch_is_compared_with_one_that_is_not_row_by_row():
    class ChannelRows(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, x):
            return x * self.scale, (x * self.scale).sum()

    x = torch.ones(3, 2)
    TrainingStepper(ChannelRows()).run(2, (x,), (torch.cat([x, torch.zeros(2, 2)]),))
    with pytest.raises(AssertionError, match="Output was not equal"):
        TrainingStepper(ChannelRows()).run(1, (x,), (torch.cat([2 * x, x]),))


def test_a_layer_that_searches_trains_without_an_extension():
    torch.manual_seed(0)
    layer = DynamicEdgeConv(nn.Linear(4, 3), k=2)
    TrainingStepper(WithLoss(layer), rtol=1e-4, atol=1e-5).run(2, (torch.randn(6, 2), torch.tensor([0, 0, 0, 1, 1, 1])))


def test_compiling_names_the_argument_that_fixes_a_shape():
    class Dense(nn.Module):
        def forward(self, x, batch):
            return to_dense_batch(x, batch)[0]

    class Sum(nn.Module):
        def forward(self, x, batch):
            return SumAggregation()(x, batch)

    for model, argument in ((Dense(), "batch_size"), (Sum(), "dim_size")):
        with pytest.raises(ValueError, match=f"Dynamic shapes disabled. Argument '{argument}' needs to be set"):
            poptorch.inferenceModel(model)(LINE, GRAPH)
    assert to_dense_batch(LINE, GRAPH)[0].shape == (2, 3, 1)  # no error outside of a compilation
    with SubstitutionManager(), pytest.raises(ValueError, match="Dynamic shapes disabled"):
        to_dense_batch(LINE, GRAPH)


def test_rows_of_messages_can_be_fixed():
    layer = GraphConv(1, 2)
    set_aggregation_dim_size(layer, 4)
    assert layer(LINE, EDGES).shape == (4, 2)
    with pytest.raises(RuntimeError):
        layer(LINE[:3], EDGES)  # four rows of messages for three nodes


def test_graphs_and_batches_are_taken_apart_and_put_together():
    parser = PyGArgsParser()
    data = Data(y=torch.ones(1), x=torch.zeros(2, 1), name="water")
    batch = Batch.from_data_list([data, data])
    assert [t.shape[0] for t in parser.yieldTensors(batch)] == [4, 3, 4, 2]  # batch, ptr, x, y
    again = parser.reconstruct(batch, (tensor + 1 for tensor in parser.yieldTensors(batch)))
    assert type(again) is type(batch)
    assert (again.x == 1).all()
    assert (again.name, again.num_graphs) == (["water", "water"], 2)
    typed = HeteroData(a={"x": torch.zeros(2)}, b={"x": torch.zeros(3)}, y=torch.zeros(1))
    assert [len(tensor) for tensor in parser.yieldTensors(typed)] == [1, 2, 3]
    assert (parser.reconstruct(typed, iter(torch.ones(3, 1)))["b"].x == 1).all()
    assert (typed["b"].x == 0).all()
    with pytest.raises(ValueError, match="Unsupported data type"):
        list(parser.yieldTensors("data"))


def test_batches_are_arguments_and_results_of_compiled_models():
    class Twice(nn.Module):
        def forward(self, data):
            data.x = 2 * data.x
            return data

    data = Batch.from_data_list([Data(x=LINE, name="line")])
    assert poptorch.inferenceModel(Twice())(data).x.tolist() == [[0], [2], [6], [18]]


def test_maskers_mask_what_they_are_asked_to():
    class Zero(masker.NoMasker):
        def node_masker(self, node_entries, mask=None):
            return tuple(entries * mask for entries in node_entries)

    layers = masker.PreLayerMasker(Zero())
    mask = torch.tensor([1.0, 0.0])
    assert layers.node_masker(torch.add)(torch.ones(2), torch.ones(2), mask=mask).tolist() == [2, 0]
    for of in (layers.edge_masker, layers.graph_masker):
        assert of(torch.neg)(torch.ones(2), mask=mask).tolist() == [-1, -1]
    with pytest.raises(TypeError, match="abstract"):
        masker.Masker()
