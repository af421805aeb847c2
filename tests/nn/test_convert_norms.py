"""Torch's batch norms in a padded batch: checkpoints load in both directions, and converted models ignore padding."""

import warnings

import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn
from torch.testing import assert_close
from torch_geometric.data import Batch, Data

from popgeo import FixedSizeCollater, FixedSizeOptions, compile_step
from popgeo.nn import BatchNorm, convert_norms
from popgeo.ops import global_add_pool

DRAW = torch.Generator().manual_seed(0)
GRAPHS = [
    Data(x=torch.randn(n, 3, generator=DRAW), edge_index=torch.zeros(2, 1, dtype=torch.long), y=torch.ones(1))
    for n in (4, 2, 3)
]


def padded(graphs, num_nodes):
    """Return a batch with slots for `num_nodes` nodes and 5 graphs."""
    return FixedSizeCollater(FixedSizeOptions(num_nodes, 8, 5), add_masks_to_batch=True)(graphs)


PADDED, PLAIN = padded(GRAPHS, 14), Batch.from_data_list(GRAPHS)


class Net(nn.Module):
    """A model with norms over nodes, one of them PyG's, and over graphs."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.nodes, self.pyg, self.graphs = nn.BatchNorm1d(3), pyg.BatchNorm(3), nn.BatchNorm1d(3)

    def forward(self, batch):
        h = self.pyg(self.nodes(batch.x).square())
        return self.graphs(global_add_pool(h, batch.batch, batch.num_graphs))


class Training(nn.Module):
    """A model with a converted model as a part."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, batch):
        return torch.where(batch.graphs_mask.unsqueeze(1), self.net(batch), 0.0).pow(3).sum()


@pytest.mark.parametrize("momentum", [0.1, None])
def test_checkpoints_of_torchs_norm_load_into_ours_and_back(momentum):
    torchs, ours = nn.BatchNorm1d(3, momentum=momentum), BatchNorm(3, momentum=momentum)
    torchs(PLAIN.x)
    nn.Sequential(ours).load_state_dict(nn.Sequential(torchs).state_dict())
    assert_close(ours(PLAIN.x), torchs(PLAIN.x))
    back = nn.BatchNorm1d(3, momentum=momentum)
    back.load_state_dict(ours.module.state_dict())
    assert_close(back.eval()(PLAIN.x), ours.eval()(PLAIN.x))
    ours.load_state_dict(ours.state_dict())


def test_a_converted_model_gives_real_rows_what_the_model_gives_without_padding():
    net = Net()
    converted = convert_norms(net)
    for _ in range(2):
        assert_close(converted(PADDED)[:3], net(PLAIN))
    assert_close(converted.state_dict(), net.state_dict())  # running statistics, by the same names
    Net().load_state_dict(converted.state_dict())
    assert_close(converted.eval()(PADDED)[:3], net.eval()(PLAIN))


def test_a_compiled_step_of_a_converted_model_is_that_of_eager_pytorch():
    eager, model = Training(convert_norms(Net())), Training(convert_norms(Net()))
    optimizer = torch.optim.SGD(eager.parameters(), lr=0.01)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step = compile_step(model, torch.optim.SGD(model.parameters(), lr=0.01))
        for _ in range(3):
            optimizer.zero_grad()
            loss = eager(PADDED)
            loss.backward()
            optimizer.step()
            assert_close(step(PADDED), loss)
    assert_close(model.state_dict(), eager.state_dict())


class Lost(Net):
    """A model that sums over fewer graphs than the mask has."""

    def forward(self, batch):
        return self.graphs(global_add_pool(batch.x, batch.batch.clamp(max=2), 3))


@pytest.mark.parametrize(
    ("net", "batch", "expected"),
    [
        (Lost(), PADDED, r"graphs gets features \[3, 3\], and the call has nodes_mask \[14\], .*: exactly one"),
        (Net(), padded(GRAPHS[:1], 5), r"nodes gets features \[5, 3\], .* \[5\], .* \[5\]: exactly one"),
    ],
)
def test_a_norm_that_not_exactly_one_mask_fits_is_named(net, batch, expected):
    with pytest.raises(ValueError, match=expected):
        convert_norms(net)(batch)


