"""Claims about the norms against PyG's on batches without padding; the contracts cover padding."""

import pytest
import torch
import torch_geometric.nn as pyg
from torch.testing import assert_close

from popgeo.nn import BatchNorm, GraphNorm, InstanceNorm, LayerNorm
from popgeo.nn.norm import make_norm

X = 3 * torch.randn(9, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 1
BATCH = torch.tensor([0] * 5 + [1] * 3 + [2])
TRACKED = {"affine": True, "track_running_stats": True}
PAIRS = {
    "batch": (BatchNorm(4), pyg.BatchNorm(4), False),
    "batch, cumulative": (BatchNorm(4, momentum=None), pyg.BatchNorm(4, momentum=None), False),
    "graph": (GraphNorm(4), pyg.GraphNorm(4), True),
    "instance": (InstanceNorm(4), pyg.InstanceNorm(4), True),
    "instance, tracked": (InstanceNorm(4, **TRACKED), pyg.InstanceNorm(4, **TRACKED), True),
    "layer": (LayerNorm(4), pyg.LayerNorm(4, mode="node"), False),
}


@pytest.mark.parametrize(("ours", "theirs", "per_graph"), PAIRS.values(), ids=PAIRS)
def test_a_norm_equals_pygs_in_training_and_then_in_evaluation(ours, theirs, per_graph):
    ours, theirs = ours.double().train(), theirs.double().train()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(torch.rand_like(parameter))
    ours.load_state_dict(theirs.state_dict())
    arguments = (X, BATCH, 3) if per_graph else (X,)
    for _ in range(2):
        assert_close(ours(X, BATCH, 3), theirs(*arguments))
    assert_close(dict(ours.named_buffers()), dict(theirs.named_buffers()))
    ours.eval(), theirs.eval()
    assert_close(ours(X, BATCH, 3), theirs(*arguments))


def test_pygs_layer_norm_leaks_and_ours_does_not():
    other = torch.cat([X[:5], 100 * X[5:]])
    assert not torch.allclose(pyg.LayerNorm(4).double()(other)[:5], pyg.LayerNorm(4).double()(X)[:5])
    assert_close(LayerNorm(4).double()(other)[:5], LayerNorm(4).double()(X)[:5])


def test_a_norm_of_graphs_needs_their_number():
    with pytest.raises(ValueError, match="batch is given without num_graphs"):
        GraphNorm(4)(X.float(), BATCH)


def test_an_unknown_norm_is_refused():
    with pytest.raises(ValueError, match="norm is 'batchnorm'"):
        make_norm("batchnorm", 4)


@pytest.mark.parametrize("norm", [BatchNorm(4), LayerNorm(4), GraphNorm(4)], ids=lambda norm: type(norm).__name__)
def test_a_mask_in_the_place_of_batch_is_refused(norm):
    with pytest.raises(ValueError, match="nodes_mask="):
        norm(X.float(), BATCH < 2)


NORMS = {"batch": BatchNorm, "graph": GraphNorm, "instance": InstanceNorm, "layer": LayerNorm}


@pytest.mark.parametrize("of_batch", [None, torch.tensor([0] * 5 + [1] * 4)], ids=["no batch", "batch"])
@pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS)
def test_a_mask_alone_keeps_padding_out(norm, of_batch):
    norm, real = norm(4).double(), torch.arange(9) < 5
    padded = torch.where(real[:, None], X, 1e3)
    arguments = (padded,) if of_batch is None else (padded, of_batch, 2)
    assert_close(norm(*arguments, nodes_mask=real)[:5], norm(X[:5]))


@pytest.mark.parametrize("rows", [0, 9])
@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("begun", [False, True])
def test_a_batch_of_padding_alone_moves_no_statistics(rows, momentum, begun):
    norms = [BatchNorm(4, momentum=momentum), InstanceNorm(4, track_running_stats=True, momentum=momentum or 0.2)]
    for norm in norms:
        if begun:
            norm(X.float())
        before = {name: value.clone() for name, value in norm.state_dict().items()}
        norm(X[:rows].float(), BATCH[:rows], 3, nodes_mask=torch.zeros(rows, dtype=torch.bool))
        assert_close(norm.state_dict(), before, rtol=0, atol=0)
