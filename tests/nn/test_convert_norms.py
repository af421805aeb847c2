"""Torch's norms of batches in a padded batch: checkpoints go to and fro, and converted models leave padding out."""

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
    """A batch with room for so many nodes, and 5 graphs."""
    return FixedSizeCollater(FixedSizeOptions(num_nodes, 8, 5), add_masks_to_batch=True)(graphs)


PADDED, PLAIN = padded(GRAPHS, 14), Batch.from_data_list(GRAPHS)


class Net(nn.Module):
    """Norms over nodes, one of them PyG's, and over graphs."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.nodes, self.pyg, self.graphs = nn.BatchNorm1d(3), pyg.BatchNorm(3), nn.BatchNorm1d(3)

    def forward(self, batch):
        h = self.pyg(self.nodes(batch.x).square())
        return self.graphs(global_add_pool(h, batch.batch, batch.num_graphs))


class Training(nn.Module):
    """A converted model within another."""

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
    """Sums up fewer graphs than the mask has."""

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


def test_a_call_without_a_mask_and_other_norms_are_refused():
    class Tensors(Net):
        def forward(self, x):
            return self.nodes(x)

    with pytest.raises(ValueError, match=r"nodes gets features \[14, 3\], and the call has no mask.*Pass the missing"):
        convert_norms(Tensors())(PADDED.x)
    with pytest.raises(ValueError, match=r"0 is a BatchNorm2d; only torch\.nn"):
        convert_norms(nn.Sequential(nn.BatchNorm2d(3)))