class Convolved(nn.Module):
    """A model or a norm of PyG, followed by sums over nodes."""

    def __init__(self, net, gets_batch=False):
        super().__init__()
        self.net, self.gets_batch = net, gets_batch

    def forward(self, batch):
        more = (batch.batch, batch.num_graphs) if self.gets_batch else ()
        if isinstance(self.net, pyg.models.basic_gnn.BasicGNN | pyg.MessagePassing):
            more = (batch.edge_index,)
        return global_add_pool(self.net(batch.x, *more), batch.batch, batch.num_graphs)


def shared_norm():
    norm = nn.BatchNorm1d(3)
    return nn.Sequential(norm, nn.Linear(3, 3), norm)


@pytest.mark.parametrize(
    "net",
    [
        lambda: Convolved(pyg.GIN(3, 4, 2, norm="batch_norm")),
        lambda: Convolved(pyg.GCN(3, 4, 2, norm="batch_norm", jk="cat")),
        lambda: Convolved(pyg.GAT(3, 4, 2, norm="batch_norm")),
        lambda: Convolved(pyg.GINConv(pyg.MLP([3, 4, 3], norm="batch_norm"))),
        lambda: Convolved(pyg.MLP([3, 4, 3])),
        lambda: Convolved(pyg.DiffGroupNorm(3, 2)),
        lambda: Convolved(pyg.LayerNorm(3, mode="node")),
        lambda: Convolved(pyg.LayerNorm(3), True),
        lambda: Convolved(pyg.GraphNorm(3), True),
        lambda: Convolved(pyg.InstanceNorm(3), True),
        lambda: Convolved(pyg.PairNorm(), True),
        lambda: Convolved(shared_norm()),
    ],
)
def test_models_of_pyg_give_in_padded_batches_what_they_give_without_padding(net):
    torch.manual_seed(0)
    net = net()
    converted = convert_norms(net)
    for _ in range(2):
        assert_close(converted(PADDED)[:3], net(PLAIN))
    assert_close(converted.state_dict(), net.state_dict())
    assert_close(converted.eval()(PADDED)[:3], net.eval()(PLAIN))


@pytest.mark.parametrize("kind", ["GraphNorm", "InstanceNorm", "LayerNorm", "MeanSubtractionNorm", "PairNorm"])
def test_a_norm_of_graphs_that_gets_no_batch_is_refused_by_name(kind):
    norm = getattr(pyg, kind)(*([3] if kind in ("GraphNorm", "InstanceNorm", "LayerNorm") else []))
    with pytest.raises(ValueError, match=f"net, PyG's {kind}, gets no batch, so it averages over all rows"):
        convert_norms(Convolved(norm))(PADDED)


def test_a_norm_is_replaced_wherever_a_model_refers_to_it_and_keeps_tied_parameters_and_hooks():
    net, seen = Net(), []
    net.again, net.graphs.weight = [net.nodes], net.nodes.weight
    net.nodes.register_forward_hook(lambda *call: seen.append(1))
    converted = convert_norms(net)
    assert converted.again[0] is converted.nodes
    assert converted.graphs.weight is converted.nodes.weight is not net.nodes.weight
    converted(PADDED)
    assert seen == [1]
    assert type(net.nodes) is nn.BatchNorm1d


def test_statistics_of_pyg_that_would_count_padding_are_refused():
    with pytest.raises(ValueError, match=r"0 is PyG's InstanceNorm, whose statistics count padding"):
        convert_norms(nn.Sequential(pyg.InstanceNorm(3, track_running_stats=True)))
    with pytest.raises(ValueError, match=r"0 is PyG's HeteroBatchNorm, whose statistics count padding"):
        convert_norms(nn.Sequential(pyg.HeteroBatchNorm(3, 2)))
    with pytest.raises(ValueError, match="0 is a LazyBatchNorm1d; only"):
        convert_norms(nn.Sequential(nn.LazyBatchNorm1d()))


def test_a_call_without_a_mask_and_other_norms_are_refused():
    class Tensors(Net):
        def forward(self, x):
            return self.nodes(x)

    with pytest.raises(ValueError, match=r"nodes gets features \[14, 3\], and the call has no mask.*Pass the missing"):
        convert_norms(Tensors())(PADDED.x)
    with pytest.raises(ValueError, match=r"0 is a BatchNorm2d; only torch\.nn"):
        convert_norms(nn.Sequential(nn.BatchNorm2d(3)))
