"""While a model is captured, static forms replace functions that read data; results and gradients stay equal."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg_nn
from torch import Tensor, nn
from torch_geometric.nn.aggr import MedianAggregation, QuantileAggregation
from torch_geometric.utils import scatter

from popgeo.capture import static_neighbors
from popgeo.ipu import DynamicShapeError, Options, check_static, compile, training_model

NODES, GRAPHS = 10, 3
BATCH = torch.tensor([0, 0, 0, 0, 1, 1, 1, 2, 2, 2])
EDGES = torch.tensor([[1, 2, 0, 3, 0, 5, 4, 6, 8, 9, 7, 7], [0, 0, 1, 1, 3, 4, 5, 5, 7, 7, 8, 8]])
LOOPS = torch.cat([EDGES, torch.tensor([[2, 6], [2, 6]])], dim=1)


class Trained(nn.Module):
    """A layer and a call of it, with a loss that gives each element a different weight."""

    def __init__(self, layer: nn.Module, call: Callable[..., Tensor]) -> None:
        super().__init__()
        self.layer, self.call = layer, call

    def forward(self, *inputs: Any) -> Tensor:
        out = self.call(self.layer, *inputs)
        return (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)).sum() + out.square().mean()


def assert_trains_as_in_eager_pytorch(
    layer: nn.Module, *inputs: Any, call=lambda layer, *inputs: layer(*inputs), dtype=torch.float64
):
    model = Trained(layer, call).to(dtype)
    reference = copy.deepcopy(model)
    step = training_model(model, Options(strict=False), torch.optim.SGD(model.parameters(), lr=0.05))
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.05)
    for _ in range(2):
        expected = reference(*inputs)
        torch.testing.assert_close(step(*inputs), expected.detach())
        optimizer.zero_grad()
        expected.backward()
        optimizer.step()
    torch.testing.assert_close(dict(model.state_dict()), dict(reference.state_dict()))


def before_linear(norm: nn.Module) -> nn.Module:
    return pyg_nn.Sequential("x, batch", [(norm, "x, batch -> x"), nn.Linear(4, 4)])


def features(channels: int = 4) -> Tensor:
    return torch.randn(NODES, channels, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_bincount_has_as_many_bins_as_asked_for_and_a_number_beyond_is_an_error():
    step = compile(lambda i: torch.bincount(i, minlength=4), [torch.tensor([0, 1, 1])])
    assert step(torch.tensor([3, 1, 3])).tolist() == [0, 1, 0, 2]
    with pytest.raises((RuntimeError, IndexError), match="out of bounds"):
        step(torch.tensor([0, 4, 0]))
    with pytest.raises(DynamicShapeError, match="minlength="):
        compile(lambda i: torch.bincount(i), [torch.tensor([0, 1, 1])])


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.float64, torch.float16])
def test_bincount_adds_weights_in_the_type_that_torch_adds_them_in(dtype):
    index, weights = torch.tensor([2, 0, 2], dtype=torch.int32), torch.tensor([1, 2, 3], dtype=dtype)
    expected = torch.bincount(index, weights, minlength=3)
    made = compile(lambda i, w: i.bincount(w, 3), [index, weights])(index, weights)
    torch.testing.assert_close(made, expected)


@pytest.mark.parametrize("shape", [(3,), (1, 3), (1,), (1, 1)])
@pytest.mark.parametrize("where", ["rows", "columns", "part"])
def test_one_row_is_written_wherever_a_mask_holds(shape, where):
    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.row = nn.Parameter(torch.arange(1.0, 1 + torch.Size(shape).numel()).view(shape))

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            y = x.clone()
            if where == "rows":
                y[mask] = self.row
            elif where == "columns":
                y.t()[:, 1:][mask[:3]] = self.row[..., :1]
            else:
                y[mask, :3] = self.row
            return y

    mask, x = torch.tensor([True, False, False, True]), features(3)[:4]
    assert_trains_as_in_eager_pytorch(Writes(), x, mask)


def test_a_row_for_each_place_of_a_mask_is_refused():
    def writes(x: Tensor, mask: Tensor, rows: Tensor) -> Tensor:
        x[mask] = rows
        return x

    with pytest.raises(DynamicShapeError, match=r"torch\.where"):
        compile(writes, [torch.zeros(4, 3), torch.tensor([True, False, False, True]), torch.ones(2, 3)])


@pytest.mark.parametrize(
    ("reduction", "full", "shape"), [("mean", False, (NODES, 4)), ("sum", True, (NODES, 1)), ("none", False, (NODES,))]
)
def test_a_gaussian_likelihood_trains_as_in_eager_pytorch(reduction, full, shape):
    def loss(layer, x, variance):
        return nn.functional.gaussian_nll_loss(layer(x), x, variance, full, 0.05, reduction).reshape(-1) / 100

    variance = torch.full(shape, 0.3, dtype=torch.float64)
    variance[0] = 0.01
    assert_trains_as_in_eager_pytorch(nn.Linear(4, 4), features(), variance, call=loss)


def test_a_negative_variance_is_no_number():
    step = compile(nn.functional.gaussian_nll_loss, [torch.ones(2), torch.ones(2), torch.ones(2)])
    assert step(torch.ones(2), torch.ones(2), torch.ones(2)) == 0
    assert step(torch.ones(2), torch.ones(2), torch.tensor([1.0, -1.0])).isnan()


def test_a_likelihood_of_one_number_has_the_type_of_eager_mode():
    given = torch.tensor(1.0, dtype=torch.float64), torch.zeros(2), torch.tensor(2.0, dtype=torch.float64)
    loss = compile(nn.functional.gaussian_nll_loss, [*given])(*given)
    torch.testing.assert_close(loss, nn.functional.gaussian_nll_loss(*given))


def test_an_infinite_variance_has_an_infinite_loss_as_in_eager_pytorch():
    given = torch.ones(2), torch.zeros(2), torch.tensor([1.0, torch.inf])
    step = compile(nn.functional.gaussian_nll_loss, [*given])
    assert step(*given) == nn.functional.gaussian_nll_loss(*given) == torch.inf


torch.manual_seed(0)  # for the weights of these layers
LAYERS = {
    "HeteroLinear": (pyg_nn.HeteroLinear(4, 3, 3), [features(), BATCH[torch.randperm(NODES)]]),
    "HeteroLinear sorted": (pyg_nn.HeteroLinear(4, 3, 4, is_sorted=True, bias=False), [features(), BATCH]),
    "MFConv": (pyg_nn.MFConv(4, 3, max_degree=2), [features(), EDGES]),
    "MFConv of two": (pyg_nn.MFConv((4, 2), 3), [(features(), features(2)), EDGES]),
    "MFConv of one side": (pyg_nn.MFConv((4, 2), 3), [(features(), None), EDGES, (NODES, NODES)]),
    "ClusterGCNConv": (pyg_nn.ClusterGCNConv(4, 3, diag_lambda=0.5), [features(), LOOPS]),
    "ClusterGCNConv of edges": (pyg_nn.ClusterGCNConv(4, 3), [features(), EDGES]),
    "InstanceNorm": (pyg_nn.InstanceNorm(4, affine=True, track_running_stats=True), [features(), BATCH]),
    "InstanceNorm of two": (pyg_nn.InstanceNorm(4, affine=True), [features(), BATCH.clamp(max=1)]),
    "InstanceNorm with a size": (pyg_nn.InstanceNorm(4, affine=True, track_running_stats=True), [features(), BATCH, 4]),
    "InstanceNorm of one": (pyg_nn.InstanceNorm(4, affine=True), [features()]),
    "GraphNorm": (pyg_nn.GraphNorm(4), [features(), BATCH]),
    "GraphNorm with a size": (pyg_nn.GraphNorm(4), [features(), BATCH, 4]),
    "GraphNorm of one": (pyg_nn.GraphNorm(4), [features()]),
    "LayerNorm": (pyg_nn.LayerNorm(4), [features(), BATCH]),
    "MeanSubtractionNorm": (before_linear(pyg_nn.MeanSubtractionNorm()), [features(), BATCH]),
    "PairNorm": (before_linear(pyg_nn.PairNorm()), [features(), BATCH]),
    "GraphSizeNorm": (before_linear(pyg_nn.GraphSizeNorm()), [features(), BATCH]),
    "GPSConv": (pyg_nn.GPSConv(4, pyg_nn.GCNConv(4, 4), heads=2), [features(), LOOPS, BATCH]),
    "GPSConv of one": (pyg_nn.GPSConv(4, None, heads=2, norm=None), [features(), LOOPS]),
    "DNAConv": (pyg_nn.DNAConv(4, 2, add_self_loops=False), [features(12).view(NODES, 3, 4), EDGES]),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_of_pyg_trains_as_in_eager_pytorch(name):
    layer, inputs = copy.deepcopy(LAYERS[name])
    assert_trains_as_in_eager_pytorch(layer, *inputs)


def test_an_instance_norm_uses_its_statistics_when_it_does_not_train():
    norm = pyg_nn.InstanceNorm(4, affine=True, track_running_stats=True).double()
    norm(features(), BATCH)
    norm.eval()
    torch.testing.assert_close(compile(norm, [features(), BATCH])(features(), BATCH), norm(features(), BATCH).detach())


AGGREGATIONS = {
    "GRU": (pyg_nn.GRUAggregation(4, 3), {"max_num_elements": 4}),
    "LSTM": (pyg_nn.LSTMAggregation(4, 3), {"max_num_elements": 4}),
    "Set2Set": (pyg_nn.Set2Set(4, 2), {}),
    "median": (MedianAggregation(), {}),
    "quantile": (QuantileAggregation([0.2, 0.7]), {}),
}


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_an_aggregation_of_pyg_trains_as_in_eager_pytorch(name):
    aggregation, named = copy.deepcopy(AGGREGATIONS[name])
    layers = nn.ModuleList([nn.Linear(4, 4), aggregation])

    def call(layers, x, batch):
        return layers[1](layers[0](x), batch, dim_size=GRAPHS, **named)

    assert_trains_as_in_eager_pytorch(layers, features(), BATCH, call=call)


RECURRENT = {
    "lstm": nn.LSTM(4, 3, num_layers=2, bidirectional=True),
    "gru": nn.GRU(4, 3, batch_first=True),
    "rnn": nn.RNN(4, 3, batch_first=True, nonlinearity="relu"),
}


@pytest.mark.parametrize("name", RECURRENT)
def test_a_recurrent_network_trains_as_in_eager_pytorch(name):
    x, layer = features().view(2, 5, 4), copy.deepcopy(RECURRENT[name])
    # In float32 a CPU has one operation for a whole LSTM.
    assert_trains_as_in_eager_pytorch(layer, x.float(), call=lambda layer, x: layer(x)[0], dtype=torch.float32)


def test_jumping_knowledge_by_an_lstm_trains_as_in_eager_pytorch():
    jump, x = pyg_nn.JumpingKnowledge("lstm", 4, 2), features().float()
    assert_trains_as_in_eager_pytorch(jump, x, call=lambda jump, x: jump([x, 2 * x, x.cos()]), dtype=torch.float32)


def reference_neighbors(x: Tensor, y: Tensor, k: int, of_x: Tensor, of_y: Tensor, r: float) -> list[tuple[int, int]]:
    """Return the pairs of a plain search, row by row, the nearest first."""
    found = []
    for i in range(len(y)):
        near = [((x[j] - y[i]).square().sum().item(), j) for j in range(len(x)) if of_x[j] == of_y[i]]
        found += [(i, j) for d, j in sorted(near)[:k] if d <= r * r]
    return found


def as_matrix(pairs: Tensor) -> Tensor:
    """Return a matrix with 1 for each pair."""
    return scatter(torch.ones(pairs.size(1)), pairs[0] * NODES + pairs[1], 0, 7 * NODES).view(7, NODES)


@pytest.mark.parametrize("k", [1, 3, 20])
@pytest.mark.parametrize("r", [0.1, 1.5, 100.0])
def test_neighbors_are_those_of_a_plain_search(k, r):
    x, y, of_y = features(3), features(6)[:7, 3:], torch.tensor([0, 1, 1, 2, 2, 2, 5])
    inputs, pairs = [x, y, BATCH, of_y], reference_neighbors(x, y, k, BATCH, of_y, r)
    near = compile(lambda x, y, b, c: as_matrix(pyg_nn.radius(x, y, r, b, c, max_num_neighbors=k)), inputs)(*inputs)
    assert [tuple(pair) for pair in near.nonzero().tolist()] == sorted(pairs)
    assert near.sum() == len(pairs)
    if r == 100:
        nearest = compile(lambda x, y, b, c: pyg_nn.knn(x, y, k, b, c), [x, y, BATCH, of_y])(x, y, BATCH, of_y)
        assert nearest.shape == (2, 7 * k)
        assert [(i, j) for i, j in nearest.t().tolist() if i >= 0] == pairs


@pytest.mark.parametrize("loop", [False, True])
def test_edges_within_a_radius_reach_the_layer_of_a_point_cloud(loop):
    layer, x = pyg_nn.PointTransformerConv(4, 3, add_self_loops=False), features().float()

    def call(layer: nn.Module, x: Tensor, batch: Tensor) -> Tensor:
        return layer(x, x[:, :3], pyg_nn.radius_graph(x[:, :3], 1.5, batch, loop))

    near = (torch.cdist(x[:, :3], x[:, :3]) <= 1.5) & (BATCH.unsqueeze(1) == BATCH)
    edges = (near if loop else near & ~torch.eye(NODES, dtype=torch.bool)).nonzero().t()
    expected = layer(x, x[:, :3], edges).detach()
    torch.testing.assert_close(compile(lambda x, b: call(layer, x, b), [x, BATCH])(x, BATCH), expected)


def test_farthest_points_are_picked_without_the_library_of_pyg():
    x = torch.tensor([[0.0], [1.0], [5.0], [2.0]])
    made = compile(lambda x: pyg_nn.fps(x, ratio=0.5, random_start=False), [x])(x)
    assert made.tolist() == [0, 2]


def test_the_mask_of_a_transformer_may_be_an_input():
    layer = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, 0.0), 1, enable_nested_tensor=False)
    mask = nn.Transformer.generate_square_subsequent_mask(2).double()
    assert_trains_as_in_eager_pytorch(layer, features().view(2, 5, 4), mask)


def test_a_graph_of_neighbors_leaves_the_node_itself_out():
    x = torch.tensor([[0.0], [1.0], [3.0], [3.5]])
    assert compile(lambda x: pyg_nn.knn_graph(x, 1), [x])(x).tolist() == [[1, 0, 3, 2], [0, 1, 2, 3]]
    assert compile(lambda x: pyg_nn.knn_graph(x, 1, loop=True), [x])(x).tolist() == [[0, 1, 2, 3]] * 2
    near = static_neighbors.radius_graph(x, 1.0, max_num_neighbors=1, flow="target_to_source")
    assert near.tolist() == [[0, 1, 2, 3], [1, 0, 3, 2]]
    assert compile(lambda x: pyg_nn.nearest(x, x[2:]), [x])(x).tolist() == [0, 0, 0, 1]


def test_features_are_interpolated_by_inverse_squared_distance():
    x, pos = torch.tensor([[1.0], [4.0], [100.0]]), torch.tensor([[0.0], [3.0], [50.0]])
    queries = torch.tensor([[1.0], [49.0]])
    inputs = [x, pos, queries, torch.tensor([0, 0, 1]), torch.tensor([0, 1])]
    made = compile(lambda *inputs: pyg_nn.knn_interpolate(*inputs), inputs)(*inputs)
    assert made.flatten().tolist() == pytest.approx([(1 / 1 + 4 / 4) / (1 + 1 / 4), 100])


def test_nothing_stands_in_outside_of_a_capture():
    functions = [pyg_nn.knn, pyg_nn.MFConv.forward, pyg_nn.knn_interpolate]
    seen, code = [], pyg_nn.knn.__code__

    def fails(x):
        seen.extend([pyg_nn.MFConv.forward, functions[0](torch.ones(1, 1), torch.ones(1, 1), 2).shape])
        raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        compile(fails, [torch.ones(1)])
    assert seen[0] is not functions[1]
    assert seen[1] == (2, 2)
    assert functions[0].__code__ is code
    assert [pyg_nn.knn, pyg_nn.MFConv.forward, pyg_nn.knn_interpolate] == functions
    assert torch._C._get_mkldnn_enabled()
    assert torch.bincount(torch.tensor([5]), minlength=2).shape == (6,)


def test_the_static_check_knows_the_static_forms():
    assert check_static(pyg_nn.MFConv(4, 3), features().float(), EDGES) == []
    assert check_static(lambda i: torch.bincount(i, minlength=4), BATCH) == []


def test_one_point_has_as_many_slots_as_any():
    rows, found = static_neighbors.nearest_rows(torch.zeros(1, 3), torch.zeros(2, 3), 2, torch.ones(2, 1).bool())
    assert (rows.tolist(), found.tolist()) == ([[0, 0]] * 2, [[True, False]] * 2)


def test_distributions_do_not_look_at_their_parameters_while_a_step_is_compiled(monkeypatch):
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)  # torch.compile leaves it False
    compiled = compile(lambda mean: torch.distributions.Normal(mean, torch.ones(3)).sample(), [torch.zeros(3)])
    generator = compiled.replica_states()[0].generator.manual_seed(5)
    expected = torch.normal(torch.zeros(3), torch.ones(3), generator=torch.Generator().manual_seed(5))
    torch.testing.assert_close(compiled(torch.full((3,), 7.0)), 7 + expected)
    assert generator is compiled.replica_states()[0].generator
    with pytest.raises(ValueError, match="constraint"):
        torch.distributions.Normal(torch.zeros(1), -torch.ones(1))
